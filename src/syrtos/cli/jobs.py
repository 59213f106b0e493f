"""`syrtos jobs`, `describe`, `status`, `logs`, `stop`: list, show, follow and end training jobs.

`status`, `logs` and `stop` also serve run directories.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from syrtos.cli import followed_run
from syrtos.cli.run_dirs import absolute, add_run_dir, find_run_dir

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands
    from syrtos.jobs.api.service import Service
    from syrtos.jobs.store.job_store import Record

_NEWEST = "the name of a job, or a run directory (default: the newest in `runs`)"
_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def add_to(commands: Commands) -> None:
    """Adds the subcommands to the parser."""
    parser = commands.add_parser("jobs", help="list training jobs, newest first")
    parser.set_defaults(main=_list)
    parser.add_argument(
        "-n",
        type=int,
        default=20,
        dest="count",
        metavar="N",
        help="show at most N jobs (default: %(default)s)",
    )
    parser = commands.add_parser("describe", help="show all about a training job, as JSON")
    parser.set_defaults(main=_describe)
    parser.add_argument("name")
    parser = commands.add_parser("status", help="say how far a run is, or how it ended")
    parser.set_defaults(main=_status_of_run)
    add_run_dir(parser)
    parser = commands.add_parser("logs", help="print the output of a training job or of a run")
    parser.set_defaults(main=_logs)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until its end"
    )
    parser.add_argument("name", nargs="?", metavar="JOB|RUN_DIR", help=_NEWEST)
    parser = commands.add_parser(
        "stop",
        help=(
            "stop a training job (SIGTERM, SIGKILL after two minutes) or a run, and wait for the end of a run"
        ),
    )
    parser.set_defaults(main=_stop)
    parser.add_argument("name", metavar="JOB|RUN_DIR")


def _list(chosen: argparse.Namespace) -> int:
    from syrtos.jobs.store.job_store import columns

    found, _ = _service().store.find([], [columns.created.desc()], 0, chosen.count)
    table = Table(
        "job", "status", "since", "epoch", "workers", box=None, pad_edge=False, header_style="bold"
    )
    for record in found:
        table.add_row(record.name, _status(record), _age(record), _epoch(record), str(record.slots))
    Console(highlight=False).print(
        table if found else "There are no jobs yet: `syrtos submit train.py`."
    )
    return 0


def _status(record: Record) -> str:
    colors = {"Completed": "green", "Failed": "red", "InProgress": "cyan"}
    text = record.state.secondary if not record.state.final else record.state.status
    return f"[{colors.get(record.state.status, 'yellow')}]{text}[/]"


def _age(record: Record) -> str:
    seconds = int(time.time() - record.created)
    minutes, hours = seconds // 60, seconds // 3600
    return f"{seconds} s" if minutes < 2 else f"{minutes} min" if hours < 2 else f"{hours} h"


def _epoch(record: Record) -> str:
    done, of = record.progress.get("CurrentEpoch"), record.progress.get("MaxEpoch")
    return f"{done}/{of}" if of else ""


def _describe(chosen: argparse.Namespace) -> int:
    from syrtos.jobs.api.service import describe_job
    from syrtos.jobs.client import local

    print(json.dumps(describe_job(local.find_record(_service(), chosen.name)), indent=2))
    return 0


def _status_of_run(chosen: argparse.Namespace) -> int:
    return followed_run.print_status(find_run_dir(chosen.run_dir))


def _logs(chosen: argparse.Namespace) -> int:
    if chosen.name is None or Path(chosen.name).is_dir():
        return followed_run.print_output(
            find_run_dir(chosen.name and Path(chosen.name)), chosen.follow
        )
    from syrtos.jobs.client import local

    service = _service()
    over = local.find_record(service, chosen.name).state.final
    if chosen.follow and not over and not local.is_attended(service, chosen.name):
        print(
            "syrtos: no service runs: the job goes on when one is started (`syrtos serve`).",
            file=sys.stderr,
        )
    several = _instances(service, chosen.name) > 1
    out = Console(highlight=False, markup=False, soft_wrap=True)
    for instance, line in local.follow(service, chosen.name, wait=chosen.follow):
        if several:
            out.print(f"algo-{instance + 1} | ", style=_COLORS[instance % len(_COLORS)], end="")
        out.print(line)
    return 0


def _service() -> Service:
    from syrtos.jobs.client import local
    from syrtos.jobs.store.home import Home

    return local.service_of(Home())


def _instances(service: Service, name: str) -> int:
    return len(list((service.home.job(name) / "logs").glob("*.jsonl")))


def _stop(chosen: argparse.Namespace) -> int:
    if Path(chosen.name).is_dir():
        return followed_run.stop(absolute(Path(chosen.name)))
    from syrtos.jobs.client import local

    local.ask_to_stop(_service(), chosen.name)
    return 0
