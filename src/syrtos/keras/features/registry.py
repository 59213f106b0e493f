"""The features of a run, from this folder's files and the entry point group ``syrtos.features``."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import syrtos.keras.features
from syrtos import entry_points
from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras.features.feature import Feature
from syrtos.keras.patching import Patch
from syrtos.keras.updates import Update

# The methods about a step and its update, which only some backends call.
OF_STEPS = ("around_step", "around_update", "check_gradients", "change_gradients", "count_samples")
# Those by which our own features train apart; the backends know these features alone.
_OF_OURS = ("trains_apart", "is_between_meetings", "replicas_differ", "meet")


def ours() -> dict[str, type[Feature]]:
    """Returns the classes of our own features by their names."""
    modules = (
        importlib.import_module(f"{syrtos.keras.features.__name__}.{found.name}")
        for found in pkgutil.iter_modules(syrtos.keras.features.__path__)
    )
    return {m.FEATURE.name: m.FEATURE for m in modules if hasattr(m, "FEATURE")}


def of_other_packages(known: Collection[str]) -> dict[str, type[Feature]]:
    """Returns the classes of features that other packages' entry points name.

    ``known``: the names of syrtos's own features.

    Raises:
        ConfigurationError: one of them can't be loaded, is no feature, or has the name of another.
    """
    found: dict[str, type[Feature]] = {}
    for name in entry_points.names(entry_points.FEATURES):
        kind = entry_points.load(entry_points.FEATURES, name)
        is_feature = isinstance(kind, type) and issubclass(kind, Feature)
        if not is_feature or name in known or _defines(kind, _OF_OURS):
            raise ConfigurationError(
                f"The entry point `{name}` of the group {entry_points.FEATURES} should name a class"
                " on `syrtos.keras.features.feature.Feature`, under a name that none of syrtos's"
                f" own has ({', '.join(known)}) and without {', '.join(_OF_OURS)}. It names"
                f" {kind!r}."
            )
        kind.name = name
        found[name] = kind
    return found


def _defines(kind: type[Feature], methods: Sequence[str]) -> bool:
    return any(getattr(kind, name) is not getattr(Feature, name) for name in methods)


class _ActiveFeatures:
    """The features that act in this process, each around those before it."""

    def __init__(self, session: Session) -> None:
        known = ours()
        others = of_other_packages(known)
        kinds = [kind for kind in {**known, **others}.values() if kind.is_asked(session)]
        self.features = sorted(
            (kind(session) for kind in kinds), key=lambda one: (one.nesting, one.name)
        )
        self.others = [one for one in self.features if one.name in others]
        self.change_gradients = any(_defines(kind, ("change_gradients",)) for kind in kinds)
        if others and session.world.size > 1:
            # A worker whose host lacks the package makes another call here, and `agree` fails.
            session.comm.agree(f"options of training: {[one.name for one in self.others]}")


def _of_run() -> _ActiveFeatures:
    return world.part(_ActiveFeatures)


def active() -> Sequence[Feature]:
    """Returns the features that act in this run, the outermost last."""
    return _of_run().features


def patches(of_framework: Mapping[str, Sequence[Patch]]) -> list[Patch]:
    """Returns the patches of the features that act.

    ``of_framework``: what some need on the framework in use besides, by the feature's name.
    """
    return [
        patch
        for feature in active()
        for patch in (*feature.patches(), *of_framework.get(feature.name, ()))
    ]


def others_defining(*methods: str) -> list[Feature]:
    """Returns the active features of other packages that define one of these methods."""
    return [feature for feature in _of_run().others if _defines(type(feature), methods)]


def refuse_steps(where: str) -> None:
    """Refuses other packages' features that need steps or updates which they can't change.

    ``where``: the case in which they can't, e.g. "on JAX".

    Raises:
        ConfigurationError: there is such a feature.
    """
    if found := others_defining(*OF_STEPS):
        raise ConfigurationError(
            f"The option of training `{found[0].name}`, of another package, acts in steps or"
            f" updates. No such option can do that {where}. Use TensorFlow or torch with Keras 3,"
            " or leave it out."
        )


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
    """Returns the session over which a step computes: this worker alone, if workers train apart."""
    return session.asynchronously() if training and trains_apart() else session


def sum_factor(training: bool) -> int:
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


def check_gradients(update: Update, grads: Sequence[Any], own: Sequence[Any]) -> Sequence[Any]:
    """Returns the reduced gradients of an update, once all features have looked at them."""
    for feature in active():
        grads = feature.check_gradients(update, grads, own)
    return grads


def changes_gradients() -> bool:
    """Returns whether a feature changes reduced gradients.

    The gradients must be whole and this worker's own then.
    """
    return _of_run().change_gradients


def change_gradients(update: Update, grads: Sequence[Any]) -> Sequence[Any]:
    """Returns the gradients of an update as all features leave them, before they are clipped."""
    for feature in active():
        grads = feature.change_gradients(update, grads)
    return grads
