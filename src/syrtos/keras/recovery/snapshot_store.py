"""The snapshots of a worker's process.

Its parts of them lie in the memory of its host; those of each `fit` that has ended lie in files.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from syrtos import settings
from syrtos.checkpoint import encoding, ended_fits, head
from syrtos.checkpoint.encoding import Arrays
from syrtos.checkpoint.slots import Slots
from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras.replica import snapshot
from syrtos.observe import memory

# At most this part of the memory that is free.
_MEMORY = 0.8
# The states of so many calls of `fit` that have ended are kept, and so many bytes of each worker;
# later ones are trained again.
KEPT_FITS = 64
_KEPT_BYTES = 2 << 30


@dataclasses.dataclass
class Progress:
    """A place in a run: how far it has come.

    Attributes:
        fit: number of the call of `fit` in the script, from 1.
        calls: calls of the training function in it.
        first_epoch: the epoch with which it began.
        epoch: the epoch that was trained last.
        epoch_ended: whether the callbacks of that epoch's end have been called, too.
        cut: whether a callback has stopped training within it.
        ended: whether the call of `fit` has ended.
        trained: steps of all calls of `fit` so far.
        data: epoch and place in a planned data set at which it began, and the number of its
            training there; None for other data.
        commits: how often the script itself has committed a state, in the place of all other
            snapshots.
    """

    fit: int = 0
    calls: int = 0
    first_epoch: int = 0
    epoch: int = 0
    epoch_ended: bool = False
    cut: bool = False
    ended: bool = False
    trained: int = 0
    data: tuple[int, int, int] | None = None
    commits: int = 0


@dataclasses.dataclass
class CommittedSnapshot:
    """A snapshot as the next generation finds it.

    Attributes:
        place: how far the run had come.
        facts: what was stored of this worker.
        alike: the arrays that all workers held alike.
        mine: the arrays of this worker alone.
    """

    place: Progress
    facts: snapshot.Facts
    alike: Arrays
    mine: Arrays


class SnapshotStore:
    """The snapshots of this process."""

    def __init__(self, text: str, session: Session) -> None:
        """
        Args:
            text: what the launcher or agent has written into the environment: the places of slots,
                the folder for `fit`s that have ended, and the treatment of other batches.
            session: the workers.
        """
        told = json.loads(text)
        self.slots = Slots([tuple(pair) for pair in told["places"]])
        self.folder = Path(told["folder"])
        self.batches: settings.OtherBatches = told["batches"]
        self.world, self._comm, self._ledger = session.world, session.comm, session.ledger
        self.number = self.slots.committed_number()
        self.fits = 0
        self.has_inner = False  # whether a callback has called `fit`
        self.kept = 0  # bytes of the states of `fit`s that have ended
        # There is room where the generation before has written a snapshot.
        self._has_room = self.number > 0
        self.last = self._read_place()
        self.found = self.last.fit  # up to which there is something to put back
        # the lengths of logs when the `fit`s that are left out ended, by their paths
        self.logs: dict[str, int] = {}
        self.interval = 1.0  # calls between two snapshots
        self.took: float | None = None  # seconds of the last snapshot of this process
        self.trained_before = (
            self.last.trained
        )  # steps of the generations before, of a state that the script commits

    def _read_place(self) -> Progress:
        if not self.number:
            return Progress()
        return Progress(**head.first_facts(self.slots.pieces(0, self.number))["place"])

    def committed_state(self, number: int) -> CommittedSnapshot | None:
        """Returns what is to be put back into the ``number``-th `fit`; None if it begins anew."""
        if number > self.found:
            return None
        if number == self.last.fit:
            parts = [
                self.slots.read(part, self.number) for part in range(self.slots.parts(self.number))
            ]
        else:
            parts = self._parts_of_ended_fit(number)
            if not parts:
                # All calls of `fit` that follow are trained again: they go on from this one.
                self.found = 0
                print(
                    f"syrtos: the state of fit {number} is damaged or lost: it is trained again",
                    file=sys.stderr,
                )
                return None
        arrays = {name: array for part in parts for name, array in encoding.unpack(part).items()}
        pieces = [
            arrays[_of_rank(rank)].tobytes()
            for rank in range(sum(name.startswith("rank ") for name in arrays))
        ]
        facts, mine = snapshot.own_of(pieces, self.world.rank, self.world.size)
        return CommittedSnapshot(Progress(**facts["place"]), facts, arrays, mine)

    def _parts_of_ended_fit(self, number: int) -> list[bytes]:
        """Returns the parts of the state of an ended `fit`, from files; empty if no host has them.

        They are files of this host, or of another where this one has come later.
        """
        parts, damaged = ended_fits.read(self._folder(number))
        for path in damaged:
            print(
                f"syrtos: {path} is damaged, as it has another SHA-256 than was written, and is not"
                " used.",
                file=sys.stderr,
            )
        have = self._comm.agree("state of a fit that has ended", float(len(parts)))
        # once all workers have read them
        if self.world.local_rank == 0:
            ended_fits.put_aside(damaged)
        if all(have) or not any(have):
            return parts
        root = next(rank for rank, count in enumerate(have) if count)
        sent = [np.frombuffer(part, np.uint8) for part in parts] if self.world.rank == root else []
        return [bytes(part) for part in self._comm.broadcast_object(sent, root)]

    def write(self, place: Progress, alike: Arrays, packed: dict[int, bytes]) -> None:
        """Writes this worker's part of the next snapshot. No array may change meanwhile.

        Args:
            place: how far the run has come.
            alike: the arrays that all workers hold alike and this one stores.
            packed: what some ranks store for themselves, by rank.
        """
        arrays = {_of_rank(rank): np.frombuffer(own, np.uint8) for rank, own in packed.items()}
        part = encoding.pieces(alike | arrays, {"place": dataclasses.asdict(place)})
        self._check_room(sum(map(len, part)))
        self.slots.write(self.world.local_rank, self.number, self.world.local_size, *part)

    def _check_room(self, size: int) -> None:
        """Checks that memory suffices for two snapshots beside training.

        It does so before the first snapshot of this generation.

        ``size``: the bytes of this worker's part.

        Raises:
            MemoryError: they would take what training needs.
        """
        if self._has_room:
            return
        needed, free = 2 * size * self.world.local_size, memory.now().available
        if needed > _MEMORY * free:
            raise MemoryError(
                f"two snapshots would take {needed >> 20:,} MB of this machine's memory, of which"
                f" {free >> 20:,} MB are free"
            )
        self._has_room = True

    def keep_ended(self) -> None:
        """Writes the ended `fit`'s state to a file, before its memory is used for another `fit`."""
        folder = self._folder(self.last.fit)
        if not self.last.ended or self.last.fit > KEPT_FITS or ended_fits.are_there(folder):
            return
        try:
            self._keep(folder)
        except OSError as error:
            print(
                f"syrtos: fit {self.last.fit} would be trained again after a restart: {error}",
                file=sys.stderr,
            )

    def _keep(self, folder: Path) -> None:
        # As many parts as there were workers, who may have been more than now.
        parts = self.slots.parts(self.number)
        for number in range(self.world.local_rank, parts, self.world.local_size):
            part = self.slots.read(number, self.number)
            self.kept += len(part)
            if self.kept > _KEPT_BYTES:
                return
            ended_fits.write(folder, number, parts, part, writer=self.world.rank)

    def commit(self, arrays: Arrays) -> None:
        """Keeps a state of the script, all of which is written by each host's first worker."""
        self.number += 1
        self.last = Progress(
            commits=self.last.commits + 1,
            trained=self.trained_before + self._ledger.trained,
        )
        if self.world.local_rank == 0:
            self.slots.write(
                0,
                self.number,
                1,
                *encoding.pieces(arrays, {"place": dataclasses.asdict(self.last)}),
            )

    def _folder(self, fit: int) -> Path:
        """Returns the folder of a `fit` of this run."""
        # With the run's seed in its name: a host that shares no folder with the launcher may still
        # have the files of an earlier run.
        return self.folder / f"fit-{fit}-{settings.common_seed():x}"


def _of_rank(rank: int) -> str:
    return f"rank {rank}"


class _StoreOfSession:
    """The snapshots of a session; None where nothing keeps them."""

    def __init__(self, session: Session) -> None:
        text = settings.take(settings.SNAPSHOTS_VARIABLE)
        self.store = SnapshotStore(text, session) if text else None


def of_run() -> SnapshotStore | None:
    """Returns the snapshots of this process; None where nothing keeps them."""
    return world.part(_StoreOfSession).store
