"""The agent: the part of a launcher on each of its hosts.

It starts workers there, passes on what they say, and ends them when the launcher is gone.

`python -m syrtos.launch.remote.agent` has the launcher at the other end of its standard input and
output: what has started it, ssh above all, has checked who that is. The messages are described in
`docs/architecture.md`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from syrtos.launch import limits, lost_workers
from syrtos.launch.plan import PASSES_SIGNALS_ON, Group
from syrtos.launch.process_engine import ProcessEnd
from syrtos.launch.processes import local
from syrtos.launch.processes.standby import Imports, Standby
from syrtos.launch.remote import held_call, records
from syrtos.launch.remote.channel import Channel, Message
from syrtos.launch.remote.held_snapshots import HeldSnapshots
from syrtos.launch.terminal.reader import Reader
from syrtos.settings import environment, options_from

# What an agent writes first, so that the launcher knows where the greetings of a login shell end.
GREETING = b"\n\x1esyrtos agent\n"
# Seconds between two signs of life, of an agent and of a launcher.
EVERY = 1.0

# Seconds without one of the launcher, after which the agent ends its workers: more than a link may
# be down for. Without workers it has time: tasks of TF_CONFIG wait for each other, and for the end
# of a summary.
_PATIENCE, _IDLE_PATIENCE = 20.0, 900.0
_LAST_OUTPUT = 2.0  # seconds
_LOOK = 0.01  # seconds between two looks at what workers are forked from


def main() -> None:
    """Serves the launcher at the other end of standard input and output.

    With the argument ``run`` a SIGTERM is passed on to the launcher, which ends the run. Else it
    ends the agent, and the host is lost: a job then goes on on another.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # the launcher passes it on; workers would inherit that it is ignored
    signal.signal(signal.SIGINT, lambda *_: None)
    said, heard = os.dup(1), os.dup(0)
    # Whatever prints in this process must not be taken for messages.
    os.dup2(2, 1)
    os.write(said, GREETING)
    channel = Channel(heard, said)
    if sys.argv[1:] == [PASSES_SIGNALS_ON]:
        pass_on_signals(channel)
    serve(channel)


def pass_on_signals(channel: Channel) -> None:
    """Lets SIGTERM and SIGUSR1 be told to the launcher, and end nothing here.

    The snapshots that the agent holds are there until the launcher has saved one.
    """

    def tell() -> None:
        # the launcher is gone: the thread that hears it knows
        with contextlib.suppress(OSError):
            channel.send("terminated")

    # In a thread: this one may be sending.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: threading.Thread(target=tell, daemon=True).start())


def serve(channel: Channel) -> Message | None:
    """Starts the workers that a launcher asks for, until the launcher says that the run is over.

    Workers end with the thread that calls this.

    Returns:
        The launcher's last message; None if the launcher is gone.
    """
    agent = _Agent(channel)
    try:
        return agent.run()
    except OSError:
        return None
    finally:
        agent.close()


class _Agent:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._workers: _Workers | None = None
        # what comes for workers that are being started waits
        self._starting = threading.Lock()
        self._patience = _IDLE_PATIENCE
        self._asked: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._snapshots = HeldSnapshots()
        self._call = held_call.HeldCall()
        self._standby = Standby()
        # The request for workers that are started once the process has imported from which they are
        # forked.
        self._pending: tuple[Message, dict[str, str]] | None = None

    def run(self) -> Message | None:
        threading.Thread(target=self._hear, name="syrtos-hear", daemon=True).start()
        self._channel.send("ready", host=socket.gethostname())
        beat = time.monotonic()
        while True:
            try:
                message = self._asked.get(
                    timeout=0 if self._workers else _LOOK if self._pending else EVERY
                )
            except queue.Empty:
                self._attend(0.02)
            else:
                if message is None or message["is"] == "over":
                    return message
                self._obey(message)
            if time.monotonic() > beat:
                beat = time.monotonic() + EVERY
                self._channel.send("alive", vitals=self._workers.vitals() if self._workers else {})

    def _obey(self, message: Message) -> None:
        if message["is"] == "imports":
            self._prepare(message)
            return
        if message["is"] == "signal":
            self._signal(message)
            return
        self.kill()
        if message["is"] == "kill":
            self._channel.send("killed")
            self._send_records(message)
            return
        env = self._snapshots.with_places(
            {**environment(), **message["environment"], **self._call.begin()}
        )
        try:
            os.chdir(message["folder"])
            self._standby.begin(
                message["groups"][0]["command"], env, sum(map(_count, message["groups"]))
            )
            self._pending = message, env
        except OSError as error:
            self._channel.send("failed", text=str(error))

    def _send_records(self, message: Message) -> None:
        if message["ledgers"]:
            for data, facts in records.pieces(Path(message["run_dir"]), message["ledgers"]):
                self._channel.send("record", data, **facts)
            self._channel.send("recorded")

    def _start(self, message: Message, env: dict[str, str]) -> None:
        self._pending = None
        if why := limits.missing_room(sum(map(_count, message["groups"]))):
            self._channel.send("failed", text=why)
            return
        try:
            with self._starting:
                self._workers = _Workers(self._channel, message, env, self._standby.start)
        except OSError as error:
            self._channel.send("failed", text=str(error))

    def _signal(self, message: Message) -> None:
        """Passes a signal on to the workers; reports workers not started yet as ended by it."""
        if self._workers:
            self._workers.take(message)
        elif self._pending:
            for group in self._pending[0]["groups"]:
                for rank in range(*group["ranks"]):
                    self._channel.send("ended", rank=rank, code=-message["number"])
            self._pending = None

    def _prepare(self, message: Message) -> None:
        if self._workers:
            self._standby.prepare(
                Imports(message["modules"], message["variables"]), self._workers.env
            )

    def _attend(self, seconds: float) -> None:
        if self._pending and self._standby.is_settled():
            self._start(*self._pending)
        if self._workers:
            self._workers.attend(seconds)

    def kill(self) -> None:
        """Ends the workers, if there are any."""
        self._pending = None
        if self._workers:
            self._workers.kill()
        self._workers = None

    def close(self) -> None:
        """Ends the workers and the process that they are forked from, and frees the snapshots."""
        self.kill()
        self._standby.close()
        self._snapshots.close()

    def _hear(self) -> None:
        """Receives messages, and deals with what the workers need at once.

        The thread that has started the workers deals with the rest.
        """
        try:
            while (message := self._channel.receive(self._patience)) is not None:
                self._take(message)
        except (OSError, EOFError):
            pass
        # The launcher is gone. The workers are ended here: the other thread may be sending, which
        # then ends too.
        with self._starting:
            if self._workers:
                self._workers.engine.signal(signal.SIGKILL)
        self._channel.close()
        self._asked.put(None)

    def _take(self, message: Message) -> None:
        kind = message["is"]
        if kind in ("start", "kill"):
            self._patience = _PATIENCE if kind == "start" else _IDLE_PATIENCE
        if kind in ("start", "imports", "kill", "over"):
            self._asked.put(message)
        elif kind == "ask":
            # Not in this thread: a question may take long.
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        elif kind != "pulse":
            with self._starting:
                if self._workers:
                    self._workers.take(message)
                elif kind == "signal":
                    self._asked.put(message)

    def _answer(self, message: Message) -> None:
        try:
            of_call = message["what"] in (held_call.TAKE, held_call.GIVE)
            data, facts = (self._call if of_call else self._snapshots).answer(message)
        except Exception as error:
            # Without an answer the launcher would wait for ever.
            data, facts = b"", {"error": f"{type(error).__name__}: {error}"}
        # the launcher is gone: the thread that hears it knows
        with contextlib.suppress(OSError):
            self._channel.send("answer", data, **facts)


