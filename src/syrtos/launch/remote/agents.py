"""The launcher's side of the agents of a run."""

from __future__ import annotations

import queue
import select
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from syrtos.launch.plan import PASSES_SIGNALS_ON
from syrtos.launch.processes import signalling
from syrtos.launch.processes.standby import Imports
from syrtos.launch.remote.agent import EVERY, GREETING
from syrtos.launch.remote.channel import Channel, Message
from syrtos.launch.terminal import output

# Seconds that an agent may take to end its workers.
LONGEST_KILL = 8.0

# Seconds in which an agent must come up, and seconds without a sign of life after which its host is
# lost.
_START, _PATIENCE = 60.0, 10.0
_LAST_WORDS = 1.0  # seconds
_LONGEST_GREETING = 1 << 20
# Seconds for an answer: an agent may have to copy a snapshot.
_LONGEST_ANSWER = 120.0


class Agent:
    """The launcher's side of one agent.

    Attributes:
        ready: whether it has answered.
        lost: the reason why it is gone, as the end of a sentence about a worker of it; empty while
            it is there.
    """

    def __init__(
        self,
        host: str,
        channel: Channel | None,
        command: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Takes over the agent at the other end of ``channel``, or starts an agent by ``command``.

        An agent is started where there is no channel. It ends with the thread that calls this.
        """
        self.host = host
        self._name = host or "this machine"
        self.ready, self.lost, self._last_words = False, "", ""
        self._complaints: threading.Thread | None = None
        self._take: Callable[[Message], None] = lambda message: None
        self._answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._channel = channel
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = None if channel else self._start_process(command, env)
        except OSError as error:
            self.lost = f"could not be started: {error}"
            return
        threading.Thread(target=self._hear, name=f"syrtos-agent-{host}", daemon=True).start()

    def _start_process(
        self, command: tuple[str, ...], env: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What follows the greeting is for the channel: nothing may be read ahead.
            bufsize=0,
            # Ctrl-C is ours to pass on.
            start_new_session=True,
            preexec_fn=signalling.death_with_parent(command[-1] == PASSES_SIGNALS_ON),
        )
        assert process.stderr is not None
        self._complaints = threading.Thread(
            target=self._complain, args=(process.stderr,), daemon=True
        )
        self._complaints.start()
        return process

    def _complain(self, said: Iterable[bytes]) -> None:
        """Prints lines that ssh has written, or an agent about an error of its own."""
        for line in filter(None, (line.decode(errors="replace").rstrip() for line in said)):
            self._last_words = line
            output.say(f"{self.host}: {line}".removeprefix(": "))

    # -- messages --------------------------------------------------------------------------------

    def listen(self, take: Callable[[Message], None]) -> None:
        """Sets the function that gets the agent's messages from now on."""
        self._take = take

    def send(self, kind: str, data: bytes | memoryview = b"", **facts: object) -> None:
        """Sends the agent a message; does nothing if the agent is gone."""
        if self._channel is None or self.lost:
            return
        try:
            self._channel.send(kind, data, **facts)
        except OSError:
            # The agent is gone, which the thread that hears it knows.
            return

    def ask(self, what: str, data: bytes | memoryview = b"", **facts: object) -> Message:
        """Asks about snapshots or a call, one question at a time.

        See `syrtos.launch.remote.held_snapshots` and `held_call`.

        Raises:
            BlockingIOError: there is no such snapshot any more.
            ConnectionError: the agent is gone.
        """
        # Answers do not say to which question they belong.
        with self._asking:
            self.send("ask", data, what=what, **facts)
            try:
                answer = None if self.lost else self._answers.get(timeout=_LONGEST_ANSWER)
            except queue.Empty:
                self.give_up(
                    f"was on {self._name}, whose agent has not answered in {_LONGEST_ANSWER:.0f} s"
                )
                answer = None
        if answer is None:
            raise ConnectionError(f"the agent on {self.host} is gone")
        if "error" in answer:
            raise BlockingIOError(answer["error"])
        return answer

    def give_up(self, why: str) -> None:
        """Declares the agent lost for the reason ``why``; a message being sent to it is dropped."""
        self.lost = self.lost or why
        if self._channel:
            self._channel.close()
        self._answers.put(None)
        self._take({"is": "lost"})

    def _hear(self) -> None:
        try:
            why = self._pass_messages_on()
        except EOFError:
            if self._complaints:
                # ssh, or the agent's interpreter, may have said why
                self._complaints.join(_LAST_WORDS)
            said = f": {self._last_words}" * bool(self._last_words)
            why = (
                f"was on {self._name}, to which the connection has ended"
                if self.ready
                else f"could not be started{said}"
            )
        except Exception as error:
            # else nothing would be heard of this host any more, and the run would wait for ever
            why = (
                f"was on {self._name}, whose agent can't be understood: {type(error).__name__}:"
                f" {error}"
            )
        self.give_up(why)

    def _pass_messages_on(self) -> str:
        """Passes messages on until there are no more, and returns the reason for the end.

        Raises:
            EOFError: the agent has ended, or no agent has come up.
            OSError: something else than messages has come.
        """
        deadline = time.monotonic() + _START
        if self._channel is None:
            self._channel = self._await_greeting(deadline)
        if self._channel is None:
            return f"could not be started: no agent has come up in {_START:.0f} s"
        patience = max(deadline - time.monotonic(), 0.0)
        while message := self._channel.receive(patience):
            self.ready, patience = True, _PATIENCE
            if message["is"] == "answer":
                self._answers.put(message)
            elif message["is"] == "terminated":
                output.say(f"{self.host} has got SIGTERM: the run ends")
                signalling.terminate()
            else:
                self._take(message)
        return f"was on {self._name}, which has not been heard of for {patience:.0f} s"

    def _await_greeting(self, deadline: float) -> Channel | None:
        """Returns the channel once the agent's greeting has come; None if no agent came up in time.

        What a login shell prints before the greeting is skipped.

        Raises:
            EOFError: the process that was to start the agent has ended.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        before = b""
        while not before.endswith(GREETING):
            if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                return None
            byte = process.stdout.read(1)
            before += byte
            if not byte or len(before) > _LONGEST_GREETING:
                self._complain(before.splitlines())
                raise EOFError
        return Channel(process.stdout.fileno(), process.stdin.fileno())

    def ask_to_end(self) -> None:
        """Tells the agent that the run is over, if this process has started it."""
        if self._process is not None:
            self.send("over")

    def close(self, deadline: float) -> None:
        """Waits until ``deadline`` for the end of the agent, and then kills it.

        It does so only if this process has started the agent.
        """
        if self._process is None:
            return
        try:
            self._process.wait(
                max(deadline - time.monotonic(), 0.0) if self.ready and not self.lost else 0
            )
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Agents:
    """The agents of a run, which serve all of its generations.

    Attributes:
        before_start: called with the agents of a generation when all of them are there, before they
            start workers.
    """

    def __init__(self, agents: Mapping[str, Agent] | None = None) -> None:
        """Begins with ``agents``, which run already, by host."""
        self._agents: dict[str, Agent] = dict(agents or {})
        # Two threads start agents: the launcher's, and the one that watches the hosts.
        self._changing = threading.RLock()
        # how others are started
        self._known: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {}
        self.before_start: Callable[[list[Agent]], None] = lambda agents: None
        self._over = threading.Event()
        threading.Thread(target=self._pulse, name="syrtos-pulse", daemon=True).start()

    def for_hosts(
        self, commands: Mapping[str, tuple[str, ...]], env: Mapping[str, str]
    ) -> dict[str, Agent]:
        """Returns an agent for each host: the one that is there, or one that its command starts."""
        with self._changing:
            for host, command in commands.items():
                if host not in self._agents and not self._over.is_set():
                    self._known[host] = command, env
                    self._agents[host] = Agent(host, None, command, env)
            return {host: self._agents[host] for host in commands if host in self._agents}

    def take(self, agent: Agent) -> None:
        """Takes in an agent that something else has started, in place of a lost one of its host."""
        with self._changing:
            if not self._over.is_set():
                self._agents[agent.host] = agent

    def answering_agents(self) -> list[Agent]:
        """Returns the agents that answer."""
        return [agent for agent in list(self._agents.values()) if agent.ready and not agent.lost]

    def start_lost(self, hosts: Collection[str] | None = None) -> None:
        """Starts agents again on hosts whose agent was lost; those given to `__init__` stay lost.

        Args:
            hosts: the hosts to start agents on; None: all.
        """
        with self._changing:
            for host, (command, env) in self._known.items():
                if (
                    host in self._agents
                    and self._agents[host].lost
                    and (hosts is None or host in hosts)
                ):
                    self._agents[host].close(0.0)
                    self._agents[host] = Agent(host, None, command, env)

    def left_out(self) -> set[str]:
        """Returns the hosts whose agents don't answer, without hosts that were not asked yet."""
        return {host for host, agent in list(self._agents.items()) if agent.lost or not agent.ready}

    def prepare(self, imports: Imports) -> None:
        """Lets agents get ready to fork the workers of the next generation."""
        for agent in self.answering_agents():
            agent.send("imports", modules=dict(imports.modules), variables=dict(imports.variables))

    def _pulse(self) -> None:
        while not self._over.wait(EVERY):
            for agent in self.answering_agents():
                agent.send("pulse")

    def close(self) -> None:
        """Ends the agents."""
        with self._changing:
            self._over.set()
            for agent in self._agents.values():
                agent.ask_to_end()
            deadline = time.monotonic() + LONGEST_KILL
            for agent in self._agents.values():
                agent.close(deadline)
            self._agents.clear()
