"""Loops of the script's own over a `DataLoader`: those that train are partitioned.

What the script computes from one batch to the next is one program of all workers: the batch's
tensors are this worker's rows (see `partition`), and Python sees whole ones.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import torch

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras.datasets import batches as sums
from syrtos.keras.datasets import checksums
from syrtos.keras.features import registry
from syrtos.keras.fitting import check_same_data
from syrtos.keras.split import script_modules, verdicts
from syrtos.keras.torch import backward_graphs
from syrtos.keras.torch.partition.step import PartitionedBatch, outside_of_batch
from syrtos.keras.torch.step import current_step, is_whole
from syrtos.keras.torch.torch_internals import tree_leaves

if TYPE_CHECKING:
    from syrtos.keras.torch.partition.step import Roots

    Batches = Iterator[object]
    # The file and the line of a loop.
    Place = tuple[str, int]

_Batch = TypeVar("_Batch")
# A loop of such a script is its own on each worker, or is compiled.
_LEFT_ALONE = (
    r"(?i:rank\b|is_main_process)|horovod|smdistributed|torch\.distributed"
    r"|torch\.compile\b|torch\.jit\b"
)
# Bars that show how far a loop is, between the script and its loader.
_BARS = ("tqdm", "rich")
_NOTED = 2  # batches of a loop of which it is noted what every worker computes whole


def batches_of_script(original: Callable[..., Batches]) -> Callable[..., Batches]:
    """Wraps `DataLoader.__iter__`: a loop of the script's own gets `LoopBatches`."""

    def iterate(self: object) -> Batches:
        found = original(self)
        place = _place_of_loop(sys._getframe(1))
        session = world.sharing()
        if place is None or not _may_split(session):
            return found
        return LoopBatches(found, place, session.part(ScriptLoops))

    return iterate


class LoopBatches:
    """The batches of a loop, of which each worker has its rows once the loop is known to train."""

    def __init__(self, batches: Batches, place: Place, loops: ScriptLoops) -> None:
        """
        Args:
            batches: whole ones.
            place: of the loop.
            loops: of this process.
        """
        self._batches, self._place, self._loops = batches, place, loops
        self._thread = threading.get_ident()
        self._count = 0

    def __iter__(self) -> LoopBatches:
        return self

    def __next__(self) -> object:
        if threading.get_ident() != self._thread:
            return next(self._batches)  # its exchanges would meet those of the script's own thread
        self._loops.end(self._place)
        batch = next(self._batches)
        number, self._count = self._count, self._count + 1
        return self._loops.begin(self._place, batch, number)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # pyright: ignore[reportArgumentType]

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError("The batches of a loop can't be copied.")


class _Current(NamedTuple):
    """The batch that the script computes with.

    Attributes:
        place: of its loop.
        batch: as rows.
        trained: how many updates were made before it.
    """

    place: Place
    batch: PartitionedBatch
    trained: int


class ScriptLoops:
    """The loops of the script: which of them are split, and the batch that it computes with.

    What a worker does depends on what the script does alone, not on when Python frees the iterator
    of a loop that `break` ends: the batch stays the current one, and whole tensors are computed
    with as without it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # Loops that have got a batch, and not come to their end since.
        self._open: dict[Place, None] = {}
        self._current: _Current | None = None
        self._context = contextlib.ExitStack()
        # whether a loop that trains is split, and how many of its batches were noted
        self._is_split: dict[Place, bool] = {}
        self._noted: dict[Place, int] = {}

    def begin(self, place: Place, batch: _Batch, number: int) -> _Batch:
        """Returns a batch as the script computes with it: as rows where the loop is split.

        Of several loops at once the last to begin has the current batch; rows of the others stay
        what they are.

        Args:
            place: of the loop.
            batch: the whole one.
            number: of the batch in the loop.
        """
        if self._current is None and (current_step() or is_whole()):  # in a step of a model's
            return batch
        self._open[place] = None
        if not self._is_split.get(place):
            return batch
        if checksums.is_compared(number):
            leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
            comm = self._session.comm
            check_same_data(comm.agree("compare input", sums.sum_of(leaves)), number)
        found = PartitionedBatch(
            batch, self._session, backward_graphs.parameters_of, is_of_script=True
        )
        if found.share is None:
            return batch
        self._leave()
        noted = self._noted.get(place, 0)
        if noted < _NOTED:
            self._noted[place] = noted + 1
            found.note_whole()
        ledger = self._session.ledger
        ledger.before_update()
        self._current = _Current(place, found, ledger.trained)
        ledger.count(found.samples)
        self._context.enter_context(ledger.span("compute"))
        self._context.enter_context(found.as_current())
        return found.data  # pyright: ignore[reportReturnType]

    def end(self, place: Place) -> None:
        """Ends what the script computes with a loop's batch. Results that it keeps stay usable."""
        self._open.pop(place, None)
        if self._current is not None and self._current.place == place:
            self._leave()

    def _leave(self) -> None:
        left, self._current = self._current, None
        self._context.close()
        if left is None:
            return
        left.batch.forget_parts()
        ledger = self._session.ledger
        if left.batch.has_reduced and ledger.trained == left.trained:
            ledger.note_update()  # by an optimizer of torch's
        left.batch.record_whole()

    def before_backward(self, roots: Roots) -> None:
        """Decides whether the loops that have a whole batch are split from their next ones on.

        All workers call this together.
        """
        new = [place for place in self._open if place not in self._is_split]
        if not new or threading.current_thread() is not threading.main_thread():
            return
        saves = backward_graphs.saves_time(roots, self._session.world.size)
        answers = self._session.comm.agree("does splitting a loop save time?", float(saves))
        self._is_split |= dict.fromkeys(new, all(answers))

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Context manager of a step of `fit`, or its like, that the script makes in a loop."""
        before = self._open, self._current, self._context
        self._open, self._current, self._context = {}, None, contextlib.ExitStack()
        try:
            with outside_of_batch() if before[1] else contextlib.nullcontext():
                yield
        finally:
            self._leave()  # of a loop that the step has begun
            self._open, self._current, self._context = before


def _may_split(session: Session) -> bool:
    """Returns whether a loop is one program of all workers, if it trains."""
    return (
        verdicts.is_split(session)
        and not registry.trains_apart()
        and not session.options.sync_every
        and threading.current_thread() is threading.main_thread()
        and not torch.distributed.is_initialized()
        and not script_modules.script_mentions(_LEFT_ALONE)
    )


def _place_of_loop(frame: FrameType | None) -> Place | None:
    """Returns where the script has its loop; None where another package iterates."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if script_modules.is_name_of_script(name):
            return frame.f_code.co_filename, frame.f_lineno
        if name.partition(".")[0] not in _BARS:
            return None
        frame = frame.f_back
    return None
