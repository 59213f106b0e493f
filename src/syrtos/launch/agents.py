"""The launcher's side of the agents of a run."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection

from syrtos.launch import output, signalling
from syrtos.launch.agent import EVERY, GREETING
from syrtos.launch.channel import Channel, Message
from syrtos.launch.standby import Imports

# Seconds that an agent may take to end its workers.
LONGEST_KILL = 8.0

# Seconds in which an agent must come up, and seconds without a sign of life after which its host is lost.
_START, _PATIENCE = 60.0, 10.0
_LONGEST_GREETING = 1 << 20


class Agent:
    """The launcher's side of one agent.

    Attributes:
        ready: whether it has answered.
        lost: why it is gone, as the end of a sentence about a worker of it; empty while it is there.
    """

    def __init__(self, host: str, channel: Channel | None, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """``channel`` is to an agent that runs; else ``command`` starts one, which ends with the thread that calls this."""
        self.host = host
        self.ready, self.lost = False, ""
        self._take: Callable[[Message], None] = lambda message: None
        self._answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._process = None if channel else self._started(command, env)
        self._channel = channel
        threading.Thread(target=self._hear, name=f"syrtos-agent-{host}", daemon=True).start()

    def _started(self, command: tuple[str, ...], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is ours to pass on
            preexec_fn=signalling.die_with_parent,
        )
        assert process.stderr is not None
        threading.Thread(target=self._complain, args=(process.stderr,), daemon=True).start()
        return process

    def _complain(self, said: Iterable[bytes]) -> None:
        """Passes on what ssh says, or an agent of an error of its own."""
        for line in filter(None, (line.decode(errors="replace").rstrip() for line in said)):
            output.say(f"{self.host}: {line}".removeprefix(": "))

    # -- messages --------------------------------------------------------------------------------

    def listen(self, take: Callable[[Message], None]) -> None:
        """From now on ``take`` gets what the agent tells."""
        self._take = take

    def send(self, kind: str, data: bytes | memoryview | None = None, **facts: object) -> None:
        """Tells the agent something; nothing if it is gone."""
        if self._channel is None or self.lost:
            return
        try:
            self._channel.send(kind, data, **facts)
        except OSError:
            return  # the thread that hears it knows

    def ask(self, what: str, data: bytes | memoryview | None = None, **facts: object) -> Message:
        """Asks about snapshots, one question at a time: see `syrtos.launch.held_snapshots`.

        Raises:
            BlockingIOError: there is no such snapshot any more.
            ConnectionError: the agent is gone.
        """
        self.send("ask", data, what=what, **facts)
        answer = None if self.lost else self._answers.get()
        if answer is None:
            raise ConnectionError(f"the agent on {self.host} is gone")
        if "error" in answer:
            raise BlockingIOError(answer["error"])
        return answer

    def _hear(self) -> None:
        try:
            if self._channel is None:
                self._channel = self._greeted()
            patience = _START
            while message := self._channel.receive(patience):
                self.ready, patience = True, _PATIENCE
                if message["is"] == "answer":
                    self._answers.put(message)
                else:
                    self._take(message)
            self.lost = f"was on a host that has not been heard of for {patience:.0f} s"
        except (OSError, EOFError):
            self.lost = "was on a host to which the connection has ended" if self.ready else "could not be started"
        self._answers.put(None)
        self._take({"is": "lost"})

    def _greeted(self) -> Channel:
        """Behind what a login shell prints first.

        Raises:
            EOFError: no agent has come up.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        before = b""
        while not before.endswith(GREETING):
            byte = process.stdout.read(1)
            before += byte
            if not byte or len(before) > _LONGEST_GREETING:
                self._complain(before.splitlines())
                raise EOFError
        reads, writes = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        return Channel(Connection(reads, writable=False), Connection(writes, readable=False))

    def close(self) -> None:
        """Ends the agent, if it was started here."""
        if self._process is None:
            return
        self.send("over")
        try:
            self._process.wait(LONGEST_KILL if self.ready and not self.lost else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Agents:
    """The agents of a run, which serve all of its generations.

    Attributes:
        before_start: called with those of a generation when all of them are there, before they start workers.
    """

    def __init__(self, channels: Mapping[str, Channel] | None = None) -> None:
        """``channels``: to agents that run already, by host."""
        self._channels = dict(channels or {})
        self._agents: dict[str, Agent] = {}
        self._known: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {}
        self.before_start: Callable[[list[Agent]], None] = lambda agents: None
        self._over = threading.Event()
        threading.Thread(target=self._pulse, name="syrtos-pulse", daemon=True).start()

    def of(self, commands: Mapping[str, tuple[str, ...]], env: Mapping[str, str]) -> dict[str, Agent]:
        """An agent for each host: the one that is there, or a new one that its command starts."""
        for host, command in commands.items():
            self._known[host] = command, env
            if host not in self._agents:
                self._start(host)
        return {host: self._agents[host] for host in commands}

    def _start(self, host: str) -> None:
        command, env = self._known[host]
        self._agents[host] = Agent(host, self._channels.pop(host, None), command, env)

    def there(self) -> list[Agent]:
        """Those that answer."""
        return [agent for agent in list(self._agents.values()) if agent.ready and not agent.lost]

    def start_lost(self) -> None:
        """Starts agents again on hosts that were lost; those of processes that came by themselves stay lost."""
        for host in [host for host, agent in self._agents.items() if agent.lost]:
            self._agents[host].close()
            self._start(host)

    def left_out(self) -> set[str]:
        """Hosts whose agents don't answer; those that have not been asked yet are none of them."""
        return {host for host, agent in self._agents.items() if agent.lost or not agent.ready}

    def prepare(self, imports: Imports) -> None:
        """Lets agents get ready to fork the workers of the next generation."""
        for agent in self.there():
            agent.send("imports", modules=dict(imports.modules), variables=dict(imports.variables))

    def _pulse(self) -> None:
        while not self._over.wait(EVERY):
            for agent in self.there():
                agent.send("pulse")

    def close(self) -> None:
        """Ends them."""
        self._over.set()
        for agent in self._agents.values():
            agent.close()
        self._agents.clear()
