"""The patches of Keras 2's callbacks, with the reasons. Seen to work on tf_keras 2.21."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from tf_keras.src.callbacks import BackupAndRestore

from syrtos.comm import world
from syrtos.keras.patching import Method, Patch
from syrtos.keras.tensorflow.strategy import Strategy
from syrtos.keras.trainer.callbacks import within as enclosing_callbacks
from syrtos.keras.trainer.chosen_callbacks import flatten

if TYPE_CHECKING:
    from syrtos.keras.protocols import CallbackList, Model, P

    class _CallbackList(CallbackList, Protocol):
        _should_call_train_batch_hooks: bool
        _should_call_test_batch_hooks: bool
        _should_call_predict_batch_hooks: bool

    class _Backup(Protocol):
        _supported_strategies: tuple[type, ...]


def _knowing_our_strategy(original: Method) -> Method:
    """Wraps the constructor of `BackupAndRestore`, which lists the strategies that it works with."""

    def init(self: _Backup, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        self._supported_strategies = (*self._supported_strategies, Strategy)

    return init


def _beginning_together(original: Callable[P, tuple[int, int]]) -> Callable[P, tuple[int, int]]:
    """Wraps the method that says at which epoch and step `fit` begins: rank 0's backup decides."""

    def initial_counters(*args: P.args, **kwargs: P.kwargs) -> tuple[int, int]:
        epoch, step = world.sharing().comm.broadcast_object(list(original(*args, **kwargs)))
        return epoch, step

    return initial_counters


def _build_optimizer(model: Model) -> None:
    """Makes the variables of an optimizer that is not built, if its model is."""
    # Those of `tf.keras.optimizers.legacy` have no such method.
    build = getattr(model.optimizer, "build", None)
    if build and getattr(model, "built", False) and not getattr(model.optimizer, "_built", False):
        build(model.trainable_variables)


def _callback_list(original: Method) -> Method:
    wrapped = enclosing_callbacks(original)

    def init(
        self: _CallbackList, callbacks: object = None, *args: object, **kwargs: object
    ) -> None:
        model = cast("Model | None", kwargs.get("model"))
        if model is not None and any(isinstance(c, BackupAndRestore) for c in flatten(callbacks)):
            # The callback does so on rank 0, the only one that keeps it.
            _build_optimizer(model)
        wrapped(self, callbacks, *args, **kwargs)
        # Keras 2 skips hooks that no callback has; it looked before ours were there.
        self._should_call_train_batch_hooks = True
        self._should_call_test_batch_hooks = self._should_call_predict_batch_hooks = True

    return init


PATCHES = [
    Patch(
        "tf_keras.src.callbacks:CallbackList",
        "__init__",
        _callback_list,
        "Files are written once, decisions are taken together.",
    ),
    Patch(
        "tf_keras.src.callbacks:BackupAndRestore",
        "__init__",
        _knowing_our_strategy,
        "It refuses strategies that it does not list.",
    ),
    Patch(
        "tf_keras.src.engine.training:Model",
        "_maybe_load_initial_counters_from_ckpt",
        _beginning_together,
        "Rank 0 alone has restored a backup.",
    ),
]
