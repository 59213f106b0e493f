"""A run's snapshots between two generations, in memory of this process or of the hosts' agents."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from syrtos.checkpoint import folders
from syrtos.checkpoint.slots import Slots, SlotsInMemory

if TYPE_CHECKING:
    from syrtos.launch.remote.agents import Agent, Agents

# Bytes of a snapshot that an agent sends, or gets, at a time.
_PIECE = 1 << 24


class Snapshots(folders.SnapshotMemory, Protocol):
    """Snapshots that workers have committed; each is of one part or several."""

    def facts_for_writers(self, parts: int) -> dict[str, object]:
        """Returns what workers or agents must know to write snapshots of up to ``parts`` parts.

        JSON can hold it.
        """
        ...

    def settle(self) -> int:
        """Drops uncommitted snapshots after a generation's end; returns `committed_number`."""
        ...

    def close(self) -> None:
        """Frees the memory."""
        ...


class LocalSnapshots(Slots):
    """The snapshots of a run of this machine alone."""

    def __init__(self, folder: Path | None = None) -> None:
        """Makes the memory, which `SlotsInMemory` describes, for snapshots of one part."""
        self._memory = SlotsInMemory(1, folder)
        super().__init__(self._memory.places)

    def facts_for_writers(self, parts: int) -> dict[str, object]:
        self._grow(parts)
        return {"places": self._memory.places}

    def write(self, part: int, number: int, parts: int, *pieces: bytes | memoryview) -> None:
        self._grow(parts)
        super().write(part, number, parts, *pieces)

    def _grow(self, parts: int) -> None:
        self._memory.grow(parts)
        self.open(self._memory.places)

    def settle(self) -> int:
        number = self.committed_number()
        self.drop_all_but(number)
        return number

    def close(self) -> None:
        super().close()
        self._memory.close()


class AgentSnapshots:
    """The snapshots of a run on several hosts.

    Each agent holds whole snapshots, so that all but one host may be lost.
    """

    def __init__(self, agents: Agents) -> None:
        """Begins with the ``agents`` of the run."""
        self._agents, self._room = agents, 1  # and of how many parts a snapshot may be
        # The thread that copies snapshots to the run directory asks too.
        self._asking = threading.RLock()
        # the copy that an agent has made to be read: its number, and the lengths of its parts
        self._held: tuple[Agent, int, list[int]] | None = None
        # parts of a snapshot that no agent has yet, and its number
        self._loaded: dict[int, bytes] = {}
        self._loaded_number = 0
        agents.before_start = self._distribute

    def facts_for_writers(self, parts: int) -> dict[str, object]:
        self._room = max(self._room, parts)
        return {"parts": self._room}

    def committed_number(self) -> int:
        if self._loaded:
            return self._loaded_number
        return max(
            (
                number
                for _, numbers in self._whole_snapshots(self._agents.answering_agents())
                for number in numbers
            ),
            default=0,
        )

    def _whole_snapshots(self, agents: Sequence[Agent]) -> list[tuple[Agent, set[int]]]:
        """Returns the numbers of each agent's whole snapshots, without agents lost meanwhile."""
        found: list[tuple[Agent, set[int]]] = []
        with self._asking:
            for agent in agents:
                with contextlib.suppress(OSError):
                    found.append((agent, set(agent.ask("whole", room=self._room)["numbers"])))
        return found

    # -- reading ---------------------------------------------------------------------------------

    def parts(self, number: int) -> int:
        with self._asking:
            return len(self._loaded or self._copy_on_agent(number)[1])

    def _copy_on_agent(self, number: int) -> tuple[Agent, list[int]]:
        """Returns an agent that has made a copy of the snapshot, and the lengths of its parts."""
        # a copy, since workers go on, and replace the snapshot
        if self._held and self._held[1] == number and not self._held[0].lost:
            return self._held[0], self._held[2]
        for agent, numbers in self._whole_snapshots(self._agents.answering_agents()):
            if number in numbers:
                lengths: list[int] = agent.ask("hold", room=self._room, number=number)["lengths"]
                self._held = agent, number, lengths
                return agent, lengths
        raise BlockingIOError(f"Snapshot {number} has been replaced, or its hosts were lost.")

    def pieces(self, part: int, number: int) -> Iterator[bytes]:
        with self._asking:
            if self._loaded:
                yield self._loaded[part]
                return
            # another generation gives out the number again
            if part and (not self._held or self._held[1] != number):
                raise BlockingIOError(f"The copy of snapshot {number} was released.")
            agent, lengths = self._copy_on_agent(number)
            whole = False
            try:
                for begin in range(0, lengths[part], _PIECE):
                    yield agent.ask("piece", room=self._room, part=part, begin=begin, bytes=_PIECE)[
                        "data"
                    ]
                whole = part + 1 < len(lengths)
            finally:
                # The last part is read, or the reader wants no more.
                if not whole:
                    self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held:
            with contextlib.suppress(OSError):
                held[0].ask("release", room=self._room)

    # -- writing ---------------------------------------------------------------------------------

    def write(self, part: int, number: int, parts: int, *pieces: bytes | memoryview) -> None:
        """Keeps a part, which agents get before they start workers."""
        if number != self._loaded_number:
            self._loaded.clear()
        self._room = max(self._room, parts)
        self._loaded[part], self._loaded_number = b"".join(pieces), number

    def _put(self, agent: Agent, part: int, number: int, parts: int, data: bytes) -> None:
        view = memoryview(data)
        with self._asking:
            # A part without bytes is sent too.
            for begin in range(0, max(len(view), 1), _PIECE):
                last = begin + _PIECE >= len(view)
                agent.ask(
                    "put",
                    view[begin : begin + _PIECE],
                    room=self._room,
                    part=part,
                    number=number,
                    parts=parts,
                    last=last,
                )

    def _distribute(self, agents: Sequence[Agent]) -> None:
        """Gives all hosts of a generation that starts the newest snapshot; they drop all others."""
        whole = self._whole_snapshots(self._agents.answering_agents())
        number = (
            self._loaded_number if self._loaded else self._newest([numbers for _, numbers in whole])
        )
        for agent, numbers in whole:
            if agent in agents and number and number not in numbers:
                self._send(agent, number)
        self._loaded.clear()
        self._keep(number)

    def _send(self, agent: Agent, number: int) -> None:
        """Sends an agent a snapshot.

        Raises:
            OSError: no host has the snapshot any more.
        """
        count = self.parts(number)
        for part in range(count):
            data = b"".join(self.pieces(part, number))
            # the engine sees that it is lost
            with contextlib.suppress(ConnectionError):
                self._put(agent, part, number, count, data)

    @staticmethod
    def _newest(whole: Sequence[set[int]]) -> int:
        """Returns the newest snapshot that all hosts have; else the newest of any.

        A snapshot that all hosts have need not be sent.
        """
        # Of a snapshot that all have nothing need be sent.
        common = set[int].intersection(*whole) if whole else set[int]()
        return max(common or set[int]().union(*whole), default=0)

    def _keep(self, number: int) -> None:
        with self._asking:
            self._release()
            for agent in self._agents.answering_agents():
                # it is lost: the next generation does without
                with contextlib.suppress(OSError):
                    agent.ask("keep", room=self._room, number=number)

    def settle(self) -> int:
        # No worker of this generation has begun: what was loaded is still the newest.
        if self._loaded:
            return self._loaded_number
        number = self._newest(
            [numbers for _, numbers in self._whole_snapshots(self._agents.answering_agents())]
        )
        self._keep(number)
        return number

    def close(self) -> None:
        """Does nothing: the agents free the memory when they end."""
