"""`syrtos resume`: goes on with a stopped run from its last snapshot.

Either the launcher of the run was stopped, or the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos import settings
from syrtos.cli.engine_runs import print_submitted
from syrtos.cli.execution import execute, this_machine
from syrtos.cli.followed_run import submit
from syrtos.cli.run import check_may_resize
from syrtos.cli.run_dirs import add_run_dir, find_run_dir
from syrtos.cli.run_request import read_request, request_changes
from syrtos.engines import background
from syrtos.errors import ConfigurationError
from syrtos.launch.plan import make_plan
from syrtos.launch.run_lock import going_on_error, is_going_on
from syrtos.launch.spec import Spec, parse_hosts

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "resume",
        help="go on with a run that was stopped",
        description=(
            "Go on with a run that was stopped, or whose launcher or machine was lost, from its"
            " last snapshot: the same script, arguments and options, in the folder in which it was"
            " begun."
        ),
    )
    add_run_dir(parser)
    parser.add_argument(
        "-n", type=int, dest="workers", metavar="N", help="another number of workers than before"
    )
    parser.add_argument("--hosts", metavar="A:2,B:2", help="other hosts than before")
    parser.add_argument(
        "--oversubscribe", action="store_true", help="allow more workers than cores"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help=(
            "go on although the script has another batch size, or epochs of other lengths, than"
            " before: from the beginning of the epoch"
        ),
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="go on in the background; `syrtos status`, `logs` and `stop` RUN_DIR follow it",
    )
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Resumes the run, and returns its exit code."""
    run_dir = find_run_dir(chosen.run_dir)
    if is_going_on(run_dir):
        # before anything is said of its script
        raise going_on_error(run_dir)
    request = read_request(run_dir)
    _choose_backend(request.backend)
    spec = _resized_spec(request.spec, chosen)
    # refused before anything is written
    make_plan(spec, this_machine(spec.hosts), settings.environment())
    if chosen.detach:
        return _resume_in_background(run_dir, chosen)
    changes = request_changes(
        chosen.workers, spec.hosts if chosen.hosts else (), chosen.oversubscribe
    )
    request = dataclasses.replace(request, spec=spec, any_batches=chosen.force)
    return execute(request, run_dir, resume=True, changes=changes)


def _resume_in_background(run_dir: Path, chosen: argparse.Namespace) -> int:
    options = {"-n": chosen.workers, "--hosts": chosen.hosts}
    given = [
        word for name, value in options.items() if value is not None for word in (name, str(value))
    ]
    flags = [f"--{name}" for name in ("force", "oversubscribe") if getattr(chosen, name)]
    words = ("resume", str(run_dir), *given, *flags)
    submit(
        run_dir, background.ENGINE.name, lambda: background.start(run_dir, sys.executable, words)
    )
    return print_submitted(run_dir)


def _choose_backend(backend: str | None) -> None:
    """Chooses the backend of Keras that the run had, if this shell names none.

    A snapshot is of one backend.
    """
    given = os.environ.get("KERAS_BACKEND")
    if not backend or given == backend:
        return
    if given is None:
        os.environ["KERAS_BACKEND"] = backend
        print(f"syrtos: KERAS_BACKEND={backend}, as when the run was started", file=sys.stderr)
    else:
        print(
            f"syrtos: the run was started with KERAS_BACKEND={backend}, and goes on with {given}: its"
            f" snapshots can be read with {backend} alone",
            file=sys.stderr,
        )


def _resized_spec(spec: Spec, chosen: argparse.Namespace) -> Spec:
    """Returns the request with the hosts and the number of workers that the command names.

    Raises:
        ConfigurationError: the run can't have another number of workers.
    """
    hosts = parse_hosts(chosen.hosts) if chosen.hosts else spec.hosts
    slots = sum(host.slots for host in hosts)
    workers = spec.workers if chosen.workers is None else chosen.workers
    if workers < (spec.elastic.least if spec.elastic else 1):
        raise ConfigurationError(
            f"`-n` must be at least {spec.elastic.least if spec.elastic else 1}. Received:"
            f" {workers}."
        )
    if spec.elastic:
        workers = min(workers, slots)
    if workers != spec.workers and not spec.elastic:
        check_may_resize(spec.options, f"`-n {workers}`")
    elastic = spec.elastic and dataclasses.replace(
        spec.elastic, most=chosen.workers or spec.elastic.most
    )
    return dataclasses.replace(
        spec,
        hosts=hosts,
        workers=workers,
        elastic=elastic,
        oversubscribe=spec.oversubscribe or chosen.oversubscribe,
    )
