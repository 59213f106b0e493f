"""Executes a request, new or written down by an earlier run, and reports how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos import settings
from syrtos.cli.earlier_run import continue_earlier_run
from syrtos.cli.failure import print_failure
from syrtos.cli.followed_run import forget_submission
from syrtos.cli.generation_starter import GenerationStarter
from syrtos.cli.run_request import (
    KeptRequest,
    RunRequest,
    note,
    request_changes,
)
from syrtos.cli.summary import print_summary, print_table
from syrtos.cli.watching import forget as forget_watched
from syrtos.cli.watching import watching
from syrtos.engines.engine import BY_SCHEDULER, STOPPED
from syrtos.errors import ConfigurationError
from syrtos.launch import generations, limits
from syrtos.launch.membership import Membership
from syrtos.launch.outcome import End
from syrtos.launch.plan import Machine
from syrtos.launch.processes.signalling import answering_signals
from syrtos.launch.processes.standard_input import has_data, input_descriptor
from syrtos.launch.processes.standby import Standby
from syrtos.launch.remote.here import is_here
from syrtos.launch.run_lock import LOCK, taking_run_lock
from syrtos.launch.snapshots import AgentSnapshots, LocalSnapshots
from syrtos.launch.spec import Host, Spec
from syrtos.launch.supervise import supervise
from syrtos.launch.terminal import output, streams
from syrtos.observe import steady
from syrtos.observe.clock import process_age
from syrtos.observe.unrecorded import Unrecorded
from syrtos.report.live_progress import showing_progress
from syrtos.run_dir import RunDir

if TYPE_CHECKING:
    from syrtos.launch.processes.zygote_process import EarlyStart
    from syrtos.launch.remote.agents import Agent, Agents
    from syrtos.launch.remote.carried_call import CarriedCall

# Seconds before a process is made ready to fork the next generation, where no person has asked for
# restarts: short runs are spared it.
_STANDBY_AFTER = 10.0
# Seconds in which a terminal may still take what was printed, after a run was stopped.
_LAST_OUTPUT = 2.0


@dataclasses.dataclass(frozen=True)
class ConnectedHosts:
    """Processes that something else has started on the hosts, and that have connected to this one.

    Attributes:
        here: the name of this machine among the hosts.
        agents: the agents that start workers on the other hosts, by host.
        on_return: gets the function that takes in an agent of a host that was lost and has come
            back.
    """

    here: str
    agents: Mapping[str, Agent]
    on_return: Callable[[Callable[[Agent], None]], None]


def execute(
    request: RunRequest,
    run_dir: Path,
    resume: bool = False,
    connected: ConnectedHosts | None = None,
    changes: Mapping[str, object] | None = None,
    early: EarlyStart | None = None,
) -> int:
    """Runs a request, prints what a person wants to know, and returns the exit code.

    ``changes`` of what was asked for are written down, so that the run is also resumed with them:
    see `request_changes`.
    """
    if not request.spec.hosts and (why := limits.missing_room(request.spec.processes)):
        raise ConfigurationError(why)
    unrecorded = Unrecorded()
    with unrecorded.noting(run_dir):
        _make_folder(run_dir)
    with taking_run_lock(run_dir):
        if not resume and (kept := continue_earlier_run(request, run_dir)):
            request, resume = kept, True
            if request.spec.placed:
                with unrecorded.noting(RunDir(run_dir).request_file):
                    note(run_dir, **request_changes(None, request.spec.hosts))
        if not request.spec.placed:
            # From now on it is this process that is followed, and nothing that was submitted.
            forget_submission(run_dir)
        if not resume:
            forget_watched(run_dir)
        with unrecorded.noting(RunDir(run_dir).request_file):
            if resume:
                note(run_dir, end=None, **(changes or {}))
            else:
                request.write(run_dir)
        with watching(run_dir, request.track, request.metrics_port):
            code = _execute(request, run_dir, resume, connected, early, unrecorded)
    _print_losses(run_dir, unrecorded)
    return code


def _make_folder(run_dir: Path) -> None:
    """Makes the run directory, and its lock.

    Raises:
        ConfigurationError: it can't be written to.
        OSError: its disk is full, which is no reason not to train.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / LOCK).touch()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigurationError(
            f"The run directory {run_dir} can't be written to: {error.strerror}. Name another with"
            " --run-dir."
        ) from error


