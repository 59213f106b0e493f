"""`syrtos run`: runs a script on many workers."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from syrtos import settings
from syrtos.cli import engine_runs
from syrtos.cli.execution import ConnectedHosts, execute, this_machine
from syrtos.cli.parsing import Help, folder, number, seconds
from syrtos.cli.run_dirs import absolute
from syrtos.cli.run_request import RunRequest
from syrtos.cli.watching import TRACKERS, all_trackers, check
from syrtos.errors import ConfigurationError
from syrtos.launch.membership import listed_by
from syrtos.launch.plan import make_plan
from syrtos.launch.policy import RestartPolicy
from syrtos.launch.spec import Elastic, Host, Spec, new_run_dir, parse_hosts, read_hostfile
from syrtos.settings import (
    BatchMode,
    CompileUpdate,
    Exchange,
    OnDivergence,
    OnNaN,
    Options,
    ScaleLR,
)

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# The options that `syrtos run -h` shows.
_MOST_NEEDED = (
    "-n", "--hosts", "--on", "--with", "--gpus-per-worker", "--detach", "--run-dir", "--max-restarts", "--min-workers", "--batch", "--sync-batchnorm",
    "--scale-lr", "--shard-update", "--compress", "--track", "-m",
)  # fmt: skip
# Restarts where no number is given.
_RESTARTS = 3


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "run",
        # An option of the script must not be taken for a short form of one of ours.
        allow_abbrev=False,
        add_help=False,
        help="run a training script on many workers",
        description="Run a training script, unchanged, on many workers.",
        epilog=(
            "Every worker of this machine reads the same standard input. A pipe is read at once and"
            " to its end, even if the script does not read it: inside a loop of the shell that"
            " reads lines, add `< /dev/null`."
        ),
    )
    parser.set_defaults(main=main, early=None)
    parser.add_argument("-h", "--help", action=Help, most_needed=_MOST_NEEDED)
    _add_workers(parser)
    parser.add_argument(
        "--run-dir",
        type=folder,
        metavar="DIR",
        help="run directory: logs, ledgers and summary (default: runs/TIME)",
    )
    _add_ends_and_restarts(parser)
    engine_runs.add_to(parser)
    _add_watching(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command instead of running it"
    )
    _add_options(parser)
    parser.add_argument(
        "-m",
        action="store_true",
        dest="module",
        help="run a module instead of a file, as `python -m`",
    )
    # One positional for both: argparse would swallow a `--` between two.
    parser.add_argument(
        "script",
        nargs=argparse.PARSER,
        help="the Python script (or `python script`) and its arguments",
    )


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        type=int,
        dest="workers",
        metavar="N",
        help="number of workers (default: one per slot of `--hosts` or of the allocation, else 1)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--hosts",
        metavar="A:2,B:2",
        help="hosts, and the number of workers on each; reached by ssh",
    )
    where.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same from a file with lines `name slots=2`",
    )
    parser.add_argument(
        "--ssh",
        default="ssh",
        metavar="COMMAND",
        help="command that reaches hosts (default: %(default)s)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            "a variable of this environment that workers of other hosts get too, beside PATH,"
            " PYTHONPATH and those of Keras, its frameworks and MPI"
        ),
    )
    parser.add_argument(
        "--oversubscribe", action="store_true", help="allow more workers than cores"
    )


def _add_ends_and_restarts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace",
        type=seconds,
        default=10.0,
        metavar="S",
        help=(
            "seconds that scripts have to end after a signal, or once a worker has ended early with"
            " exit code 0 (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="R",
        help=(
            "start the workers again, at most R times, when one is killed, crashes, hangs or fails;"
            " training goes on from its last committed step (default: 3 times, not after an error"
            " of the script, and only where a step was committed; 0: never)"
        ),
    )
    parser.add_argument(
        "--min-workers",
        type=int,
        metavar="M",
        help=(
            "follow the hosts: train with as many workers as they have slots, at least M and at"
            " most -n, while hosts are lost and come back"
        ),
    )
    parser.add_argument(
        "--discover",
        metavar="COMMAND",
        help=(
            "a command that prints the hosts of the moment, one to a line (`name:2`); it is run"
            " every 5 s. With --min-workers (default: 1)"
        ),
    )


def _add_watching(parser: argparse.ArgumentParser) -> None:
    watched = parser.add_argument_group("watching")
    watched.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="TRACKER",
        help=f"log the run, from a process of its own, to {TRACKERS}; may be repeated",
    )
    watched.add_argument("--profile", default="", metavar="steps=A:B",
                         help="profile the training steps after step A up to step B, at most 200, of all workers: RUN_DIR/trace.json.gz")  # fmt: skip
    watched.add_argument(
        "--summary",
        choices=("short", "full"),
        default="short",
        help="figures at the end of the run: some ten lines (default), or all",
    )
    watched.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve figures for Prometheus on 127.0.0.1 (0: on a free port)",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = Options()
    group = parser.add_argument_group("training")
    group.add_argument(
        "--batch", choices=get_args(BatchMode), default=defaults.batch,
        help="divide each batch of the script among all workers (default), or give each worker whole batches (as with Horovod)",
    )  # fmt: skip
    group.add_argument(
        "--sync-batchnorm",
        action="store_true",
        help="BatchNormalization over the global batch where workers train on shares by themselves (--sync-every, --ps, --batch per-worker)",
    )
    group.add_argument(
        "--scale-lr",
        choices=get_args(ScaleLR),
        default=defaults.scale_lr,
        help="scale the learning rate with N",
    )
    group.add_argument(
        "--warmup-epochs",
        type=int,
        default=0,
        metavar="E",
        help="epochs of warm-up to the scaled learning rate",
    )
    group.add_argument("--check-every", type=int, default=defaults.check_every, metavar="K",
                       help="compare the replicas' weights every K steps; 0: never (default: every 100, or rarer)")  # fmt: skip
    group.add_argument("--timeout", type=seconds, default=defaults.timeout, metavar="S",
                       help="seconds a worker may wait for the others before the run fails (default: %(default)s)")  # fmt: skip
    group.add_argument("--ps", type=int, default=0, metavar="P", dest="servers",
                       help="number of parameter servers beside the workers, which then update asynchronously")  # fmt: skip
    group.add_argument("--staleness", type=int, metavar="K",
                       help="with --ps: updates by which a worker may be ahead of the slowest; 0: synchronous (default: unlimited)")  # fmt: skip
    group.add_argument("--exchange", choices=get_args(Exchange), default=defaults.exchange,
                       help="sum gradients by MPI, or by the framework's own collectives (default: those on GPUs, else MPI)")  # fmt: skip
    group.add_argument("--on-nan", choices=get_args(OnNaN), default=defaults.on_nan,
                       help="for a gradient that is NaN or infinite, before it is applied: stop the run; skip the batch; warn: apply it, and say "
                       "when the loss is (default)")  # fmt: skip
    group.add_argument("--on-divergence", choices=get_args(OnDivergence), default=defaults.on_divergence,
                       help="stop: end the run when weights differ (default); repair: compare at each snapshot, go on from the last")  # fmt: skip
    group.add_argument("--compile-update", choices=get_args(CompileUpdate), default=defaults.compile_update,
                       help="let XLA compile the optimizer's update, with TensorFlow (default: on CPUs, for 1M parameters or more)")  # fmt: skip
    group.add_argument("--shard-update", action="store_true",
                       help="a worker updates its part of each variable, and keeps the optimizer's state of that part alone (ZeRO stage 1)")  # fmt: skip
    group.add_argument("--sync-every", metavar="H[:RATE[:MOMENTUM]]",
                       help="for slow networks: in `fit`, workers train alone for H steps (e.g. 32), then exchange the change of their weights, instead "
                       "of gradients in each step; the mean change is applied at RATE (default: 1) with Nesterov MOMENTUM (default: 0); see "
                       "docs/slow-networks.md")  # fmt: skip
    group.add_argument("--compress", default=defaults.compress, metavar="CODEC",
                       help="for slow networks: gradients travel as bf16, fp16 or powersgd:R (rank R), and the rest of each is added to the next gradient; "
                       " auto: bf16 where a link is slow enough (default: none)")  # fmt: skip
    group.add_argument("--bucket-mb", type=number, default=defaults.bucket_mb, metavar="MB",
                       help="size of the buckets in which gradients are exchanged (default: %(default)s)")  # fmt: skip


def main(chosen: argparse.Namespace) -> int:
    """Runs the script where it was asked for, and reports."""
    run_dir = absolute(chosen.run_dir or new_run_dir())
    return engine_runs.run_where_asked(chosen, run_dir, functools.partial(_launch, chosen, run_dir))


def _launch(chosen: argparse.Namespace, run_dir: Path, connected: ConnectedHosts | None) -> int:
    """Plans, runs, and reports.

    ``connected`` are processes on the hosts that have connected by themselves.
    """
    elastic = _elastic(chosen)
    hosts = _hosts(chosen)
    spec = Spec(
        program=engine_runs.program_of(chosen),
        workers=_workers(chosen.workers, hosts, elastic),
        hosts=hosts,
        options=_options(chosen, run_dir),
        oversubscribe=chosen.oversubscribe,
        grace=chosen.grace,
        ssh=chosen.ssh,
        forward=tuple(chosen.env),
        elastic=elastic,
        placed=chosen.are_placed,
    )
    plan = make_plan(spec, this_machine(spec.hosts, connected), settings.environment())
    policy = _policy(chosen, spec)
    track = all_trackers(chosen.track, settings.environment())
    check(track, chosen.metrics_port)
    if chosen.dry_run:
        print(plan)
        return 0
    _check_late_options(chosen, spec)
    seed = random.SystemRandom().randrange(2**31)
    backend = settings.environment().get("KERAS_BACKEND")
    request = RunRequest(
        spec,
        policy,
        seed,
        track,
        chosen.metrics_port,
        backend,
        full_summary=chosen.summary == "full",
    )
    return execute(request, run_dir, connected=connected, early=chosen.early)


def _policy(chosen: argparse.Namespace, spec: Spec) -> RestartPolicy:
    """Returns the rules by which workers are started again.

    Raises:
        ConfigurationError: workers are to be started again that can't be.
    """
    given: int | None = chosen.max_restarts
    repair = spec.options.on_divergence == "repair"
    if given is None:
        if spec.elastic is not None:
            # hosts may be lost again and again; those that commit nothing end the run
            return RestartPolicy(sys.maxsize, repair=repair)
        return RestartPolicy(0 if spec.options.servers else _RESTARTS, asked=False, repair=repair)
    if given < 0:
        raise ConfigurationError(f"`--max-restarts` must be 0 or more. Received: {given}.")
    if not given and (spec.elastic or repair):
        raise ConfigurationError(
            "`--max-restarts 0` was given with an option that needs restarts: `--min-workers`,"
            " `--discover` or `--on-divergence repair`."
        )
    if given and spec.options.servers:
        raise ConfigurationError(
            f"`--max-restarts {given}` was given with parameter servers (--ps): snapshots are of"
            " workers that hold the whole state. Leave it out; scripts go on from checkpoints of"
            " their own (`keras.callbacks.BackupAndRestore`)."
        )
    return RestartPolicy(given, repair=repair)


def _elastic(chosen: argparse.Namespace) -> Elastic | None:
    """Returns how the number of workers follows the hosts; None if it is fixed.

    Raises:
        ConfigurationError: the number of workers can't follow the hosts.
    """
    if chosen.min_workers is None and chosen.discover is None:
        return None
    least = 1 if chosen.min_workers is None else chosen.min_workers
    if least < 1 or (chosen.workers is not None and least > chosen.workers):
        raise ConfigurationError(
            f"`--min-workers` must be 1 or more, and at most `-n`. Received: {least}."
        )
    if not (chosen.hosts or chosen.hostfile or chosen.discover):
        raise ConfigurationError(
            "`--min-workers` follows hosts that come and go: name them with `--hosts`, `--hostfile`"
            " or `--discover`."
        )
    if chosen.discover and (chosen.hosts or chosen.hostfile):
        raise ConfigurationError(
            "`--discover` names the hosts: leave out `--hosts` and `--hostfile`."
        )
    check_may_resize(_options(chosen, Path()), "--min-workers and --discover")
    return Elastic(
        least,
        chosen.workers or 0,
        chosen.discover or "",
        str(chosen.hostfile.resolve()) if chosen.hostfile else "",
    )


def check_may_resize(options: Options, what: str) -> None:
    """Refuses a change of the number of workers where the run would compute something else.

    ``what`` names the option or command that asks for the change.

    Raises:
        ConfigurationError: the run would compute something else.
    """
    given = {
        "--batch per-worker": options.batch == "per-worker",
        f"--scale-lr {options.scale_lr}": options.scale_lr != "none",
        "--ps": options.servers > 0,
        "--sync-every": options.sync_every > 0,
        "--compress": options.compress != "none",
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise ConfigurationError(
            f"{what} can't be obeyed with {wrong[0]}: with another number of workers the run would"
            " compute something else."
        )


def _hosts(chosen: argparse.Namespace) -> tuple[Host, ...]:
    if chosen.hosts:
        return parse_hosts(chosen.hosts)
    if chosen.hostfile:
        return read_hostfile(chosen.hostfile)
    return listed_by(chosen.discover, "") if chosen.discover else ()


def _check_late_options(chosen: argparse.Namespace, spec: Spec) -> None:
    """Says that an option of ours after the script is the script's.

    Raises:
        ConfigurationError: the script reads no arguments, so the option was meant for the run.
    """
    words = spec.program.arguments
    late = [number for number, word in enumerate(words) if word in ("-n", "--hosts", "--hostfile")]
    if not late or chosen.workers is not None or spec.hosts:
        return
    # only here: it takes longer to import than all of this file
    from syrtos.cli.script_environment import may_read_arguments

    name, option = spec.program.name, " ".join(words[late[0] : late[0] + 2])
    says = f"`{words[late[0]]}` after the script goes to the script"
    if may_read_arguments(spec.program):
        print(
            f"syrtos: {says}, so this run has one worker. For more write `syrtos run"
            f" {option} {name}`.",
            file=sys.stderr,
        )
        return
    raise ConfigurationError(
        f"{says}, and {name} reads no arguments. Expected: options before the script, `syrtos run"
        f" {option} {name}`. Where something else reads them, `syrtos run -n 1 {name} {option}`."
    )


def _workers(asked: int | None, hosts: tuple[Host, ...], elastic: Elastic | None) -> int:
    slots = sum(host.slots for host in hosts)
    if elastic is not None:
        return min(asked or slots, slots)
    return asked if asked is not None else slots or 1


def _options(chosen: argparse.Namespace, run_dir: Path) -> Options:
    names = {field.name for field in dataclasses.fields(Options)} - {
        "run_dir",
        "verifies",
        "verifies_operations",
        *_OF_LOCAL_STEPS,
    }
    given = {name: getattr(chosen, name) for name in names}
    return Options(run_dir=str(run_dir), **given, **_local_steps(chosen.sync_every))


# The options that the value of --sync-every gives, in its order, with their kinds.
_OF_LOCAL_STEPS: dict[str, type] = {"sync_every": int, "outer_lr": float, "outer_momentum": float}


def _local_steps(text: str | None) -> dict[str, Any]:
    """Returns the options that ``H:RATE:MOMENTUM`` gives.

    Raises:
        ConfigurationError: it is not written so.
    """
    parts = text.split(":") if text else []
    try:
        given = {
            name: kind(part)
            for (name, kind), part in zip(_OF_LOCAL_STEPS.items(), parts, strict=False)
        }
    except ValueError:
        given = {}
    if len(given) < len(parts):
        raise ConfigurationError(
            "`--sync-every` is written H, H:RATE or H:RATE:MOMENTUM, as 32:0.7:0.9. Received:"
            f" {text!r}."
        )
    return given