class _Workers:
    """The workers of one generation on this host."""

    def __init__(
        self, channel: Channel, asked: Message, env: Mapping[str, str], start: local.Start
    ) -> None:
        if run_dir := options_from(env).run_dir:  # of an earlier run
            lost_workers.forget(Path(run_dir))
            records.forget(
                Path(run_dir),
                [rank for group in asked["groups"] for rank in range(*group["ranks"])],
            )
        self.env = env
        self._channel = channel
        self._ended: list[ProcessEnd] = []
        self._over = False
        groups = [
            Group(tuple(group["command"]), range(*group["ranks"])) for group in asked["groups"]
        ]
        self.engine = local.Local(groups, asked["nodes"], env, start, self._on_line, asked["whole"])
        self._readers = {
            rank: [
                Reader(pipe, functools.partial(self._tell, rank, stream))
                for stream, pipe in enumerate((outputs.out, outputs.err), 1)
            ]
            for rank, outputs in self.engine.outputs.items()
        }

    def attend(self, seconds: float) -> None:
        """Reports workers that have ended, each after all that it has written was passed on."""
        self._ended += self.engine.wait(seconds)
        while self._ended and all(
            reader.is_drained() for reader in self._readers[self._ended[0].rank]
        ):
            ended = self._ended.pop(0)
            self._channel.send("ended", rank=ended.rank, code=ended.code)

    def take(self, message: Message) -> None:
        """Does what the launcher asks for: an answer of PMI, a signal, or the note of a death."""
        if message["is"] == "pmi":
            self.engine.tell(message["rank"], message["text"])
        elif message["is"] == "signal":
            self.engine.signal(message["number"])
        elif message["is"] == "death":
            self.engine.note_death(message["rank"])

    def kill(self) -> None:
        """Ends the workers and passes on their output, except that of children that live on."""
        self.engine.kill()
        deadline = time.monotonic() + _LAST_OUTPUT
        for reader in [reader for pair in self._readers.values() for reader in pair]:
            reader.join(max(deadline - time.monotonic(), 0.0))
        self._over = True

    def vitals(self) -> dict[int, tuple[str, float, str]]:
        """Returns state, processor time and I/O counts of running workers, by rank (`Vitals`)."""
        found = {rank: self.engine.vitals(rank) for rank in self.engine.outputs}
        return {rank: (v.state, v.used, v.moved) for rank, v in found.items() if v is not None}

    def _on_line(self, rank: int, line: str) -> None:
        try:
            self._channel.send("pmi", rank=rank, line=line)
        except OSError:
            return  # the launcher is gone: the thread that hears it knows

    def _tell(self, rank: int, stream: int, piece: bytes) -> None:
        if piece and not self._over:
            # the launcher is gone: the thread that hears it knows
            with contextlib.suppress(OSError):
                self._channel.send("output", piece, rank=rank, stream=stream)


def _count(group: Message) -> int:
    first, end = group["ranks"]
    return end - first


if __name__ == "__main__":
    main()
