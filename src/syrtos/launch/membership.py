"""The hosts of a run and the number of its workers, from one generation to the next.

Hosts are lost, come back, and are added; `syrtos resize` asks for another number of workers. A run
with a fixed number of workers puts those of a lost host on the others. An elastic one
(`--min-workers`) has as many workers as its hosts have slots.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.checkpoint import durable
from syrtos.errors import ConfigurationError
from syrtos.launch import limits
from syrtos.launch.plan import Machine, agent_command, make_plan
from syrtos.launch.spec import Host, Spec, parse_lines, read_hostfile
from syrtos.launch.terminal import output

if TYPE_CHECKING:
    from syrtos.launch.remote.agents import Agent, Agents

# Where `syrtos resize` asks, in the run directory, and where each question is answered.
_RESIZE, _TAKEN = "resize.json", ".resize.json"
_LOOK = 0.5  # seconds
# Seconds between two times that the list of hosts is read, and for its command.
_LIST_EVERY, _LONGEST_LIST = 5.0, 10.0
# Seconds in which a host that was lost may come back before a generation begins without it; after
# which one that refuses is asked again, and while a generation runs.
_HOSTS_COME_BACK, _TRY_AGAIN, _TRY_LATER = 10.0, 3.0, 30.0
# Seconds in which hosts may come where there are too few for the run.
_ENOUGH_COME = 600.0
# Seconds that a generation has before more workers take its place, or before it is said that this
# has to wait.
_SETTLED = 10.0


class Membership:
    """The hosts and workers that take part in a run.

    Attributes:
        agents: the agents of the run; None on this machine alone.
        committed: returns the number of the last snapshot.
    """

    def __init__(
        self,
        spec: Spec,
        machine: Machine,
        run_dir: Path,
        agents: Agents | None,
        env: Mapping[str, str],
        resumes: bool = False,
        resized: Callable[[int], None] = lambda workers: None,
    ) -> None:
        """Begins to watch.

        Args:
            spec: the request.
            machine: the machine that launches.
            run_dir: the run directory.
            agents: the agents on the hosts; `close` ends them.
            env: the environment of agents that are started while a generation runs.
            resumes: whether it is to do without hosts that don't answer from the beginning on.
            resized: called with the new number when `syrtos resize` has asked for one.
        """
        self.agents = agents
        self._spec, self._machine, self._run_dir, self._env, self._resized = (
            spec,
            machine,
            run_dir,
            env,
            resized,
        )
        self._elastic = spec.elastic
        self._asks_first = resumes or spec.elastic is not None
        self._listed = spec.hosts
        self._most = (
            float(spec.workers) if self._elastic is None else self._elastic.most or math.inf
        )
        self._running: Spec | None = None
        self._reached, self._began = 0, 0.0
        # hosts of generations that have committed something
        self._known: set[str] = set()
        # hosts that came to a generation which then committed nothing
        self._avoided: set[str] = set()
        self._lost = frozenset[str]()  # hosts without which the generation runs
        # why the generation of this spec is to be replaced
        self._wish: tuple[Spec | None, str] = (None, "")
        self.committed: Callable[[], int] = lambda: 0
        self._next_list = self._next_try = 0.0
        self._ripens = math.inf  # when it is said that a wish has to wait
        self._told = ""
        self._over = threading.Event()
        # what an earlier run in this folder was asked is not for this one
        for path in (run_dir / _RESIZE, run_dir / _TAKEN, *run_dir.glob(".resize-[0-9]*.json")):
            path.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._watch, name="syrtos-membership", daemon=True)
        self._thread.start()

    # -- between two generations -----------------------------------------------------------------

    def begin(self, reached: int) -> tuple[Spec, frozenset[str]]:
        """Returns the request for the generation that begins, and the hosts in it that are lost.

        Lost hosts get no workers.

        Args:
            reached: number of the snapshot that it goes on from, 0 for none.

        Raises:
            ConfigurationError: no host, or too few, are there.
        """
        if self._running is not None:
            self._judge(self._running, reached > self._reached)
        hosts = self._answering_hosts()
        if self._listed and not hosts:
            raise ConfigurationError("no host answers")
        workers = self._workers_on(hosts)
        if self._elastic is None:
            lost = frozenset(host.name for host in self._listed) - {host.name for host in hosts}
            spec = dataclasses.replace(self._spec, hosts=self._listed, workers=workers)
        elif workers < self._elastic.least:
            raise ConfigurationError(
                f"hosts with slots for {_count(workers)} answer, and `--min-workers"
                f" {self._elastic.least}` were asked for"
            )
        else:
            lost = frozenset[str]()
            spec = dataclasses.replace(self._spec, hosts=hosts, workers=workers)
        self._running, self._reached, self._began, self._lost = (
            spec,
            reached,
            time.monotonic(),
            lost,
        )
        return spec, lost

    def _judge(self, ended: Spec, has_committed: bool) -> None:
        """Decides, after a generation, which hosts are avoided from now on."""
        names = {host.name for host in ended.hosts}
        if has_committed:
            self._known |= names
            return
        # A host that came to a generation which then committed nothing may be the reason, unless
        # another host of it was lost.
        new, lost = names - self._known, names - {host.name for host in self._answering_hosts()}
        if self._elastic is not None and new and new < names and not lost:
            self._avoided |= new
            output.say(f"{', '.join(sorted(new))} is left out: with it no step was committed")

    def gather(self, over: Callable[[], bool]) -> None:
        """Waits for hosts that were lost, and for as many hosts as the run needs at least.

        The wait is over once ``over`` returns True.
        """
        if self.agents is None:
            return
        if self._asks_first:
            self._start_agents()
        began, tried, told = time.monotonic(), -math.inf, False
        while not over() and len(there := self._answering_hosts()) < len(self._wanted_hosts()):
            waited = time.monotonic() - began
            if (waited > _HOSTS_COME_BACK and self._is_enough(there)) or waited > _ENOUGH_COME:
                return
            if waited > _HOSTS_COME_BACK and not told:
                told = True
                output.say(
                    "waits for hosts: those that answer have slots for"
                    f" {_count(self._workers_on(there))}"
                )
            if time.monotonic() - tried > _TRY_AGAIN:
                tried = time.monotonic()
                self._start_agents()
            time.sleep(0.05)

    def _start_agents(self) -> None:
        """Starts agents on hosts where they were lost.

        If all hosts are to be asked, agents are started also where none was started yet.
        """
        assert self.agents is not None
        self.agents.start_lost()
        if self._asks_first:
            self._ask_agents()

    def _ask_agents(self) -> Mapping[str, Agent]:
        """Returns an agent of each host that is wanted; starts one where there was none."""
        assert self.agents is not None
        names = [host.name for host in self._wanted_hosts()]
        commands = {
            name: agent_command(self._spec, name, self._machine, self._env) for name in names
        }
        return self.agents.for_hosts(commands, self._env)

    def _is_enough(self, hosts: Sequence[Host]) -> bool:
        return (
            bool(hosts) if self._elastic is None else self._workers_on(hosts) >= self._elastic.least
        )

    def _wanted_hosts(self) -> tuple[Host, ...]:
        return tuple(host for host in self._listed if host.name not in self._avoided)

    def _answering_hosts(self) -> tuple[Host, ...]:
        """Returns the hosts that are wanted, and answer.

        Where the number of workers is fixed, hosts that have not been asked count as answering.
        """
        if self.agents is None:
            return self._listed
        if self._elastic is None:
            return tuple(
                host for host in self._wanted_hosts() if host.name not in self.agents.left_out()
            )
        answering = {agent.host for agent in self.agents.answering_agents()}
        return tuple(host for host in self._wanted_hosts() if host.name in answering)

    def _workers_on(self, hosts: Sequence[Host]) -> int:
        slots = sum(host.slots for host in hosts)
        return int(self._most if self._elastic is None else min(self._most, slots))

    # -- while one runs --------------------------------------------------------------------------

    def reason_to_replace(self) -> str:
        """Returns in a sentence why the running generation is to be replaced; empty if it isn't."""
        spec, why = self._wish
        return why if spec is self._running else ""

    def _once_committed(self, why: str) -> str:
        """Returns ``why``, the reason to replace the generation.

        The text is empty before the generation has committed something.
        """
        if not why or self.committed() > self._reached:
            self._ripens = math.inf
            return why
        # Replaced before its first commit, the generation would have trained for nothing.
        self._ripens = min(self._ripens, time.monotonic() + _SETTLED)
        if time.monotonic() > self._ripens:
            self._tell(
                f"{why.rstrip('.')}: once a further step of `fit`, or a state of Horovod's, is"
                " committed."
            )
        return ""

    def _tell(self, text: str) -> None:
        """Prints a line, unless it is the one that was printed last."""
        if text != self._told:
            output.say(text)
        self._told = text

    def _watch(self) -> None:
        """Reads requests and the list of hosts now and then, until `close`."""
        # Agents that this thread has started end with it: so it ends with `close` only.
        while not self._over.wait(_LOOK):
            try:
                self._read_resize()
                if self._elastic is not None and self._running is not None:
                    self._read_list()
                    self._reach()
                running = self._running
                self._wish = (
                    running,
                    self._once_committed(self._difference(running)) if running else "",
                )
            except Exception as error:
                # Hosts that can't be looked at are no reason to end a run that goes on.
                self._tell(f"hosts are not looked at: {type(error).__name__}: {error}")

    def _difference(self, running: Spec) -> str:
        hosts = self._answering_hosts() if self._elastic is not None else self._listed
        now, possible = running.workers, self._workers_on(hosts)
        if self._most < now or (self._elastic is None and possible != now):
            return f"The run is to have {_count(possible)} in the place of {now}."
        back = self._lost - (self.agents.left_out() if self.agents else set())
        # a process on it was started anew by something else
        if back and time.monotonic() - self._began > _SETTLED:
            return f"{', '.join(sorted(back))} answers again."
        listed = {host.name: host.slots for host in self._listed}
        fewer = [host.name for host in running.hosts if listed.get(host.name, 0) < host.slots]
        if fewer and self._is_enough(hosts):
            return (
                f"{', '.join(fewer)} offers fewer slots, or none: there are slots for"
                f" {_count(possible)} now."
            )
        if possible > now and time.monotonic() - self._began > _SETTLED:
            return f"There are slots for {_count(possible)} now, and {now} trained."
        return ""

    def _read_resize(self) -> None:
        taken = self._run_dir / _TAKEN
        try:
            # Renamed first, so that a request is read once.
            (self._run_dir / _RESIZE).rename(taken)
            asked = json.loads(taken.read_text())
            workers, answer = (
                int(asked["workers"]),
                _answer(self._run_dir, str(int(asked["number"]))),
            )
            taken.unlink()
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return
        error = ""
        try:
            self._check(workers)
            # Written down first: what can't be written down is refused.
            self._resized(workers)
            self._most = float(workers)
        except (ConfigurationError, OSError, ValueError) as refused:
            error = str(refused)
        # who has asked hears no answer on a full disk; the run goes on
        with contextlib.suppress(OSError):
            durable.replace(answer, json.dumps({"error": error}).encode())

    def _check(self, workers: int) -> None:
        """Refuses a number of workers that the run can't have.

        Raises:
            ConfigurationError: the run can't have that number.
        """
        if self._elastic is None:
            make_plan(dataclasses.replace(self._spec, workers=workers), self._machine, self._env)
            running = (self._running or self._spec).workers
            if not self._spec.hosts and workers > running:
                # of the memory that is free now the present ones have theirs already
                missing = limits.missing_room(workers - running)
                if why := missing or limits.missing_descriptors(workers, running):
                    raise ConfigurationError(why)
        elif workers < self._elastic.least:
            raise ConfigurationError(
                f"The run was begun with `--min-workers {self._elastic.least}`. Received: {workers}"
                " workers."
            )

    def _read_list(self) -> None:
        """Reads the list of hosts again, from the file of hosts or from what a command prints.

        Hosts may have been added.
        """
        assert self._elastic is not None
        if time.monotonic() < self._next_list or not (
            self._elastic.discover or self._elastic.hostfile
        ):
            return
        try:
            self._listed = listed_by(self._elastic.discover, self._elastic.hostfile)
            # one that goes and comes back may have been mended
            self._avoided &= {host.name for host in self._listed}
        except ConfigurationError as error:
            self._tell(f"the hosts stay as they are: {error}")
        self._next_list = time.monotonic() + _LIST_EVERY

    def _reach(self) -> None:
        """Starts agents on hosts that have none: a generation begins with those that answer."""
        if self.agents is None or self._running is None or self._over.is_set():
            return
        asked = self._ask_agents()
        if time.monotonic() >= self._next_try:
            self.agents.start_lost(asked.keys() - {host.name for host in self._running.hosts})
            self._next_try = time.monotonic() + _TRY_LATER

    def close(self) -> None:
        """Ends the agents, and the thread that watches."""
        # Agents of hosts that came later end with the thread that watches, so it is the last.
        if self.agents is not None:
            self.agents.close()
        self._over.set()
        self._thread.join(_LONGEST_LIST + 1.0)


