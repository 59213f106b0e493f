"""`syrtos attach`: lets a debugger attach to a worker of a run that is going on."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from syrtos.cli.run_dirs import add_run_dir, find_run_dir
from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import is_going_on
from syrtos.launch.worker import debugging
from syrtos.run_dir import RunDir

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_PATIENCE = 30.0  # seconds in which a worker answers, which may have to finish a long operation


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "attach",
        help="let a debugger attach to a worker of a run that is going on",
        description=(
            "Let a debugger (debugpy) attach to a worker of a run that is going on. The worker"
            " begins to listen on its machine's loopback, where any user of that machine can"
            " connect. No timeout of an exchange ends the run from then on: while a breakpoint"
            " holds one worker, the others wait for it. Workers on other hosts are found where the"
            " run directory is shared with these."
        ),
    )
    add_run_dir(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="the worker (default: 0)")
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Asks the worker, and says where a debugger finds it.

    Raises:
        ConfigurationError: nothing runs in the folder, or the worker does not listen.
    """
    run_dir, rank = find_run_dir(chosen.run_dir), chosen.rank
    if not is_going_on(run_dir):
        raise ConfigurationError(f"No run is going on in {run_dir}.")
    newest = RunDir(run_dir).newest()
    folder, begun = newest.path, newest.ledgers()
    if rank not in begun:
        raise ConfigurationError(
            f"No rank {rank} has begun in {folder} yet: its ranks are"
            f" {', '.join(map(str, begun)) or 'still starting'}."
        )
    try:
        answer = debugging.ask(folder, rank, _PATIENCE, lambda: is_going_on(run_dir))
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be written to: {error.strerror}.") from error
    if not answer and RunDir(run_dir).newest() != newest:
        raise ConfigurationError("The workers were started again meanwhile: attach once more.")
    if not answer and not is_going_on(run_dir):
        raise ConfigurationError(f"The run in {run_dir} has ended meanwhile.")
    if not answer:
        raise ConfigurationError(
            f"Rank {rank} has not answered in {_PATIENCE:.0f} s: it is in a long operation outside"
            " of Python, or it runs on another host, with which this folder is not shared."
        )
    if "error" in answer:
        raise ConfigurationError(f"Rank {rank} can't be attached to: {answer['error']}")
    where = f", at {answer['position']}" if answer["position"] else ""
    print(f"rank {rank}: process {answer['pid']} on {answer['machine']}{where}")
    print(f"debugpy listens at {answer['host']}:{answer['port']}. In VS Code's launch.json:")
    print(f"  {json.dumps(_launch_configuration(answer, rank))}")
    print(
        f"From another machine first: ssh -L {answer['port']}:127.0.0.1:{answer['port']}"
        f" {answer['machine']}"
    )
    return 0


def _launch_configuration(answer: dict[str, object], rank: int) -> dict[str, object]:
    return {
        "name": f"rank {rank}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": answer["host"], "port": answer["port"]},
        "justMyCode": False,
    }
