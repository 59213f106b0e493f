"""The specs that scripts hand to an Estimator, and that their ``model_fn`` hands back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from syrtos_estimator.exporters import Exporter

if TYPE_CHECKING:
    from syrtos_estimator.protocols import SavingListener, Scaffold
    from syrtos_estimator.signatures import ExportOutput


class ModeKeys:
    """The purposes that a ``model_fn`` is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclasses.dataclass(frozen=True)
class EstimatorSpec:
    """The graph that a ``model_fn`` has built; see the documentation of TensorFlow 2.15.

    Attributes:
        mode: one of `ModeKeys`.
        predictions: tensors, or a dict of them.
        loss: a scalar; for TRAIN and EVAL.
        train_op: makes one update; for TRAIN.
        eval_metric_ops: ``(value, update)`` tensors by name, as `tf.compat.v1.metrics` gives them.
    """

    mode: str
    predictions: tf.Tensor | Mapping[str, tf.Tensor] | None = None
    loss: tf.Tensor | None = None
    train_op: object = None
    eval_metric_ops: Mapping[str, object] | None = None
    export_outputs: Mapping[str, ExportOutput] | None = None
    training_chief_hooks: Sequence[object] | None = None
    training_hooks: Sequence[object] | None = None
    scaffold: Scaffold | None = None
    evaluation_hooks: Sequence[object] | None = None
    prediction_hooks: Sequence[object] | None = None

    def __post_init__(self) -> None:
        needed = {
            ModeKeys.TRAIN: ("loss", "train_op"),
            ModeKeys.EVAL: ("loss",),
            ModeKeys.PREDICT: ("predictions",),
        }
        if self.mode not in needed:
            raise ValueError(
                f"`mode` must be one of tf.estimator.ModeKeys. Received: {self.mode!r}."
            )
        missing = [name for name in needed[self.mode] if getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"An EstimatorSpec for mode {self.mode!r} needs {' and '.join(missing)}."
            )

    def _replace(self, **kwargs: object) -> EstimatorSpec:
        """Returns a copy with other values."""
        # The original was a named tuple, and scripts use this method of it.
        return dataclasses.replace(self, **kwargs)


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """The data that `train_and_evaluate` trains on, and the global step at which it ends."""

    input_fn: Callable[..., object]
    max_steps: int | None = None
    hooks: Sequence[object] | None = None
    saving_listeners: Sequence[SavingListener] | None = None

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps <= 0:
            raise ValueError(f"Must specify max_steps > 0. Received: {self.max_steps}.")


@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """The data that `train_and_evaluate` evaluates on, the number of batches, and the exporters."""

    input_fn: Callable[..., object]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[object] | None = None
    exporters: Exporter | Iterable[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps <= 0:
            raise ValueError(f"Must specify steps > 0. Received: {self.steps}.")
        given = self.exporters
        found = [] if given is None else [given] if isinstance(given, Exporter) else list(given)
        if any(not isinstance(one, Exporter) for one in found):
            raise TypeError(
                f"`exporters` must be tf.estimator.Exporter objects. Received: {given!r}."
            )
        names = [one.name for one in found]
        if len(set(names)) < len(names):
            raise ValueError(f"Exporters must have unique names. Received: {names}.")
        # The dataclass is frozen, and an iterator that was given could be read only once.
        object.__setattr__(self, "exporters", tuple(found))


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """The source of initial weights."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] | Sequence[tf.Variable] | None = ".*"
    var_name_to_vocab_info: Mapping[str, object] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Checks the two ways of limiting steps.

    Raises:
        ValueError: both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError("Can not provide both steps and max_steps.")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}.")


def warm_start(settings: str | WarmStartSettings | None) -> None:
    """Makes the graph's variables begin from a checkpoint.

    Raises:
        ValueError: the settings have vocabularies, which are not supported.
    """
    if settings is None:
        return
    if isinstance(settings, str):
        settings = WarmStartSettings(settings)
    if settings.var_name_to_vocab_info:
        raise ValueError(
            "Warm-starting over vocabularies is not supported: give weights of equal shapes."
        )
    tf.compat.v1.train.warm_start(
        settings.ckpt_to_initialize_from,
        settings.vars_to_warm_start,
        var_name_to_prev_var_name=dict(settings.var_name_to_prev_var_name or {}),
    )
