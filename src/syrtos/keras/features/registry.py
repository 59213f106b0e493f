"""The features of a run: the files of this folder that have one, and entry points of the group ``syrtos.features``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import syrtos.keras.features
from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras.features.feature import Feature
from syrtos.keras.patching import Patch
from syrtos.keras.replica.updates import Update

GROUP = "syrtos.features"


def classes() -> dict[str, type[Feature]]:
    """Returns the classes of all features by their names, sorted: ours, and those of other packages."""
    # Only here: it takes longer to import than all of this file.
    from importlib.metadata import entry_points

    ours = (
        importlib.import_module(f"{syrtos.keras.features.__name__}.{found.name}")
        for found in pkgutil.iter_modules(syrtos.keras.features.__path__)
    )
    found: dict[str, type[Feature]] = {
        module.FEATURE.name: module.FEATURE for module in ours if hasattr(module, "FEATURE")
    }
    found |= {entry.name: entry.load() for entry in entry_points(group=GROUP)}
    return dict(sorted(found.items()))


class _Chosen:
    """The features that act in this process."""

    def __init__(self, session: Session) -> None:
        self.features = [kind(session) for kind in classes().values() if kind.is_asked(session)]


def active() -> Sequence[Feature]:
    """Returns the features that act in this run, sorted by name."""
    return world.current().part(_Chosen).features


def patches(of_framework: Mapping[str, Sequence[Patch]]) -> list[Patch]:
    """Returns the patches of the features that act.

    ``of_framework``: what some need on the framework in use besides, by the feature's name.
    """
    return [
        patch
        for feature in active()
        for patch in (*feature.patches(), *of_framework.get(feature.name, ()))
    ]


@contextlib.contextmanager
def around_fit() -> Iterator[None]:
    """Context manager around a call of `fit`, for all features."""
    with contextlib.ExitStack() as stack:
        for feature in active():
            stack.enter_context(feature.around_fit())
        yield


def trains_apart() -> bool:
    """Returns whether each worker makes its next training steps alone."""
    return any(feature.trains_apart() for feature in active())


def session_of_step(session: Session, training: bool) -> Session:
    """Returns the session over which a step computes: this worker alone, where workers train apart."""
    return session.asynchronously() if training and trains_apart() else session


def sums_count(training: bool) -> int:
    """Returns the factor from this worker's sum to an estimate of the sum over all workers.

    It is the number of workers in a step in which they exchange nothing, and else 1.
    """
    return world.current().world.size if training and trains_apart() else 1


def around_step(model: Any, session: Session, step: Callable[[], object]) -> Callable[[], object]:
    """Returns a training step, wrapped by all features."""
    for feature in active():
        step = feature.around_step(model, session, step)
    return step


def around_update(
    update: Update, apply: Callable[[Sequence[Any]], None]
) -> Callable[[Sequence[Any]], None]:
    """Returns what takes an update's gradients, wrapped by all features."""
    for feature in active():
        apply = feature.around_update(update, apply)
    return apply


def after_reduction(update: Update, grads: Sequence[Any], own: Sequence[Any]) -> Sequence[Any]:
    """Returns the gradients of an update as all features leave them, before they are clipped."""
    return functools.reduce(
        lambda found, feature: feature.after_reduction(update, found, own), active(), grads
    )
