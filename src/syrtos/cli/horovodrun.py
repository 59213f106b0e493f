"""`syrtos horovodrun`, `syrtos smddprun`: the command lines of Horovod's and SageMaker's launchers.

They are translated to `syrtos run`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos import settings
from syrtos.cli import run
from syrtos.cli.parsing import number, seconds
from syrtos.errors import ConfigurationError
from syrtos.launch.program import parse

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# Flags that tuned another engine, or chose one: (names, number of values).
_IGNORED: tuple[tuple[tuple[str, ...], int], ...] = (
    (("--verbose",), 0), (("--disable-cache",), 0), (("--gloo",), 0), (("--mpi",), 0), (("--tcp",), 0),
    (("--autotune",), 0), (("--mpi-threads-disable",), 0), (("--no-mpi-threads-disable",), 0), (("--timeline-mark-cycles",), 0),
    (("--hierarchical-allreduce",), 0), (("--no-hierarchical-allreduce",), 0), (("--hierarchical-allgather",), 0),
    (("--no-hierarchical-allgather",), 0), (("--torus-allreduce",), 0), (("--no-torus-allreduce",), 0),
    (("--stall-check",), 0), (("--log-with-timestamp",), 0), (("--log-without-timestamp",), 0), (("--log-hide-timestamp",), 0),
    (("--prefix-output-with-timestamp", "-prefix-timestamp"), 0), (("--start-timeout",), 1), (("--cycle-time-ms",), 1),
    (("--cache-capacity",), 1), (("--num-nccl-streams",), 1), (("--thread-affinity",), 1), (("--gloo-timeout-seconds",), 1),
    (("--log-level",), 1), (("--mpi-args",), 1), (("--binding-args",), 1),
    (("--network-interfaces", "--network-interface"), 1), (("--autotune-log-file",), 1), (("--autotune-warmup-samples",), 1),
    (("--autotune-steps-per-sample",), 1), (("--autotune-bayes-opt-max-samples",), 1),
    (("--autotune-gaussian-process-noise",), 1), (("--stall-check-warning-time-seconds",), 1), (("--elastic-timeout",), 1),
    (("--blacklist-cooldown-range",), 2),
)  # fmt: skip
_TIMELINE = "HOROVOD_TIMELINE"
_REFUSED = {
    "--slots-per-host": "let the script print `name:slots` for each host",
    "--jsrun": "start `python -m syrtos train.py` by the cluster's own launcher",
    "--config-file": "give its contents as flags",
}


def add_to(commands: Commands) -> None:
    """Adds both subcommands to the parser."""
    for name, origin in (
        ("horovodrun", "Horovod"),
        ("smddprun", "SageMaker's data parallel library"),
    ):
        parser = commands.add_parser(
            name,
            allow_abbrev=False,
            help=f"run a script the way {origin} was started",
            description=(
                f"Run a script the way {origin} was started; `syrtos run` describes the result."
            ),
        )
        parser.set_defaults(main=main)
        _describe(parser)


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-np", "--num-proc", "-n", type=int, dest="workers", metavar="N", help="workers"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", "--host", dest="hosts", metavar="A:2,B:2")
    where.add_argument("-hostfile", "--hostfile", metavar="FILE")
    parser.add_argument("-p", "--ssh-port", type=int)
    parser.add_argument("-i", "--ssh-identity-file", metavar="FILE")
    parser.add_argument("--output-filename", metavar="DIR", help="the run directory")
    parser.add_argument(
        "--timeline-filename", metavar="FILE", help="a trace of exchanges, for Chrome or Perfetto"
    )
    parser.add_argument("--fusion-threshold-mb", type=number, metavar="MB")
    parser.add_argument("--stall-check-shutdown-time-seconds", type=seconds, metavar="S")
    parser.add_argument("--no-stall-check", action="store_true")
    elastic = parser.add_argument_group("elastic runs")
    elastic.add_argument(
        "--min-np", "--min-num-proc", type=int, metavar="M", help="workers at least"
    )
    elastic.add_argument(
        "--max-np", "--max-num-proc", type=int, metavar="N", help="workers at most"
    )
    elastic.add_argument(
        "--host-discovery-script",
        metavar="COMMAND",
        help="prints the hosts of the moment, one to a line (`name:2`)",
    )
    elastic.add_argument("--reset-limit", type=int, metavar="R", help="restarts at most")
    parser.add_argument(
        "--oversubscribe", action="store_true", help="allow more workers than cores"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command instead of running it"
    )
    parser.add_argument("-cb", "--check-build", action="store_true")
    for names, values in _IGNORED:
        kwargs: dict[str, Any] = (
            {"nargs": values} if values else {"action": "append_const", "const": ""}
        )
        parser.add_argument(
            *names, help=argparse.SUPPRESS, dest="ignored_" + names[0].strip("-"), **kwargs
        )
    for name in _REFUSED:
        parser.add_argument(
            name, help=argparse.SUPPRESS, nargs="?", const="", dest="refused_" + name.strip("-")
        )
    parser.add_argument("command_line", nargs=argparse.REMAINDER, help="python train.py ...")


def main(chosen: argparse.Namespace) -> int:
    """Prints which flags are ignored, and runs the translated command."""
    if chosen.check_build:
        print(
            "syrtos: [X] TensorFlow  [X] Keras  [X] MPI (MPICH)  [ ] NCCL  [ ] Gloo  [ ] PyTorch  ["
            " ] MXNet"
        )
        return 0
    given = {name: value for name, value in vars(chosen).items() if value is not None}
    for name, why in _REFUSED.items():
        if "refused_" + name.strip("-") in given:
            raise ConfigurationError(f"{name} can't be obeyed: {why}.")
    ignored = [
        "--" + name.removeprefix("ignored_") for name in given if name.startswith("ignored_")
    ]
    if ignored:
        print(f"syrtos: ignored, as for another engine: {', '.join(ignored)}.", file=sys.stderr)
    if chosen.timeline_filename:
        settings.set_environment({_TIMELINE: str(Path(chosen.timeline_filename).absolute())})
    parser = argparse.ArgumentParser(prog="syrtos")
    run.add_to(parser.add_subparsers())
    words = translate_arguments(chosen)
    return run.main(parser.parse_args(["run", *words], argparse.Namespace(words=words)))


def translate_arguments(chosen: argparse.Namespace) -> list[str]:
    """Returns the arguments of `syrtos run` that mean the same.

    Raises:
        ConfigurationError: the command is no Python script.
    """
    ssh = ["ssh"]
    ssh += ["-p", str(chosen.ssh_port)] if chosen.ssh_port else []
    ssh += ["-i", chosen.ssh_identity_file] if chosen.ssh_identity_file else []
    named = chosen.hosts or chosen.hostfile
    # without hosts the run is on this machine alone, where nothing comes or goes
    follows = bool(chosen.host_discovery_script or (named and chosen.min_np))
    pairs = {
        "-n": chosen.max_np if follows else chosen.workers,
        "--min-workers": (chosen.min_np or chosen.workers) if follows else None,
        "--discover": chosen.host_discovery_script,
        "--max-restarts": chosen.reset_limit,
        "--hosts": chosen.hosts,
        "--hostfile": chosen.hostfile,
        "--run-dir": chosen.output_filename,
        # 0 turns Horovod's fusion off: each tensor is a bucket of its own.
        "--bucket-mb": 1e-6 if chosen.fusion_threshold_mb == 0 else chosen.fusion_threshold_mb,
        "--timeout": (
            86400.0 if chosen.no_stall_check else chosen.stall_check_shutdown_time_seconds or None
        ),
        "--ssh": shlex.join(ssh) if len(ssh) > 1 else None,
        "--env": _TIMELINE if chosen.timeline_filename else None,
    }
    flags = [
        part for name, value in pairs.items() if value is not None for part in (name, str(value))
    ]
    flags += [
        f"--{name}"
        for name in ("oversubscribe", "dry-run")
        if getattr(chosen, name.replace("-", "_"))
    ]
    return [*flags, *script_of(chosen.command_line)]


def script_of(command: Sequence[str]) -> list[str]:
    """Returns the program of a command as `syrtos run` takes it.

    The command is ``python -u train.py --epochs 3`` or ``/usr/bin/python -m mpi4py train.py``, for
    instance.

    Raises:
        ConfigurationError: there is no program in it.
    """
    rest = [*command][command[:1] == ["--"] :]
    if rest and Path(rest[0]).name.startswith("python"):
        # Whichever interpreter the command names: workers run in this environment.
        rest[0] = "python"
    program = parse(rest)
    return [*(("python", *program.flags) if program.flags else ()), *program.words]
