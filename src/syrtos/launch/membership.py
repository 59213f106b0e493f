"""The hosts of a run and the number of its workers, from one generation to the next: hosts are lost, come back, and are added; `syrtos resize` asks for
another number.

A run with a fixed number of workers puts those of a lost host on the others. An elastic one (`--min-workers`) has as many workers as its hosts have slots.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.errors import ConfigurationError
from syrtos.launch import output
from syrtos.launch.plan import Machine, agent_command
from syrtos.launch.spec import Host, Spec, parse_lines, read_hostfile

if TYPE_CHECKING:
    from syrtos.launch.agents import Agents

# Where `syrtos resize` asks, in the run directory. The launcher removes the file once it has read it.
_RESIZE = "resize.json"
_LOOK = 0.5  # seconds
# Seconds between two times that the list of hosts is read, and for its command.
_LIST_EVERY, _LONGEST_LIST = 5.0, 30.0
# Seconds in which a host that was lost may come back before a generation begins without it; after which one that refuses is asked again,
# and while a generation runs.
_HOSTS_COME_BACK, _TRY_AGAIN, _TRY_LATER = 10.0, 3.0, 30.0
# Seconds in which hosts may come where there are too few for the run.
_ENOUGH_COME = 600.0
# Seconds that a generation has before more workers take its place.
_SETTLED = 10.0


class Membership:
    """Who takes part in a run.

    Attributes:
        agents: of the run; None on this machine alone.
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
            spec: as it was asked for.
            machine: the one that launches.
            run_dir: of the run.
            agents: on the hosts; `close` ends them.
            env: of agents that are started while a generation runs.
            resumes: whether it is to do without hosts that don't answer from the beginning on.
            resized: called with the new number when `syrtos resize` has asked for one.
        """
        self.agents = agents
        self._spec, self._machine, self._run_dir, self._env, self._resized = spec, machine, run_dir, env, resized
        self._elastic = spec.elastic
        self._asks_first = resumes or spec.elastic is not None
        self._listed = spec.hosts
        self._most = float(spec.workers) if self._elastic is None else self._elastic.most or math.inf
        self._running: Spec | None = None
        self._began = 0.0
        self._why = ""
        self._next_list = self._next_try = 0.0
        self._over = threading.Event()
        (run_dir / _RESIZE).unlink(missing_ok=True)  # of an earlier run
        self._thread = threading.Thread(target=self._watch, name="syrtos-membership", daemon=True)
        self._thread.start()

    # -- between two generations -----------------------------------------------------------------

    def begin(self) -> tuple[Spec, frozenset[str]]:
        """What the generation that now begins is to be, and the hosts of it that it does without.

        Raises:
            ConfigurationError: no host, or too few, are there.
        """
        hosts = self._there()
        lost = frozenset(host.name for host in self._listed) - {host.name for host in hosts}
        if self._listed and not hosts:
            raise ConfigurationError("no host answers")
        workers = self._workers_on(hosts)
        if self._elastic is not None and workers < self._elastic.least:
            raise ConfigurationError(
                f"hosts with slots for {_count(workers)} answer, and `--min-workers {self._elastic.least}` were asked for"
            )
        if self._elastic is not None:
            spec, lost = dataclasses.replace(self._spec, hosts=hosts, workers=workers), frozenset[str]()
        else:
            spec = dataclasses.replace(self._spec, hosts=self._listed, workers=workers)
        self._running, self._began, self._why = spec, time.monotonic(), ""
        return spec, lost

    def gather(self, over: Callable[[], bool]) -> None:
        """Waits for hosts that were lost, and for as many as the run needs at least, until it is ``over``."""
        if self.agents is None:
            return
        if self._asks_first:
            self._start_agents()
        began, tried, told = time.monotonic(), -math.inf, False
        while not over() and len(there := self._there()) < len(self._listed):
            waited = time.monotonic() - began
            if (waited > _HOSTS_COME_BACK and self._is_enough(there)) or waited > _ENOUGH_COME:
                return
            if waited > _HOSTS_COME_BACK and not told:
                told = True
                output.say(f"waits for hosts: those that answer have slots for {_count(self._workers_on(there))}")
            if time.monotonic() - tried > _TRY_AGAIN:
                tried = time.monotonic()
                self._start_agents()
            time.sleep(0.05)

    def _start_agents(self) -> None:
        """On hosts where they were lost, and where none was started yet if all are to be asked."""
        assert self.agents is not None
        self.agents.start_lost()
        if self._asks_first:
            self.agents.of({host.name: self._agent_command(host) for host in self._listed}, self._env)

    def _agent_command(self, host: Host) -> tuple[str, ...]:
        return agent_command(self._spec, host.name, self._machine, self._env)

    def _is_enough(self, hosts: Sequence[Host]) -> bool:
        return bool(hosts) if self._elastic is None else self._workers_on(hosts) >= self._elastic.least

    def _there(self) -> tuple[Host, ...]:
        """The hosts that are listed, and answer. Those that have not been asked are taken for such where the number of workers is fixed."""
        if self.agents is None:
            return self._listed
        if self._elastic is None:
            return tuple(host for host in self._listed if host.name not in self.agents.left_out())
        answering = {agent.host for agent in self.agents.there()}
        return tuple(host for host in self._listed if host.name in answering)

    def _workers_on(self, hosts: Sequence[Host]) -> int:
        slots = sum(host.slots for host in hosts)
        return int(self._most if self._elastic is None else min(self._most, slots))

    # -- while one runs --------------------------------------------------------------------------

    def changed(self) -> str:
        """Why the generation that runs is to be replaced by another, as a sentence; empty if it isn't."""
        return self._why

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            try:
                self._read_resize()
                if self._elastic is not None:
                    self._read_list()
                    self._reach()
                self._why = self._difference() if self._running is not None else ""
            except Exception as error:  # the run goes on as it is
                output.say(f"hosts are not watched any more: {type(error).__name__}: {error}")
                return

    def _difference(self) -> str:
        assert self._running is not None
        hosts = self._there() if self._elastic is not None else self._listed
        now, possible = self._running.workers, self._workers_on(hosts)
        listed = {host.name for host in self._listed}
        gone = [host.name for host in self._running.hosts if host.name not in listed]
        if gone and self._is_enough(hosts):
            return f"{', '.join(gone)} is not among the hosts any more, and there are slots for {_count(possible)}."
        if self._most < now or (self._elastic is None and possible != now):
            return f"The run is to have {_count(possible)} in the place of {now}."
        if possible > now and time.monotonic() - self._began > _SETTLED:
            return f"There are slots for {_count(possible)} now, and {now} trained."
        return ""

    def _read_resize(self) -> None:
        path = self._run_dir / _RESIZE
        try:
            workers = int(json.loads(path.read_text())["workers"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._most = float(workers)
        self._resized(workers)
        path.unlink(missing_ok=True)

    def _read_list(self) -> None:
        """Hosts may be added to the file of hosts, or to what a command prints."""
        assert self._elastic is not None
        if time.monotonic() < self._next_list or not (self._elastic.discover or self._elastic.hostfile):
            return
        try:
            self._listed = listed_by(self._elastic.discover, self._elastic.hostfile)
        except ConfigurationError as error:
            output.say(f"the hosts stay as they are: {error}")
        self._next_list = time.monotonic() + _LIST_EVERY

    def _reach(self) -> None:
        """Starts agents on hosts that have none, so that a generation begins with those that answer."""
        if self.agents is None or self._running is None:
            return
        agents = self.agents.of({host.name: self._agent_command(host) for host in self._listed}, self._env)
        if time.monotonic() >= self._next_try:
            self.agents.start_lost(agents.keys() - {host.name for host in self._running.hosts})
            self._next_try = time.monotonic() + _TRY_LATER

    def close(self) -> None:
        """Ends the agents: those of hosts that came later end with the thread that watches, so it is the last."""
        if self.agents is not None:
            self.agents.close()
        self._over.set()
        self._thread.join(1.0)  # the command that lists hosts may run


def _count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"


def listed_by(command: str, file: str) -> tuple[Host, ...]:
    """The hosts that a command of a shell prints, one to a line, or that a file holds.

    Raises:
        ConfigurationError: it fails, or prints something else.
    """
    if file:
        return read_hostfile(Path(file))
    try:
        done = subprocess.run(
            command, shell=True, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LONGEST_LIST
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"`{command}` has not ended in {_LONGEST_LIST:.0f} s.") from error
    if done.returncode:
        raise ConfigurationError(f"`{command}` ended with exit code {done.returncode}: {done.stderr.strip()}")
    return parse_lines(done.stdout.splitlines(), f"`{command}`")


def ask_for(run_dir: Path, workers: int, seconds: float) -> bool:
    """Asks the launcher of a run for another number of workers; whether it has read that within so many seconds."""
    path = run_dir / _RESIZE
    draft = path.with_suffix(".partial")
    draft.write_text(json.dumps({"workers": workers}))
    draft.replace(path)
    deadline = time.monotonic() + seconds
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    taken = not path.exists()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return taken
