"""Runs a plan to its end, and leaves nothing behind.

The module passes output on, listens to the workers, and forwards signals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from syrtos.launch.hangs import STOPPED, TRACED, Hangs
from syrtos.launch.outcome import End, Facts, Outcome, describe_exit, judge
from syrtos.launch.plan import LaunchPlan
from syrtos.launch.process_engine import ProcessEnd, ProcessEngine
from syrtos.launch.processes import local, signalling
from syrtos.launch.processes.standard_input import copying_input, is_pipe_with_data
from syrtos.launch.processes.standby import Imports, Standby
from syrtos.launch.terminal import output
from syrtos.launch.terminal.output import Listener, Pump
from syrtos.launch.waits import Waits
from syrtos.observe import steady
from syrtos.settings import INPUT_VARIABLE, SUPERVISED_VARIABLE

if TYPE_CHECKING:
    from syrtos.launch.remote.agents import Agents


def supervise(
    plan: LaunchPlan,
    env: Mapping[str, str],
    grace: float,
    source: int | None = None,
    standby: Standby | None = None,
    agents: Agents | None = None,
    standby_after: float = 0.0,
    changed: Callable[[], str] = lambda: "",
    came: list[int] | None = None,
) -> Outcome:
    """Starts the plan and waits for its end.

    SIGINT and SIGTERM (also for what schedulers send) are passed to the scripts, which have
    ``grace`` seconds; a second signal kills at once.

    Args:
        source: a descriptor that every worker of this machine gets a copy of as its standard input;
            None: they have nothing to read.
        standby: the zygote that workers are forked from, once it is ready; it gets ready when they
            have imported their frameworks.
        agents: the agents of the run, where the plan has any.
        standby_after: seconds for which the standby is left alone at first: getting ready takes a
            core for some seconds.
        changed: returns why other workers are to take the place of these, as a sentence; empty as
            long as they are not.
        came: signals that have come before this call, and that no one has answered; those that come
            while it runs are added, and taken out when they are answered.
    """
    # Every wait below looks at them: a process that does not answer must not make this one deaf.
    came = [] if came is None else came
    shares_import = standby is not None and not (source is not None and is_pipe_with_data(source))
    with (
        signalling.answering_signals(came.append),
        copying_input(source, plan.processes) as inputs,
    ):
        ours = {SUPERVISED_VARIABLE: "1", INPUT_VARIABLE: inputs, **steady.variables()}
        env = {**env, **plan.environment, **ours}
        if standby and (agents or not shares_import):
            standby.skip()
        if agents is None:
            # A script that begins again, as it may then, would find a pipe empty.
            if standby and shares_import and not _await_imports(standby, plan, env, came):
                return judge(Facts(processes=plan.processes, stopped_by=came[0]))
            start = local.start
            if standby:
                start = functools.partial(standby.start, over=lambda: bool(came))
            engine = local.Local(plan.groups, plan.nodes, env, start, whole=not plan.reports)
        else:
            # only here: it takes 30 ms to import, and a run of one machine has no use for it
            from syrtos.launch.remote.hosts import Hosts

            engine = Hosts(plan, env, agents)
        prepare = agents.prepare if agents else _prepare_standby(standby, env)
        # A scheduler stops all hosts of a run at once, each of which passes the signal on to this
        # process; on one host its shell does.
        same_stop = _SAME_STOP_HERE if agents is None else _SAME_STOP
        return _Supervisor(
            plan, engine, env, grace, prepare, standby_after, changed, same_stop, came
        ).run()


def _await_imports(
    standby: Standby, plan: LaunchPlan, env: Mapping[str, str], came: Sequence[int]
) -> bool:
    """Waits until the workers can be forked; returns False where a signal has come before."""
    standby.begin(plan.groups[0].command, env, plan.processes)
    what = f"importing {', '.join(standby.frameworks)}, once for all workers"
    with output.show_wait(what) if standby.frameworks else contextlib.nullcontext():
        standby.settle(lambda: bool(came))
    return not came


def _prepare_standby(standby: Standby | None, env: Mapping[str, str]) -> Callable[[Imports], None]:
    return lambda imports: standby.prepare(imports, env) if standby else None


class _Supervisor:
    def __init__(
        self,
        plan: LaunchPlan,
        engine: ProcessEngine,
        env: Mapping[str, str],
        grace: float,
        prepare: Callable[[Imports], None],
        prepare_after: float,
        changed: Callable[[], str],
        same_stop: float,
        signals: list[int],
    ) -> None:
        self._plan = plan
        self._facts = Facts(processes=plan.processes, spared=plan.spared)
        self._grace = grace
        self._signals = signals  # that have come and are not passed on yet
        self._kill_at: float | None = None
        self._stopped_at = 0.0
        self._same_stop = same_stop
        # processes whose last words are still passed on
        self._ended: list[ProcessEnd] = []
        # ranks whose processes have ended, or are about to
        self._over: set[int] = set()
        self._waits = Waits()
        self._hangs = Hangs(self._waits, engine.vitals)
        self._quiet = env.get("TF_CPP_MIN_LOG_LEVEL") != "0"  # 0 asks for all lines
        self._prepare, self._prepare_at = prepare, time.monotonic() + prepare_after
        self._imports: Imports | None = None
        self._changed = changed
        self._otherwise = ""
        self._engine = engine
        self._pumps: dict[int, tuple[Pump, ...]] = {}

    def run(self) -> Outcome:
        self._run()
        # a signal that came while workers were ended has stopped the run too
        if self._signals and self._facts.unfinished and self._facts.stopped_by is None:
            self._facts.stopped_by = self._signals[0]
        self._pass_the_rest_on()
        found = dataclasses.replace(judge(self._facts), otherwise=self._otherwise)
        if found.end is End.NOT_STARTED and found.rank is not None:
            said = b"".join(pump.last_said for pump in self._pumps[found.rank])
            found = dataclasses.replace(found, said=said.decode(errors="replace"))
        return found

    def _run(self) -> None:
        try:
            listener = Listener(self._on_event, self._quiet)
            for rank, pipes in self._engine.outputs.items():
                self._pumps[rank] = (
                    Pump(pipes.out, sys.stdout, listener),
                    Pump(pipes.err, sys.stderr, listener),
                )
            with signalling.passing_pauses_on(self._pass_on) as pause:
                self._wait(pause)
        finally:
            self._engine.kill()

    # -- waiting and ending --------------------------------------------------------------------

    def _wait(self, pause: Callable[[], None]) -> None:
        while self._engine.runs() or self._ended or self._awaits_signal():
            pause()
            # not where they come: another may be sending to an agent there
            while self._signals:
                self._on_signal(self._signals.pop(0))
            self._ended += self._engine.wait(0.02)
            while self._ended and self._is_heard(self._ended[0]):
                self._on_end(self._ended.pop(0))
            if self._imports is not None and time.monotonic() >= self._prepare_at:
                self._prepare(self._imports)
                self._imports = None
            if self._facts.fatal and self._waits.all_wait(set(self._facts.unfinished) - self._over):
                # all wait for a worker that is gone: none has anything to write any more
                self._end_soon(0.0)
            if notice := self._waits.notice(self._facts.unfinished):
                output.say(f"{notice}. {self._states()}")
            if (
                self._kill_at is None
                and (hung := self._hangs.find_hanging(self._facts.unfinished))
                and self._all_is_heard()
            ):
                self._give_up(hung)
            # Where a worker has finished, the others are about to.
            if self._kill_at is None and not self._facts.finished and (why := self._changed()):
                self._facts.replaced = why
                self._end_soon(0.0)
            if self._kill_at and time.monotonic() > self._kill_at:
                return

    def _is_heard(self, ended: ProcessEnd) -> bool:
        """Returns whether all that a worker has said before its end is known."""
        return all(pump.is_drained() for pump in self._pumps[ended.rank])

    def _on_end(self, ended: ProcessEnd) -> None:
        """Deals with the end of a worker.

        The first worker that ends otherwise than by its script's end is the reason why the others
        are ended.
        """
        facts, rank = self._facts, ended.rank
        self._over.add(rank)
        if ended.code == 0 and not self._plan.reports:
            facts.finished.add(rank)
        if (
            facts.stopped_by is not None
            or facts.fatal is not None
            or (ended.code == 0 and rank in facts.finished)
        ):
            return
        if rank in facts.spared:
            self._on_loss(ended)
            return
        self._blame(ended)
        self._end_soon(self._grace if ended.code == 0 else self._seconds_for_news(ended))

    def _seconds_for_news(self, ended: ProcessEnd) -> float:
        """Returns the seconds in which more may be heard about why a worker has ended."""
        # An error that all workers share is reported by the others in the same moment, and a
        # scheduler's SIGTERM to all processes of a run comes to this one too.
        reported = any(failure["rank"] == ended.rank for failure in self._facts.failures)
        return _LAST_REPORTS if reported or ended.code == -signal.SIGTERM else 0.0

    def _awaits_signal(self) -> bool:
        """Returns whether the SIGTERM that has ended a worker may be about to come here too."""
        facts = self._facts
        by_signal = facts.fatal is not None and facts.fatal.code == -signal.SIGTERM
        return by_signal and facts.stopped_by is None

    def _blame(self, ended: ProcessEnd) -> None:
        """Takes a worker's end for the cause of the run's end.

        It does not if another end or a report came first.
        """
        # The others may report too what follows from the first end, as broken connections.
        facts = self._facts
        reported = any(failure["rank"] not in facts.lost for failure in facts.failures)
        if facts.fatal is None and not reported and ended.rank not in facts.interrupted:
            facts.fatal = ended

    def _on_loss(self, ended: ProcessEnd) -> None:
        """Records the death of a worker that the others go on without."""
        if self._kill_at is not None:
            # The run is being ended, and that is what it has died of.
            return
        self._facts.lost[ended.rank] = ended
        self._engine.note_death(ended.rank)
        output.say(
            f"rank {ended.rank} {ended.why or describe_exit(ended.code)} before its script had come"
            " to its end. Its last batch is lost; the others go on. Its log may say why."
        )

    def _end_soon(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _pass_the_rest_on(self) -> None:
        """Passes on what workers have printed last, for some seconds at most."""
        # a child of a script may hold the pipe for as long as it likes
        deadline = time.monotonic() + _LAST_OUTPUT
        pumps = [pump for pair in self._pumps.values() for pump in pair]
        for pump in pumps:
            pump.join(max(deadline - time.monotonic(), 0.0))
        # a progress bar, or the terminal's own ^C
        if self._facts.stopped_by == signal.SIGINT or any(pump.line_is_open for pump in pumps):
            output.end_line()

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if self._facts.stopped_by is not None:
            if (
                signalling.stop_signal(number) != signal.SIGTERM
                or now - self._stopped_at >= self._same_stop
            ):
                # A second signal: a person wants no more grace for the scripts.
                self._end_soon(0.0)
            return
        self._stopped_at = now
        self._facts.stopped_by = number
        self._kill_at = time.monotonic() + self._grace
        self._engine.signal(signalling.stop_signal(number))

    def _pass_on(self, number: int) -> None:
        """Sends a signal to workers, once there are any."""
        if self._facts.workers:
            self._engine.signal(number)

    # -- waits ---------------------------------------------------------------------------------

    def _states(self) -> str:
        """Describes in sentences what the awaited workers are doing, and what follows."""
        awaited = self._waits.awaited_ranks(self._facts.unfinished)
        states = [f"Rank {rank} is {self._hangs.state(rank)}." for rank in awaited]
        if all(self._hangs.may_go_on(rank) for rank in awaited):
            return " ".join(
                [*states, "The run ends after `--timeout`, with the stack of each rank in its log."]
            )
        return " ".join([*states, "The run ends now unless that has changed."])

    def _all_is_heard(self) -> bool:
        """Returns whether no sign of life is held up by a terminal that takes no output."""
        return all(pump.is_drained() for pair in self._pumps.values() for pump in pair)

    def _give_up(self, hung: list[int]) -> None:
        """Ends a run in which nothing runs in a worker that others wait for.

        Every rank that can writes its stack into its log.
        """
        self._facts.hung = {rank: self._hangs.state(rank) for rank in hung}
        self._engine.signal(signal.SIGUSR1)
        self._end_soon(_LAST_REPORTS)

    def _on_stalled(self) -> None:
        """Notes which workers were awaited when a worker has waited too long, and ends the run.

        Every rank writes its stack into its log.
        """
        # the first to give up knows: those that follow may have come by now
        if not self._facts.hung:
            awaited = self._waits.awaited_ranks(self._facts.unfinished)
            states = {rank: self._hangs.state(rank) for rank in awaited}
            stopped = {rank: state for rank, state in states.items() if state in (STOPPED, TRACED)}
            self._facts.hung = stopped or states
        self._engine.signal(signal.SIGUSR1)

    # -- listening -----------------------------------------------------------------------------

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            self._facts.workers[event["rank"]] = event
        elif event["kind"] == "failed":
            self._facts.failures.append({**self._facts.workers.get(event["rank"], {}), **event})
        elif event["kind"] == "finished":
            self._facts.finished.add(event["rank"])
        elif event["kind"] == "left":
            self._on_left(event["rank"], event["code"])
        elif event["kind"] == "interrupted":
            self._facts.interrupted.append(event["rank"])
            # All that end by it name the same rank, whichever is the first to report.
            if self._facts.interrupted_by is None:
                self._facts.interrupted_by = event["by"]
        elif event["kind"] == "waiting" and not self._facts.spared:
            if event["call"]:
                self._waits.begin(event["rank"], event["watchdog"], event["call"], event["seconds"])
            else:
                self._waits.end(event["rank"], event["watchdog"])
        elif event["kind"] == "imported":
            self._imports = Imports(event["modules"], event["variables"])
        elif event["kind"] == "imported otherwise":
            self._otherwise = event["text"]
            self._end_soon(0.0)
        elif event["kind"] == "alive":
            self._waits.alive(event["rank"], event["position"])
        elif event["kind"] == "lingers":
            output.say(
                f"rank {event['rank']} has come to the end of its script, and waits for the"
                f" script's own threads to end: {event['threads']}"
            )
        elif event["kind"] == "serves":
            self._waits.serves(event["rank"])
        elif event["kind"] == "stalled" and not self._facts.spared:
            # those wait for servers only
            self._on_stalled()

    def _on_left(self, rank: int, code: int) -> None:
        """Deals with a worker that is about to end its process, by `os._exit`."""
        facts = self._facts
        if rank in facts.spared or rank in facts.finished or facts.stopped_by is not None:
            return
        self._over.add(rank)
        self._blame(ProcessEnd(rank, code))
        # The others may be about to end alike, and still write what they have.
        self._end_soon(_LAST_REPORTS if code else self._grace)


# seconds within which SIGTERM, sent to several hosts of a run, or to all processes of one host,
# counts as one
_SAME_STOP, _SAME_STOP_HERE = 5.0, 1.0
_LAST_REPORTS = 1.0  # seconds in which other workers may report a failure too
_LAST_OUTPUT = 5.0
