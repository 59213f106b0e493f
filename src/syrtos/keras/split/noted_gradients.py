"""Notes the gradients that optimizers are given, e.g. while a step is traced."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from syrtos.scopes import set_within

# Takes an optimizer, the gradients that it is given, and their variables, of the classes of the
# backend.
Note = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class GradientNotes:
    """A function that is given the gradients of optimizers.

    Attributes:
        note: takes the optimizer, its gradients (None for a variable without one), and the
            variables.
        updates: whether the optimizers make their updates too.
    """

    note: Note
    updates: bool


_notes: ContextVar[GradientNotes | None] = ContextVar("notes", default=None)
_note_reduced: ContextVar[Note | None] = ContextVar("note_reduced", default=None)


@contextlib.contextmanager
def noting_gradients(note: Note, updates: bool = False) -> Iterator[None]:
    """Context manager: ``note`` is given the gradients of optimizers, in the place of updates.

    With ``updates`` it is called before each of them; see `GradientNotes`.
    """
    with set_within(_notes, GradientNotes(note, updates)):
        yield


def noting() -> GradientNotes | None:
    """Returns what notes the gradients of optimizers; None: nothing does."""
    return _notes.get()


@contextlib.contextmanager
def noting_nothing() -> Iterator[None]:
    """Context manager: gradients that an optimizer passes to another one are not noted again."""
    with set_within(_notes, None):
        yield


@contextlib.contextmanager
def noting_reduced(note: Note) -> Iterator[None]:
    """Context manager: ``note`` is given each update's gradients after their exchange."""
    with set_within(_note_reduced, note):
        yield


def tell_reduced(gradients: Callable[[], object]) -> None:
    """Gives the gradients of an update, after their exchange, to the function that notes them."""
    if (note := _note_reduced.get()) is not None:
        note(gradients())
