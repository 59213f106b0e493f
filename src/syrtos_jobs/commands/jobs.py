"""`syrtos jobs` and `describe` list and show training jobs; `logs` and `stop` know their names."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from syrtos.cli.named_runs import NamedRuns
from syrtos_jobs.commands import TITLE as TITLE

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands
    from syrtos_jobs.api.service import Service
    from syrtos_jobs.store.job_store import Record

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


class JobNames(NamedRuns):
    """The training jobs of this machine's service."""

    def print_output(self, name: str, follow: bool) -> int:
        """Prints the output of a job; each line with its instance, where there are several."""
        from syrtos_jobs.client import local

        service = _service()
        over = local.find_record(service, name).state.final
        if follow and not over and not local.is_attended(service, name):
            print(
                "syrtos: no service runs: the job goes on when one is started (`syrtos serve`).",
                file=sys.stderr,
            )
        several = len(list((service.home.job(name) / "logs").glob("*.jsonl"))) > 1
        out = Console(highlight=False, markup=False, soft_wrap=True)
        for instance, line in local.follow(service, name, wait=follow):
            if several:
                out.print(f"algo-{instance + 1} | ", style=_COLORS[instance % len(_COLORS)], end="")
            out.print(line)
        return 0

    def stop(self, name: str) -> int:
        """Asks a job to end by SIGTERM, and by SIGKILL after two minutes."""
        from syrtos_jobs.client import local

        local.ask_to_stop(_service(), name)
        return 0


JOB_NAMES = JobNames()


def _list(chosen: argparse.Namespace) -> int:
    from syrtos_jobs.store.job_store import columns

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
    from syrtos_jobs.api.service import describe_job
    from syrtos_jobs.client import local

    print(json.dumps(describe_job(local.find_record(_service(), chosen.name)), indent=2))
    return 0


def _service() -> Service:
    from syrtos_jobs.client import local
    from syrtos_jobs.store.home import Home

    return local.service_of(Home())
