"""An earlier run in the folder that `syrtos run` is given: the new one goes on with it, or replaces it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path

from syrtos.cli.run_request import RunRequest, read_request
from syrtos.engines.engine import BY_SCHEDULER
from syrtos.errors import ConfigurationError
from syrtos.launch import generations
from syrtos.launch.outcome import end_of
from syrtos.launch.spec import Spec
from syrtos.run_dir import REQUEST, RunDir


def continue_earlier_run(request: RunRequest, run_dir: Path) -> RunRequest | None:
    """Returns the request of the earlier run that the same command goes on with, and says so.

    None: there is no earlier run, or this one replaces it, which is said too.

    Raises:
        ConfigurationError: the earlier run has kept a snapshot that this command would remove.
    """
    if not generations.has_snapshot(run_dir):
        if RunDir(run_dir).request_file.exists():
            _say(f"{run_dir} holds an earlier run, whose logs and record this one replaces.")
        return None
    if _goes_on(request, run_dir):
        _say(f"the same run was stopped in {run_dir}, and goes on.")
        return _on_new_hosts(read_request(run_dir), request.spec)
    if _may_be_forgotten(request, run_dir):
        _say(f"an earlier run in {run_dir} had not finished: this one begins anew.")
        return None
    raise ConfigurationError(
        f"The run in {run_dir} {_why_not(request, run_dir)}, and has kept a snapshot: `syrtos"
        f" resume {shlex.quote(str(run_dir))}` goes on from it. To begin anew remove that folder,"
        " or name another with --run-dir."
    )


def _goes_on(request: RunRequest, run_dir: Path) -> bool:
    """Returns whether a run in this folder goes on by the same command, without `syrtos resume`.

    It does if the same script, options and arguments ran here until a scheduler stopped the
    launcher, or its machine was lost; and, however that run ended, where the script has committed a
    state itself.
    """
    # A scheduler that queues a job again gives the very same command.
    found = RunDir(run_dir).request()
    if request.differences(found):
        return False
    return found.get("end") in (None, BY_SCHEDULER) or generations.is_of_script(run_dir)


def _on_new_hosts(kept: RunRequest, asked: Spec) -> RunRequest:
    """Returns a request that was kept, on the hosts that an engine has chosen this time."""
    if not asked.placed:
        return kept
    hosts = {"hosts": asked.hosts, "ssh": asked.ssh, "placed": True}
    return dataclasses.replace(kept, spec=dataclasses.replace(kept.spec, **hosts))


def _may_be_forgotten(request: RunRequest, run_dir: Path) -> bool:
    """Returns whether the snapshot in this folder is one that no person has asked for."""
    policy = RunDir(run_dir).request().get("policy")
    asked = policy.get("asked", True) if isinstance(policy, dict) else True
    return not (request.policy.asked or asked or generations.is_of_script(run_dir))


def _why_not(request: RunRequest, run_dir: Path) -> str:
    """Returns why the same command does not go on with an unfinished run.

    The text is the end of a sentence about the run.
    """
    files = RunDir(run_dir)
    found = files.request()
    if not found:
        damaged = f" (its {REQUEST} is damaged)" * files.request_file.exists()
        return f"has not finished{damaged}"
    if different := request.differences(found):
        return f"was begun with other values of: {', '.join(different)}"
    if not (ended := end_of(found)):
        return "has not finished"
    return f"ended by itself or was stopped by a person ({ended[0].value})"


def _say(text: str) -> None:
    print(f"syrtos: {text}", file=sys.stderr)
