"""A function that workers on other hosts call: its way to their agents, and its result's way back.

A parcel of `syrtos.notebook.parcel` travels as the messages of a run do, over ssh or what else has
started the agents, and is never on a disk.
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
        """Returns the call that a launcher's environment names; None without one."""
        source, _, result = env.get(CALL_VARIABLE, "").partition(":")
        return cls(Path(source), Path(result)) if result else None

    def bring(self, agents: Sequence[Agent]) -> None:
        """Brings the function to agents that don't have it.

        Raises:
            OSError: an agent is gone.
        """
        for agent in agents:
            if agent in self._brought:
                continue
            with self._source.open("rb") as file:
                while piece := file.read(PIECE):
                    agent.ask(TAKE, piece, begin=file.tell() - len(piece))
            self._brought.append(agent)

    def fetch(self) -> str:
        """Writes the result of rank 0, from the agent that has it.

        Returns:
            Why there may be none, as a sentence; empty if it was written.
        """
        lost: list[str] = []
        for agent in self._brought:
            try:
                with self._result.open("wb") as file:
                    while piece := agent.ask(GIVE, begin=file.tell())["data"]:
                        file.write(piece)
                    if file.tell():
                        return ""
            except OSError as error:
                lost.append(f"{agent.host or 'this machine'} ({agent.lost or error})")
        return f"the result can't be fetched from {', '.join(lost)}" if lost else ""
