"""The snapshots that an agent holds for its host's workers, and answers to questions about them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

from syrtos.checkpoint.slots import Slots, SlotsInMemory
from syrtos.launch.remote.channel import Message
from syrtos.settings import SNAPSHOTS_VARIABLE

Answer = tuple[bytes | memoryview, Message]


class HeldSnapshots:
    """Memory for snapshots, made when workers, or a launcher that has some, first ask for it."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._memory: SlotsInMemory | None = None
        self._slots: Slots | None = None
        # copies of the parts of a snapshot, while a launcher reads them
        self._copies: list[bytes] = []
        self._coming: dict[int, bytearray] = {}  # parts that a launcher sends

    def with_places(self, env: Mapping[str, str]) -> dict[str, str]:
        """Returns the workers' environment, with the places for parts in place of their number."""
        told = json.loads(env.get(SNAPSHOTS_VARIABLE, "{}"))
        if "parts" not in told:
            return dict(env)
        self._slots_for(told.pop("parts"))
        assert self._memory is not None
        return {**env, SNAPSHOTS_VARIABLE: json.dumps({**told, "places": self._memory.places})}

    def _slots_for(self, parts: int) -> Slots:
        with self._making:
            if self._memory is None or self._slots is None:
                self._memory = SlotsInMemory(parts)
                self._slots = Slots(self._memory.places)
            self._memory.grow(parts)
            self._slots.open(self._memory.places)
            return self._slots

    def answer(self, asked: Message) -> Answer:
        """Answers a launcher.

        Raises:
            OSError: there is no such snapshot any more, or no memory for it.
        """
        slots, what = self._slots_for(asked["room"]), asked["what"]
        if what == "whole":
            return b"", {"numbers": sorted(slots.complete_numbers())}
        if what == "hold":
            number = asked["number"]
            self._copies = [slots.read(part, number) for part in range(slots.parts(number))]
            return b"", {"lengths": [len(part) for part in self._copies]}
        if what == "piece":
            return (
                memoryview(self._copies[asked["part"]])[
                    asked["begin"] : asked["begin"] + asked["bytes"]
                ],
                {},
            )
        if what == "put":
            self._put(slots, asked)
        elif what == "keep":
            slots.drop_all_but(asked["number"])
        elif what == "release":
            self._copies = []
        return b"", {}

    def _put(self, slots: Slots, asked: Message) -> None:
        coming = self._coming.setdefault(asked["part"], bytearray())
        coming += asked["data"]
        if asked["last"]:
            slots.write(
                asked["part"],
                asked["number"],
                asked["parts"],
                memoryview(self._coming.pop(asked["part"])),
            )

    def close(self) -> None:
        """Frees the memory."""
        if self._slots is not None and self._memory is not None:
            self._slots.close()
            self._memory.close()