def _print_losses(run_dir: Path, unrecorded: Unrecorded) -> None:
    """Prints what could not be recorded, and which output of the run was lost, if any was."""
    if missing := unrecorded.sentence():
        output.say(missing)
    if (lost := streams.describe_loss()) and (stream := streams.intact()):
        print(
            f"syrtos: {lost} could not be written to: what workers have printed is in"
            f" {RunDir(run_dir).logs}",
            file=stream,
            flush=True,
        )


def _execute(
    request: RunRequest,
    run_dir: Path,
    resume: bool,
    connected: ConnectedHosts | None,
    early: EarlyStart | None,
    unrecorded: Unrecorded,
) -> int:
    # `syrtos verify` prints a table in place of all that is printed of a run
    verifies = request.spec.options.verifies
    if not verifies:
        number = generations.next_generation(run_dir, resume)
        _announce(request.spec, RunDir(run_dir).generation(number))
    kept = KeptRequest(run_dir, request)
    with contextlib.ExitStack() as ending:
        queues = ending.enter_context(streams.in_background())
        showing = showing_progress(run_dir, request.spec.workers)
        with contextlib.nullcontext() if verifies else showing:
            ended = _run(request, run_dir, resume, connected, early, unrecorded, kept, ending)
        with unrecorded.noting(RunDir(run_dir).request_file):
            kept.note(end=[ended.outcome.end.name, ended.outcome.code])
        if ended.outcome.end is End.STOPPED:
            for queue in queues:
                queue.patience = _LAST_OUTPUT
        if ended.outcome.end is not End.FINISHED:
            return _print_failed(ended, run_dir, request)
        if not verifies:
            print_summary(run_dir, request.full_summary)
        return ended.outcome.code


def _run(
    request: RunRequest,
    run_dir: Path,
    resume: bool,
    connected: ConnectedHosts | None,
    early: EarlyStart | None,
    unrecorded: Unrecorded,
    kept: KeptRequest,
    ending: contextlib.ExitStack,
) -> generations.RunEnd:
    """Runs all generations. Once they have ended, signals do nothing until ``ending`` is closed."""
    spec, policy, began = request.spec, request.policy, steady.now() - process_age()
    machine, env = this_machine(spec.hosts, connected), settings.environment()
    agents = _agents(spec, connected)
    came = list[int]()
    with (
        contextlib.closing(Standby(early)) as standby,
        contextlib.closing(
            Membership(
                spec,
                machine,
                run_dir,
                agents,
                env,
                resume,
                lambda workers: kept.note(**request_changes(workers)),
            )
        ) as members,
    ):
        snapshots = (
            (AgentSnapshots(agents) if agents else LocalSnapshots()) if policy.restarts else None
        )
        if snapshots:
            members.committed = snapshots.committed_number
        supervised = functools.partial(
            supervise,
            grace=spec.grace,
            source=_input(spec),
            standby=standby,
            agents=agents,
            standby_after=0.0 if policy.asked else _STANDBY_AFTER,
            changed=members.reason_to_replace if snapshots else lambda: "",
            came=came,
        )
        call = _carry_call(agents, env)
        starter = GenerationStarter(members, machine, snapshots, supervised, began, unrecorded)
        if snapshots:
            ended = generations.run(
                starter.start,
                snapshots,
                run_dir,
                policy,
                request.seed,
                resume,
                any_batches=request.any_batches,
                gather=members.gather,
                came=came,
            )
        else:
            generations.forget(run_dir)
            ended = generations.RunEnd(starter.start(run_dir, lambda workers: {}), run_dir)
        # A second Ctrl-C would leave out what the first one has begun: the end is written down and
        # explained.
        ending.enter_context(answering_signals(lambda number: None))
        if call and ended.outcome.end is End.FINISHED and (why := call.fetch()):
            output.say(why)
    return ended


