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
from syrtos.cli.failure import print_failure
from syrtos.cli.followed_run import forget_submission
from syrtos.cli.run_request import (
    REQUEST,
    KeptRequest,
    RunRequest,
    digest_of_script,
    note,
    read_request,
    request_changes,
)
from syrtos.cli.summary import print_summary, print_table
from syrtos.cli.watching import forget as forget_watched
from syrtos.cli.watching import watching
from syrtos.engines.engine import BY_SCHEDULER, STOPPED
from syrtos.errors import ConfigurationError
from syrtos.json_files import document
from syrtos.launch import generations, limits, lost_workers
from syrtos.launch.membership import Membership
from syrtos.launch.outcome import End, Outcome, end_of
from syrtos.launch.plan import LaunchPlan, Machine, make_plan
from syrtos.launch.processes.claims_memory import folder_in_memory
from syrtos.launch.processes.signalling import answering_signals
from syrtos.launch.processes.standard_input import has_data, input_descriptor
from syrtos.launch.processes.standby import Standby
from syrtos.launch.remote.here import is_here
from syrtos.launch.run_lock import LOCK, taking_run_lock
from syrtos.launch.snapshots import AgentSnapshots, LocalSnapshots, Snapshots
from syrtos.launch.spec import Host, Spec
from syrtos.launch.supervise import supervise
from syrtos.launch.terminal import output, streams
from syrtos.observe import steady
from syrtos.observe.clock import process_age
from syrtos.observe.ledger import forget, launching
from syrtos.observe.unrecorded import Unrecorded
from syrtos.report.live_progress import showing_progress

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
        # A scheduler that queues a job again gives the very same command.
        if not resume and generations.has_snapshot(run_dir):
            if _goes_on(request, run_dir):
                print(
                    f"syrtos: the same run was stopped in {run_dir}, and goes on.", file=sys.stderr
                )
                request, resume = _on_new_hosts(read_request(run_dir), request.spec), True
                if request.spec.placed:
                    with unrecorded.noting(run_dir / REQUEST):
                        note(run_dir, **request_changes(None, request.spec.hosts))
            elif _may_be_forgotten(request, run_dir):
                print(
                    f"syrtos: an earlier run in {run_dir} had not finished: this one begins anew.",
                    file=sys.stderr,
                )
            else:
                raise ConfigurationError(
                    f"The run in {run_dir} {_why_not(request, run_dir)}, and has kept a snapshot:"
                    f" `syrtos resume {shlex.quote(str(run_dir))}` goes on from it. To begin anew"
                    " remove that folder, or name another with --run-dir."
                )
        elif not resume and (run_dir / REQUEST).exists():
            print(
                f"syrtos: {run_dir} holds an earlier run, whose logs and record this one replaces.",
                file=sys.stderr,
            )
        if not request.spec.placed:
            # From now on it is this process that is followed, and nothing that was submitted.
            forget_submission(run_dir)
        if not resume:
            forget_watched(run_dir)
        with unrecorded.noting(run_dir / REQUEST):
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
            f" {run_dir / 'logs'}",
            file=stream,
            flush=True,
        )


def _on_new_hosts(kept: RunRequest, asked: Spec) -> RunRequest:
    """Returns a request that was kept, on the hosts that an engine has chosen this time."""
    if not asked.placed:
        return kept
    hosts = {"hosts": asked.hosts, "ssh": asked.ssh, "placed": True}
    return dataclasses.replace(kept, spec=dataclasses.replace(kept.spec, **hosts))


def _goes_on(request: RunRequest, run_dir: Path) -> bool:
    """Returns whether a run in this folder goes on by the same command, without `syrtos resume`.

    It does if the same script, options and arguments ran here until a scheduler stopped the
    launcher, or its machine was lost; and, however that run ended, where the script has committed a
    state itself.
    """
    found = document(run_dir / REQUEST)
    if request.differences(found):
        return False
    return found.get("end") in (None, BY_SCHEDULER) or generations.is_of_script(run_dir)


def _why_not(request: RunRequest, run_dir: Path) -> str:
    """Returns why the same command does not go on with an unfinished run.

    The text is the end of a sentence about the run.
    """
    found = document(run_dir / REQUEST)
    if not found:
        damaged = f" (its {REQUEST} is damaged)" * (run_dir / REQUEST).exists()
        return f"has not finished{damaged}"
    if different := request.differences(found):
        return f"was begun with other values of: {', '.join(different)}"
    if not (ended := end_of(found)):
        return "has not finished"
    return f"ended by itself or was stopped by a person ({ended[0].value})"


