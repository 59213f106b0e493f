"""A function that workers on other hosts call: its way to their agents, and its result's way back.

A parcel of `syrtos.notebook.parcel` travels as the messages of a run do, over ssh or what else has
started the agents, and is never on a disk. Only workers unpickle it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from syrtos.launch.remote.agents import Agent
from syrtos.launch.remote.held_call import GIVE, PIECE, TAKE
from syrtos.settings import CALL_VARIABLE


class CarriedCall:
    """The launcher's side: brings a function to agents, and fetches its result."""

    def __init__(self, source: Path, result: Path) -> None:
        """Takes the files of the parcel and of the result."""
        self._source, self._result = source, result
        self._brought: list[Agent] = []

    @classmethod
    def of(cls, env: Mapping[str, str]) -> CarriedCall | None:
        """Returns the call that the variable of a launcher's environment names; None without one."""
        source, _, result = env.get(CALL_VARIABLE, "").partition(":")
        return cls(Path(source), Path(result)) if result else None

    def bring(self, agents: Sequence[Agent]) -> None:
        """Brings the function to agents that don't have it.

        Raises:
            OSError: an agent is gone.
        """
        new = [agent for agent in agents if agent not in self._brought]
        if not new:
            return
        parcel = memoryview(self._source.read_bytes())
        for agent in new:
            for begin in range(0, len(parcel), PIECE):
                agent.ask(TAKE, parcel[begin : begin + PIECE])
            self._brought.append(agent)

    def fetch(self) -> None:
        """Writes the result of rank 0, from the agent that has it; nothing if none has.

        Raises:
            OSError: the result can't be written, or an agent is gone.
        """
        for agent in self._brought:
            if agent.lost:
                continue
            found = bytearray()
            while piece := agent.ask(GIVE, begin=len(found))["data"]:
                found += piece
            if found:
                self._result.write_bytes(found)