def _print_failed(ended: generations.RunEnd, run_dir: Path, request: RunRequest) -> int:
    """Prints how an unfinished run ended, and whether it can go on; returns the exit code."""
    print_table(run_dir)
    # `resume` takes the run's own folder
    shown = run_dir if ended.outcome.end is End.STOPPED else ended.folder
    print_failure(ended.outcome, shown, bool(request.spec.hosts))
    if ended.before and not request.policy.asked:
        print(
            "syrtos: this run was started again before. The last generation but one:"
            f" {ended.before}",
            file=sys.stderr,
        )
    if ended.reason:
        print(f"syrtos: no restart: {ended.reason.rstrip('.')}.", file=sys.stderr)
    # the same batch gives the same numbers
    again_the_same = ended.outcome.has_reported("NonFiniteError")
    if not ended.resumable or again_the_same or not RunDir(run_dir).request_file.exists():
        return ended.outcome.code
    mended = ", once the cause is mended" if ended.reason else ""
    by_scheduler = [ended.outcome.end.name, ended.outcome.code] == BY_SCHEDULER
    # a full disk may have prevented the snapshot that the scheduler's signal asked for
    goes_on = generations.has_snapshot(run_dir) and by_scheduler
    same = ", and so does the same command with this --run-dir" * goes_on
    print(
        f"syrtos: `syrtos resume {shlex.quote(str(run_dir))}` goes on from"
        f" {ended.resumable}{mended}{same}.",
        file=sys.stderr,
    )
    return STOPPED if goes_on else ended.outcome.code


def _carry_call(agents: Agents | None, env: Mapping[str, str]) -> CarriedCall | None:
    """Lets agents get the function that workers call, before they start any; None without one."""
    if agents is None:
        return None
    # only here: as with the agents
    from syrtos.launch.remote.carried_call import CarriedCall

    if call := CarriedCall.of(env):
        before = agents.before_start

        def bring(found: list[Agent]) -> None:
            call.bring(found)
            before(found)

        agents.before_start = bring
    return call


def _agents(spec: Spec, connected: ConnectedHosts | None) -> Agents | None:
    """Returns the agents of a run on hosts; None for a run on this machine alone."""
    if not spec.hosts:
        return None
    # only here: it takes 30 ms to import
    from syrtos.launch.remote.agents import Agents

    agents = Agents(connected.agents if connected else None)
    if connected:
        connected.on_return(agents.take)
    return agents


def _input(spec: Spec) -> int | None:
    """Returns the descriptor of standard input for the workers; workers of other hosts get none."""
    source = input_descriptor()
    if source is not None and spec.hosts and has_data(source):
        print(
            "syrtos: standard input reaches workers of this machine only: with --hosts they find it"
            " empty. Give the script a file's name.",
            file=sys.stderr,
        )
    return None if spec.hosts else source


def _announce(spec: Spec, run_dir: Path) -> None:
    where = ", ".join(host.name for host in spec.hosts) or "this machine"
    servers = spec.options.servers
    and_servers = f" and {servers} parameter server{'s' * (servers > 1)}" if servers else ""
    print(
        f"syrtos: {spec.workers} worker{'s' * (spec.workers > 1)}{and_servers} on {where}, logs in"
        f" {RunDir(run_dir).logs}",
        file=sys.stderr,
    )


def this_machine(hosts: Sequence[Host] = (), connected: ConnectedHosts | None = None) -> Machine:
    """Returns the machine that launches.

    The names among ``hosts`` that mean this machine are known by their addresses, or by what
    `ConnectedHosts` says.
    """
    here = {
        host.name
        for host in hosts
        if (host.name == connected.here if connected else is_here(host.name))
    }
    return Machine(sys.executable, len(os.sched_getaffinity(0)), frozenset(here))