def _may_be_forgotten(request: RunRequest, run_dir: Path) -> bool:
    """Returns whether the snapshot in this folder is one that no person has asked for."""
    policy = document(run_dir / REQUEST).get("policy")
    asked = policy.get("asked", True) if isinstance(policy, dict) else True
    return not (request.policy.asked or asked or generations.is_of_script(run_dir))


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
        _announce(request.spec, generations.generation_folder(run_dir, number))
    kept = KeptRequest(run_dir, request)
    with contextlib.ExitStack() as ending:
        queues = ending.enter_context(streams.in_background())
        showing = showing_progress(run_dir, request.spec.workers)
        with contextlib.nullcontext() if verifies else showing:
            ended = _run(request, run_dir, resume, connected, early, unrecorded, kept, ending)
        with unrecorded.noting(run_dir / REQUEST):
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
        starter = _GenerationStarter(members, machine, snapshots, supervised, began, unrecorded)
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


@dataclasses.dataclass
class _GenerationStarter:
    """Starts the generations of a run, each with the hosts that are there.

    Attributes:
        members: the hosts of the moment.
        machine: the machine that launches.
        snapshots: memory for what workers commit; None where they commit nothing.
        supervised: starts a plan in an environment, and waits for its end.
        began: when the generation that is started next began, s since the epoch; for the first,
            when this process did.
        unrecorded: the files of the run that could not be written.
        new_interpreters: the variable by which workers import their frameworks themselves, once a
            script needed that.
        digest: that of the script, of the generation before; empty before the first.
    """

    members: Membership
    machine: Machine
    snapshots: Snapshots | None
    supervised: Callable[[LaunchPlan, Mapping[str, str]], Outcome]
    began: float
    unrecorded: Unrecorded
    new_interpreters: dict[str, str] = dataclasses.field(default_factory=dict)
    digest: str = ""

    def start(self, folder: Path, variables: Callable[[int], Mapping[str, str]]) -> Outcome:
        """Runs a generation, recorded in ``folder``.

        ``variables`` takes the number of workers, and returns the variables of their environment.
        """
        try:
            spec, without = self.members.begin(
                self.snapshots.committed_number() if self.snapshots else 0
            )
        except ConfigurationError as error:
            return Outcome(End.NOT_STARTED, 1, why=str(error))
        if without:
            output.say(
                f"{', '.join(sorted(without))} can't be reached: their workers run on the other"
                " hosts"
            )
        self._tell_change(spec.program.name)
        outcome = self._run_once(spec, folder, variables(spec.workers), without)
        if outcome.otherwise and outcome.end is not End.STOPPED:
            output.say(
                f"{outcome.otherwise}. The script begins again, and each worker imports its"
                " frameworks by itself."
            )
            # It stays set: the imports guessed from the script's text are wrong in later
            # generations too.
            self.new_interpreters[settings.NEW_INTERPRETERS_VARIABLE] = "first"
            outcome = self._run_once(spec, folder, variables(spec.workers), without)
        self.began = steady.now()
        return outcome

    def _tell_change(self, script: str) -> None:
        """Says that the script is no longer the one with which the run went on so far."""
        before, self.digest = self.digest, digest_of_script(script)
        if before and self.digest != before:
            output.say(
                f"{script} has changed since the run was begun: the workers that start now run it as"
                " it is now, from the last snapshot"
            )

    def _run_once(
        self, spec: Spec, folder: Path, variables: Mapping[str, str], without: frozenset[str]
    ) -> Outcome:
        """Runs the workers of ``spec`` once, ``without`` hosts that are lost."""
        spec = dataclasses.replace(
            spec, options=dataclasses.replace(spec.options, run_dir=str(folder))
        )
        with self.unrecorded.noting(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # An earlier run, or the first try of this generation, may have left its records here.
        forget(folder)
        lost_workers.forget(folder)
        with (
            contextlib.nullcontext({}) if spec.hosts else folder_in_memory() as claims,
            launching(folder, self.began, self.unrecorded) as facts,
        ):
            env = {**settings.environment(), **variables, **claims, **self.new_interpreters}
            try:
                outcome = self.supervised(make_plan(spec, self.machine, env, without), env)
            except OSError as error:
                # A limit of this machine, e.g. of open files: the run has an end, and may be resumed.
                if not (why := limits.explain(f"{type(error).__name__}: {error}")):
                    raise
                outcome = Outcome(End.NOT_STARTED, 1, why=f"{error}. {why}".rstrip(". "))
            facts |= outcome.facts()
        return outcome


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
    if not ended.resumable or again_the_same or not (run_dir / REQUEST).exists():
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
        f" {run_dir / 'logs'}",
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
