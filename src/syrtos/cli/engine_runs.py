"""`syrtos run --on ENGINE` and `--detach`: runs that an engine takes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from syrtos import settings
from syrtos.cli.execution import ConnectedHosts
from syrtos.cli.followed_run import print_pieces, submit
from syrtos.engines.engine import Engine, EngineRequest, ReachableHosts, Submitted
from syrtos.engines.registry import engine_of
from syrtos.errors import ConfigurationError, SyrtosError
from syrtos.interrupts import exit_code, raise_end_signals, raise_interrupts
from syrtos.launch.program import Program, parse
from syrtos.launch.run_lock import going_on_error, is_going_on
from syrtos.launch.terminal import output

# The word after --on for hosts on each of which this command was started.
PLACED = "placed"
# For launchers none of whose hosts is this machine, whatever their names.
_NOWHERE = ConnectedHosts("", {}, lambda take: None)
_EVERY = 2.0  # seconds between two questions about a run that waits
# Options of this command that the launcher does not get which the engine starts; those with a
# value, and those without.
_WITH_VALUE, _WITHOUT = (
    ("--on", "--with", "--gpus-per-worker", "--run-dir"),
    ("--detach", "--dry-run"),
)


def add_engine(group: argparse._ActionsContainer, engines: str, values: str) -> None:
    """Adds the options that choose an engine, and its own settings.

    ``values`` are examples of those settings.
    """
    group.add_argument("--on", metavar="ENGINE", help=engines)
    group.add_argument(
        "--with",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="engine_values",
        help=f"with --on: an option of that engine alone, e.g. {values}; may be repeated",
    )


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose where a run's processes are placed."""
    group = parser.add_argument_group("where")
    add_engine(
        group,
        "the system that places the workers: slurm, kubernetes, ray; or placed: something has started this"
        " very command on each host, whose variables say which it is (default: this machine or"
        " --hosts; in an allocation of Slurm its nodes)",
        "time=2:00:00 or image=...",
    )
    group.add_argument(
        "--gpus-per-worker",
        type=int,
        default=0,
        metavar="G",
        help="with --on: GPUs that each worker asks the engine for",
    )
    parser.set_defaults(are_placed=False)
    group.add_argument(
        "--detach",
        action="store_true",
        help=(
            "return once the run is submitted; `syrtos status`, `logs` and `stop` RUN_DIR follow it"
        ),
    )


def words_for_launcher(words: Sequence[str], script: Sequence[str]) -> tuple[str, ...]:
    """Returns the words after `syrtos run` without those that choose the engine.

    Args:
        words: all words after `syrtos run`.
        script: the last of them: the script and its arguments.
    """
    options, kept = iter(words[: len(words) - len(script)]), list[str]()
    for word in options:
        if word in _WITH_VALUE:
            next(options, None)
        elif word not in _WITHOUT and word.partition("=")[0] not in _WITH_VALUE:
            kept.append(word)
    return (*kept, *script)


def values_of(texts: Sequence[str]) -> dict[str, str]:
    """Returns the values of `--with NAME=VALUE`, by name.

    Raises:
        ConfigurationError: one is not written so.
    """
    if wrong := [text for text in texts if "=" not in text]:
        raise ConfigurationError(f"`--with` is written NAME=VALUE. Received: {wrong[0]!r}.")
    return dict(text.split("=", 1) for text in texts)


def wanted_of(chosen: argparse.Namespace, run_dir: Path) -> EngineRequest:
    """Returns the run as it was asked for.

    Raises:
        ConfigurationError: `--with` is not NAME=VALUE.
    """
    return EngineRequest(
        workers=chosen.workers,
        gpus=chosen.gpus_per_worker,
        run_dir=run_dir,
        words=words_for_launcher(chosen.words, chosen.script),
        values=values_of(chosen.engine_values),
        python=sys.executable,
        folder=Path.cwd(),
        script=tuple(chosen.script),
    )


def engine_for(chosen: argparse.Namespace) -> Engine | None:
    """Returns the engine that places the run; None for this machine and for hosts that are named.

    Raises:
        ConfigurationError: it is unknown, or options contradict each other.
    """
    env = settings.environment()
    named_hosts = chosen.hosts or chosen.hostfile or chosen.discover
    # A step that has a terminal is a shell in the allocation; another has a part of it.
    in_a_shell = "SLURM_STEP_NUM_TASKS" not in env or "SLURM_PTY_PORT" in env
    if chosen.on is None and not named_hosts and env.get("SLURM_JOB_ID") and in_a_shell:
        return engine_of("slurm")
    if chosen.on and named_hosts:
        raise ConfigurationError(
            f"`--on {chosen.on}` chooses the hosts: leave out --hosts, --hostfile and --discover."
        )
    if chosen.on is None and (chosen.engine_values or chosen.gpus_per_worker):
        raise ConfigurationError(
            "`--with` and `--gpus-per-worker` say what an engine is asked for: name it with --on."
        )
    return engine_of(chosen.on) if chosen.on else None


