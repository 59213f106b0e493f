"""`syrtos run`: a script on many workers."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any, get_args

from syrtos import settings
from syrtos.cli.execution import Met, Request, execute, this_machine
from syrtos.errors import ConfigurationError
from syrtos.launch.plan import make_plan
from syrtos.launch.policy import Policy
from syrtos.launch.program import parse
from syrtos.launch.spec import Host, Spec, new_run_dir, parse_hosts, read_hostfile
from syrtos.settings import BatchMode, Exchange, OnNaN, Options, ScaleLR


def add_to(commands: Any) -> None:
    """Describes the subcommand."""
    parser = commands.add_parser(
        "run",
        allow_abbrev=False,  # the script's options are not ours
        help="run a training script on many workers",
        description="Run a training script, unchanged, on many workers.",
        epilog="Every worker of this machine reads the same standard input. A pipe is read at once and to its end, even if the script "
        "does not read it: inside a loop of the shell that reads lines, add `< /dev/null`.",
    )
    parser.set_defaults(main=main)
    parser.add_argument(
        "-n", type=int, dest="workers", metavar="N", help="number of workers (default: one per slot, or 1)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A:2,B:2", help="hosts, and the number of workers on each; reached by ssh")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help="the same from a file with lines `name slots=2`")
    parser.add_argument(
        "--ssh", default="ssh", metavar="COMMAND", help="command that reaches hosts (default: %(default)s)"
    )
    parser.add_argument("--oversubscribe", action="store_true", help="allow more workers than cores")
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="run directory: logs, ledgers and summary (default: runs/TIME)"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds that scripts have to end after a signal, or once a worker has ended early with exit code 0 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="R",
        default=0,
        help="start the workers again, at most R times, when one is killed, crashes or fails; training goes on from its last committed step "
        "(default: 0, never)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    _add_options(parser)
    parser.add_argument("-m", action="store_true", dest="module", help="run a module instead of a file, as `python -m`")
    # One positional for both: argparse would swallow a `--` between two.
    parser.add_argument(
        "script", nargs=argparse.PARSER, help="the Python script (or `python script`) and its arguments"
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = Options()
    group = parser.add_argument_group("training")
    group.add_argument(
        "--batch", choices=get_args(BatchMode), default=defaults.batch,
        help="a batch of the script is split over all workers (default), or is the batch of each worker (as with Horovod)",
    )  # fmt: skip
    group.add_argument(
        "--sync-batchnorm", action="store_true", help="BatchNormalization statistics over the global batch"
    )
    group.add_argument(
        "--scale-lr", choices=get_args(ScaleLR), default=defaults.scale_lr, help="scale the learning rate with N"
    )
    group.add_argument(
        "--warmup-epochs", type=int, default=0, metavar="E", help="epochs of warm-up to the scaled learning rate"
    )
    group.add_argument("--check-every", type=int, default=defaults.check_every, metavar="K",
                       help="compare the replicas' weights every K steps; 0: never (default: every 100, or rarer)")  # fmt: skip
    group.add_argument("--timeout", type=float, default=defaults.timeout, metavar="S",
                       help="seconds a worker may wait for the others before the run fails (default: %(default)s)")  # fmt: skip
    group.add_argument("--ps", type=int, default=0, metavar="P", dest="servers",
                       help="number of parameter servers beside the workers, which then update asynchronously")  # fmt: skip
    group.add_argument("--staleness", type=int, metavar="K",
                       help="with --ps: updates by which a worker may be ahead of the slowest; 0: synchronous (default: unlimited)")  # fmt: skip
    group.add_argument("--exchange", choices=get_args(Exchange), default=defaults.exchange,
                       help="what sums gradients: MPI, or the framework's own collectives (default: those on GPUs and with JAX, else MPI)")  # fmt: skip
    group.add_argument("--on-nan", choices=get_args(OnNaN), default=defaults.on_nan,
                       help="stop: end the run before a gradient that is NaN or infinite is applied; warn: say when the loss is (default)")  # fmt: skip
    group.add_argument("--bucket-mb", type=float, default=defaults.bucket_mb, metavar="MB",
                       help="size of the buckets in which gradients are exchanged (default: %(default)s)")  # fmt: skip


def main(chosen: argparse.Namespace, met: Met | None = None) -> int:
    """Plans, runs, and reports. ``met``: where processes on the hosts have come by themselves."""
    hosts = parse_hosts(chosen.hosts) if chosen.hosts else read_hostfile(chosen.hostfile) if chosen.hostfile else ()
    run_dir = (chosen.run_dir or new_run_dir()).resolve()
    spec = Spec(
        program=parse(["-m", *chosen.script] if chosen.module else chosen.script),
        workers=_workers(chosen.workers, hosts),
        hosts=hosts,
        options=_options(chosen, run_dir),
        oversubscribe=chosen.oversubscribe,
        grace=chosen.grace,
        ssh=chosen.ssh,
    )
    plan = make_plan(spec, this_machine(spec.hosts, met), settings.environment())
    policy = _policy(chosen, spec)
    if chosen.dry_run:
        print(plan)
        return 0
    _warn_of_one_worker(chosen, spec)
    return execute(Request(spec, policy, seed=random.SystemRandom().randrange(2**31)), run_dir, met=met)


def _policy(chosen: argparse.Namespace, spec: Spec) -> Policy:
    """Raises ConfigurationError where workers are to be started again that can't be."""
    given = chosen.max_restarts
    if given < 0:
        raise ConfigurationError(f"`--max-restarts` must be 0 or more. Received: {given}.")
    if given and spec.options.servers:
        raise ConfigurationError(
            f"`--max-restarts {given}` was given with parameter servers (--ps): snapshots are of workers that hold the whole state. Leave it out; scripts "
            "go on from checkpoints of their own (`keras.callbacks.BackupAndRestore`)."
        )
    return Policy(given)


def _warn_of_one_worker(chosen: argparse.Namespace, spec: Spec) -> None:
    late = [word for word in spec.program.arguments if word in ("-n", "--hosts", "--hostfile")]
    if late and chosen.workers is None and not spec.hosts:
        print(
            f"syrtos: `{late[0]}` stands after the script and is an argument of the script; this run has one worker. For more write "
            f"`syrtos run {late[0]} ... {spec.program.name}`.",
            file=sys.stderr,
        )


def _workers(asked: int | None, hosts: tuple[Host, ...]) -> int:
    return asked if asked is not None else sum(host.slots for host in hosts) or 1


def _options(chosen: argparse.Namespace, run_dir: Path) -> Options:
    return Options(
        batch=chosen.batch,
        sync_batchnorm=chosen.sync_batchnorm,
        on_nan=chosen.on_nan,
        scale_lr=chosen.scale_lr,
        warmup_epochs=chosen.warmup_epochs,
        check_every=chosen.check_every,
        timeout=chosen.timeout,
        run_dir=str(run_dir),
        bucket_mb=chosen.bucket_mb,
        exchange=chosen.exchange,
        servers=chosen.servers,
        staleness=chosen.staleness,
    )