def _count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"


def listed_by(command: str, file: str) -> tuple[Host, ...]:
    """Returns the hosts that a shell command prints, one to a line, or that a file holds.

    Raises:
        ConfigurationError: the command fails, or prints something else; or the file can't be read.
    """
    if file:
        return read_hostfile(Path(file))
    with subprocess.Popen(
        command,
        shell=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # So that what the command has started ends with it.
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=_LONGEST_LIST)
        except subprocess.TimeoutExpired as error:
            raise ConfigurationError(
                f"`{command}` has not ended in {_LONGEST_LIST:.0f} s."
            ) from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise ConfigurationError(
            f"`{command}` ended with exit code {process.returncode}: {err.strip()}"
        )
    return parse_lines(out.splitlines(), f"`{command}`")


def ask_for(run_dir: Path, workers: int, seconds: float, goes_on: Callable[[], bool]) -> str | None:
    """Asks the launcher of a run for another number of workers.

    Returns:
        Why it refuses; empty if it agrees; None if it has not answered within ``seconds``, or while
        the run goes on.
    """
    number = str(secrets.randbelow(1 << 62))
    answer = _answer(run_dir, number)
    deadline = time.monotonic() + seconds
    with _asking_alone(run_dir, lambda: time.monotonic() < deadline and goes_on()):
        durable.replace(
            run_dir / _RESIZE, json.dumps({"workers": workers, "number": int(number)}).encode()
        )
        while not answer.exists() and time.monotonic() < deadline and goes_on():
            time.sleep(0.05)
        try:
            return json.loads(answer.read_text())["error"]
        except FileNotFoundError:
            (run_dir / _RESIZE).unlink(missing_ok=True)
            return None
        finally:
            answer.unlink(missing_ok=True)


@contextlib.contextmanager
def _asking_alone(run_dir: Path, waits: Callable[[], bool]) -> Iterator[None]:
    """Context manager: waits until no other process asks the launcher, as long as ``waits()``."""
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        # Some shared file systems have no locks: askers may meet there.
        with contextlib.suppress(OSError):
            while waits():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.05)
        yield
    finally:
        os.close(folder)


def _answer(run_dir: Path, number: str) -> Path:
    return run_dir / f".resize-{number}.json"