def program_of(chosen: argparse.Namespace) -> Program:
    """Returns the program that the workers run.

    Raises:
        ConfigurationError: the words name none.
    """
    return parse(["-m", *chosen.script] if chosen.module else chosen.script)


def run_where_asked(
    chosen: argparse.Namespace, run_dir: Path, launch: Callable[[ConnectedHosts | None], int]
) -> int:
    """Runs what was asked for, where it was asked for.

    Args:
        chosen: the options; hosts and the command that reaches them are set in them.
        run_dir: the absolute path of the run directory.
        launch: launches the run from this process, on the hosts of the options.

    Returns:
        The exit code.
    """
    if chosen.on == PLACED:
        raise_interrupts()
        # only here: with what it needs it takes 30 ms to import
        from syrtos.cli.meeting import meet

        return meet(chosen, launch)
    engine = engine_for(chosen)
    if engine is None and (not chosen.detach or chosen.dry_run):
        return launch(None)
    # What an engine has begun is to be taken back.
    raise_interrupts()
    if chosen.early:
        chosen.early.end()
    program_of(chosen).check_syntax()
    wanted = wanted_of(chosen, run_dir)
    if engine is not None:
        wanted.check(engine.settings, engine.name)
    reached = None if engine is None or chosen.detach else engine.reach(wanted)
    if reached is not None:
        return _reach(chosen, reached, launch)
    if engine is None or (chosen.detach and engine.reach(wanted) is not None):
        on = () if engine is None else ("--on", engine.name, *_values_again(chosen))
        wanted = dataclasses.replace(wanted, words=(*on, *wanted.words), values={})
        engine = engine_of("background")
    if chosen.dry_run:
        files = engine.files(wanted)
        for name, text in files.items():
            print(f"# {name}\n{text}" if len(files) > 1 else text, end="")
        return 0
    return _submit(engine, wanted, chosen.detach)


def _values_again(chosen: argparse.Namespace) -> Iterator[str]:
    for text in chosen.engine_values:
        yield from ("--with", text)
    if chosen.gpus_per_worker:
        yield from ("--gpus-per-worker", str(chosen.gpus_per_worker))


def _reach(
    chosen: argparse.Namespace,
    reached: AbstractContextManager[ReachableHosts],
    launch: Callable[[ConnectedHosts | None], int],
) -> int:
    with reached as found:
        chosen.are_placed = True
        if found.discover and (chosen.min_workers is not None or not found.hosts):
            chosen.discover = found.discover
        elif found.hosts:
            chosen.hosts = ",".join(f"{host.name}:{host.slots}" for host in found.hosts)
        if found.command:
            chosen.ssh = found.command
        return launch(_NOWHERE if found.is_for_all else None)


# -- runs that were submitted ----------------------------------------------------------------------


def _submit(engine: Engine, wanted: EngineRequest, detach: bool) -> int:
    if is_going_on(wanted.run_dir):
        raise going_on_error(wanted.run_dir)
    facts = submit(wanted.run_dir, engine.name, lambda: engine.submit(wanted))
    if detach:
        return print_submitted(wanted.run_dir)
    return follow(engine.submitted_run(facts))


def print_submitted(run_dir: Path) -> int:
    """Prints how a run that was submitted is followed, and returns the exit code."""
    name = shlex.quote(str(run_dir))
    print(
        f"syrtos: submitted: `syrtos status {name}` says how it is, `syrtos logs -f {name}` what it"
        f" prints, `syrtos stop {name}` ends it",
        file=sys.stderr,
    )
    print(run_dir)
    return 0


def follow(submitted: Submitted) -> int:
    """Prints what a run prints, and why it waits; Ctrl-C, SIGTERM and SIGHUP end it.

    Returns:
        The run's exit code.
    """
    over = threading.Event()
    threading.Thread(target=_tell_waiting, args=(submitted, over), daemon=True).start()
    raise_end_signals()
    try:
        print_pieces(submitted.output(follow=True))
    except KeyboardInterrupt as error:
        submitted.stop()
        with contextlib.suppress(OSError):  # the terminal is gone
            output.say("ends the run")
        try:
            print_pieces(submitted.output(follow=True), silent=True)
        except KeyboardInterrupt:
            submitted.stop(at_once=True)
        return exit_code(error)
    finally:
        over.set()
    state = submitted.state()
    if state.why:
        output.say(state.why)
    return state.code if state.code is not None else 0 if state.phase == "finished" else 1


def _tell_waiting(submitted: Submitted, over: threading.Event) -> None:
    told = ""
    while not over.wait(_EVERY):
        try:
            state = submitted.state()
        except SyrtosError:
            # an engine that does not answer for a moment; whoever reads the output is told
            continue
        if state.phase == "waiting" and state.why and state.why != told:
            output.say(state.why)
            told = state.why
