"""Inputs and outputs of the signatures of a saved model, as a script names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf


class ServingInputReceiver:
    """A served model's inputs: ``features`` for ``model_fn``, and the fed tensors, by name."""

    def __init__(
        self,
        features: object,
        receiver_tensors: tf.Tensor | Mapping[str, tf.Tensor],
        receiver_tensors_alternatives: Mapping[str, object] | None = None,
    ) -> None:
        self.features = features
        self.receiver_tensors = (
            dict(receiver_tensors)
            if isinstance(receiver_tensors, Mapping)
            else {"input": receiver_tensors}
        )
        self.receiver_tensors_alternatives = receiver_tensors_alternatives


class TensorServingInputReceiver(ServingInputReceiver):
    """The inputs of a served model whose ``model_fn`` takes a tensor."""


@dataclasses.dataclass(frozen=True)
class ExportOutput:
    """The outputs of one signature."""

    outputs: object = None

    def as_outputs(self) -> dict[str, object]:
        """Returns the tensors by name."""
        return dict(self.outputs) if isinstance(self.outputs, Mapping) else {"output": self.outputs}


class PredictOutput(ExportOutput):
    """Outputs of any tensors."""


@dataclasses.dataclass(frozen=True)
class RegressionOutput(ExportOutput):
    """An output of a number for each row."""

    value: tf.Tensor | None = None

    def __init__(self, value: tf.Tensor) -> None:
        # Written by hand, because the one of the dataclass would take `outputs` first. Frozen ones
        # are set in this way.
        object.__setattr__(self, "value", value)

    def as_outputs(self) -> dict[str, object]:
        """Returns the tensors by name."""
        return {"outputs": self.value}


@dataclasses.dataclass(frozen=True)
class ClassificationOutput(ExportOutput):
    """Outputs of scores, names of classes, or both."""

    scores: tf.Tensor | None = None
    classes: tf.Tensor | None = None

    def __init__(self, scores: tf.Tensor | None = None, classes: tf.Tensor | None = None) -> None:
        # Written by hand for the reason given in `RegressionOutput`.
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "classes", classes)

    def as_outputs(self) -> dict[str, object]:
        """Returns the tensors by name."""
        return {
            name: value
            for name, value in (("scores", self.scores), ("classes", self.classes))
            if value is not None
        }
