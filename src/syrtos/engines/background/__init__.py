"""A run of this machine that goes on after the command that started it: `syrtos run --detach`."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from syrtos.engines.engine import Engine, EngineRequest, Submitted
from syrtos.engines.launched_run import LaunchedRun
from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import OUTPUT, Launcher


class BackgroundEngine(Engine):
    """Runs `syrtos run` in a session of its own; its output goes into the run directory."""

    name = "background"

    def files(self, wanted: EngineRequest) -> dict[str, str]:
        return {}

    def submit(self, wanted: EngineRequest) -> dict[str, str]:
        command = ("run", "--run-dir", str(wanted.run_dir), *wanted.words)
        return start(wanted.run_dir, wanted.python, command)

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        launcher = Launcher.from_facts(facts)
        if launcher is None:
            raise ConfigurationError(
                f"{facts.get('run_dir', 'The run directory')} does not say which process its run"
                " was started as: it was written by another version of syrtos."
            )
        return LaunchedRun(Path(facts["run_dir"]), launcher)


def start(run_dir: Path, python: str, command: Sequence[str]) -> dict[str, str]:
    """Starts a command of syrtos in the background, and returns facts by which it is found again.

    Args:
        run_dir: its run directory.
        python: the interpreter that runs it.
        command: the words after `syrtos`.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / OUTPUT).open("ab") as output:
        process = subprocess.Popen(
            [python, "-m", "syrtos", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # It outlives the terminal of this command.
            start_new_session=True,
        )
    facts = dataclasses.asdict(Launcher.of(process.pid, in_background=True))
    return {"run_dir": str(run_dir), **{name: str(value) for name, value in facts.items()}}


ENGINE = BackgroundEngine()
