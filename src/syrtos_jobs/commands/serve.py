"""`syrtos serve`: runs training jobs for SageMaker's SDKs, on this machine or on cluster nodes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.cli.engine_runs import add_engine, values_of
from syrtos.errors import ConfigurationError
from syrtos_jobs.commands import TITLE as TITLE

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands
    from syrtos_jobs.http.server import Server
    from syrtos_jobs.placement import Placement
    from syrtos_jobs.store.home import Home

PORT = 9470


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "serve",
        help="run training jobs for SageMaker's SDKs, on this machine or a cluster",
        description=(
            "Answers SageMaker's training API, S3 and CloudWatch Logs at one port; jobs run as"
            " processes of this machine, or on nodes of a cluster."
        ),
    )
    parser.set_defaults(main=main)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s); any but loopback needs TLS",
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--capacity",
        type=int,
        metavar="N",
        help=(
            "workers that may run at once (default: number of cores; with --on as many as the"
            " engine has places for)"
        ),
    )
    add_engine(
        parser,
        "what reserves a node for each instance of a job: slurm, kubernetes or ray (default:"
        " instances are processes of this machine). The service's folder (SYRTOS_HOME) must be at"
        " the same path on all nodes",
        "partition=gpu or time=2:00:00",
    )
    parser.add_argument(
        "--gpus-per-instance",
        type=int,
        metavar="G",
        help="with --on: GPUs of each instance (default: 0)",
    )
    parser.add_argument(
        "--restore",
        action="store_true",
        help="put the last good copy in the place of a damaged database, and end",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate, in PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, in PEM")
    parser.add_argument("--files", type=Path, action="append", metavar="DIR",
                        help="folder whose files file:// may name; may be repeated (default: any on loopback, else none)")  # fmt: skip


def main(chosen: argparse.Namespace) -> int:
    """Serves until a signal ends it."""
    from syrtos_jobs.complaints import complain
    from syrtos_jobs.http.server import Server
    from syrtos_jobs.placement import UNLIMITED
    from syrtos_jobs.runner.job_command import cores
    from syrtos_jobs.store.home import Home

    if bool(chosen.tls_cert) != bool(chosen.tls_key) or (
        chosen.capacity is not None and chosen.capacity < 1
    ):
        raise ConfigurationError(
            "`--tls-cert` and `--tls-key` go together, and `--capacity` is 1 or more."
        )
    home = Home()
    if chosen.restore:
        return _restore(home)
    tls = (chosen.tls_cert, chosen.tls_key) if chosen.tls_cert and chosen.tls_key else None
    files = [path.resolve() for path in chosen.files] if chosen.files else None
    placement = _placement(chosen)
    capacity = chosen.capacity or (UNLIMITED if placement.engine else cores())
    server = Server(home, capacity, chosen.host, chosen.port, tls, files, placement)
    try:
        _serve(server, home)
    except KeyboardInterrupt:
        # a person's Ctrl-C: uvicorn raises it again when it has closed its connections
        code = 130
    else:
        code = 0
    complain("ended; running jobs continue, and the next start adopts them")
    return code


def _placement(chosen: argparse.Namespace) -> Placement:
    """Returns where jobs are to run.

    Raises:
        ConfigurationError: there is no such engine, it can't reserve nodes, or options contradict
            each other.
    """
    from syrtos.engines.registry import engine_of
    from syrtos_jobs.placement import Placement

    values = values_of(chosen.engine_values)
    if (chosen.gpus_per_instance or 0) < 0:
        raise ConfigurationError(
            f"`--gpus-per-instance` is 0 or more. Received: {chosen.gpus_per_instance}."
        )
    if chosen.on is None:
        if values or chosen.gpus_per_instance is not None:
            raise ConfigurationError(
                "`--with` and `--gpus-per-instance` say what an engine is asked for: name it with"
                " --on."
            )
        return Placement()
    engine_of(chosen.on).check_jobs(values)
    return Placement(chosen.on, values, chosen.gpus_per_instance or 0)


def _serve(server: Server, home: Home) -> None:
    from syrtos_jobs.complaints import complain
    from syrtos_jobs.http.page import token

    service = server.service
    workers = "workers" if service.limit is None else f"{service.limit} workers at once"
    where = f" on nodes of {service.placement.engine}" * bool(service.placement.engine)
    complain(
        f"serving training jobs at {server.url}, {workers}{where}, in {home.path}\n"
        '  SDKs of this shell:  eval "$(syrtos aws-env)"\n'
        f"  page:                {server.url}/?token={token(home)}"
    )
    server.run()


def _restore(home: Home) -> int:
    """Puts the last good copy of the database in its place.

    Raises:
        ConfigurationError: there is no good copy, or a service or jobs use the database.
    """
    from syrtos_jobs.runner.attempt import LOCK
    from syrtos_jobs.store.home import is_locked, try_lock

    running = [path.parent.name for path in home.jobs.glob(f"*/{LOCK}") if is_locked(path)]
    if running:
        raise ConfigurationError(
            "Jobs are running, and would write into the database that is replaced:"
            f" {', '.join(running)}. Wait for their end, or end them."
        )
    lock = try_lock(home.path / "serving")
    if lock is None:
        raise ConfigurationError(f"A service runs in {home.path}. Stop it first.")
    copy = home.backups.restore() if home.backups else None
    lock.close()
    if copy is None:
        raise ConfigurationError(f"There is no good copy of a database in {home.path / 'backups'}.")
    print(
        f"syrtos: the database is that of {copy} now; jobs that were going on then count as failed",
        file=sys.stderr,
    )
    return 0
