"""Wrappers of the methods of Keras 3's trainers on JAX and torch.

All workers call the same methods, with equal weights and batches, or shares of planned ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, cast

import keras

from syrtos.comm import world
from syrtos.keras import backend, fitting, keras_internals
from syrtos.keras.datasets import batches
from syrtos.keras.datasets.planned import PlannedDataset, Stream
from syrtos.keras.datasets.streams import stream_of
from syrtos.keras.features import registry
from syrtos.keras.patching import Method, Patch
from syrtos.keras.split import known_parts
from syrtos.keras.trainer import interrupts, replicas, timing

if TYPE_CHECKING:
    from syrtos.keras.protocols import EpochIterator, Model, P, R

    class _PlannedAdapter(Protocol):
        """Keras's adapter of a `PyDataset`, of a planned one."""

        syrtos_stream: Stream

        def _standardize_batch(self, batch: object) -> object: ...


_BATCH = ("x", "y", "sample_weight")
_ROWS = (*_BATCH, "validation_data")
_MEETING = "Workers that don't call the same are told so at once."
_EQUAL = "Replicas compute with equal weights."


def _gather_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the arguments of a method that takes rows, with all rows in this process."""
    gather = backend.active().gather_rows
    return gather(args), {
        name: gather(value) if name in _ROWS else value for name, value in kwargs.items()
    }


def method(original: Callable[Concatenate[Model, P], R]) -> Callable[Concatenate[Model, P], R]:
    """Wraps `fit`, `evaluate` or `predict`: all workers must call the same method.

    Else they get an error that says which rank calls which.
    """
    timed = timing.part_of_run(original)

    def together(self: Model, *args: P.args, **kwargs: P.kwargs) -> R:
        fitting.call_together(original.__name__)
        given, named = _gather_rows(args, kwargs)
        return timed(self, *given, **named)

    return together


def fit(original: Callable[Concatenate[Model, P], R]) -> Callable[Concatenate[Model, P], R]:
    """Wraps `fit`, which Ctrl-C ends on all workers at the same step."""
    return interrupts.hold_sigint(fitting.inside_fit(method(original)))


def on_batch(
    original: Callable[Concatenate[Model, P], R], check: batches.Check
) -> Callable[Concatenate[Model, P], R]:
    """Wraps `test_on_batch` or `predict_on_batch`: ``check`` compares the workers' batches."""

    def of_equal_batches(self: Model, *args: P.args, **kwargs: P.kwargs) -> R:
        fitting.refuse_other_threads(original.__name__)
        replicas.compute_equal(world.sharing().comm, self, original.__name__)
        given, named = _gather_rows(args, kwargs)
        batches.check_equal((given, {name: named[name] for name in _BATCH if name in named}), check)
        return original(self, *given, **named)

    return of_equal_batches


def train_on_batch(
    original: Callable[Concatenate[Model, P], R], check: batches.Check
) -> Callable[Concatenate[Model, P], R]:
    """Wraps `train_on_batch`: ``check`` compares what the workers were given."""
    trained = fitting.inside_fit(on_batch(original, check))

    def train_and_note(self: Model, *args: P.args, **kwargs: P.kwargs) -> R:
        for feature in registry.active():
            feature.train_on_batch_begins()
        result = trained(self, *args, **kwargs)
        replicas.was_trained(self)
        return result

    return train_and_note


FIT = Patch("keras:Model", "fit", fit, _MEETING)


def of_model(check: batches.Check) -> list[Patch]:
    """Returns the patches of the methods by which a model trains, evaluates and predicts.

    ``check`` compares what the workers were given as one batch.
    """

    def train(original: Method) -> Method:
        return train_on_batch(original, check)

    def compute(original: Method) -> Method:
        return on_batch(original, check)

    return [
        FIT,
        *(Patch("keras:Model", name, method, _MEETING) for name in ("evaluate", "predict")),
        Patch("keras:Model", "train_on_batch", train, _EQUAL),
        *(
            Patch("keras:Model", name, compute, _EQUAL)
            for name in ("test_on_batch", "predict_on_batch")
        ),
    ]


def epoch_iterator(
    original: Callable[Concatenate[EpochIterator, P], None],
) -> Callable[Concatenate[EpochIterator, P], None]:
    """Wraps the `__init__` of a trainer's iterator over an epoch: workers agree on its length.

    An iterator over a planned data set gets a stream of this worker's shares.
    """

    def init(self: EpochIterator, *args: P.args, **kwargs: P.kwargs) -> None:
        original(self, *args, **kwargs)
        fitting.about_to_use(self)
        keras_internals.set_length(self, fitting.agree_on_length(self._num_batches))
        dataset = getattr(self.data_adapter, "py_dataset", None)
        if isinstance(dataset, PlannedDataset):
            adapter = cast("_PlannedAdapter", self.data_adapter)
            adapter.syrtos_stream = Stream(dataset, adapter._standardize_batch)

    return init


def _symbolic_build(original: Method) -> Method:
    def symbolic_build(self: Model, iterator: object = None, data_batch: object = None) -> None:
        stream = stream_of(iterator)
        with known_parts.noting_build(self):
            original(self, iterator, stream.example() if stream else data_batch)

    return symbolic_build


def input_of(iterator: str, batches_of: Callable[[Method], Method]) -> list[Patch]:
    """Returns the patches of where a trainer gets its batches.

    Args:
        iterator: the name of its iterator's class.
        batches_of: wraps the method that makes the batches.
    """
    return [
        Patch(iterator, "__init__", epoch_iterator, "Workers compare the lengths of their data; planned data sets have shares of their own."),
        *(
            Patch("keras:Model", name, _symbolic_build, "The original draws a batch; of a planned data set that is a share.")
            # Where there is a second one, on JAX from Keras 3.16 on, it draws the batch.
            for name in ("_symbolic_build", "_maybe_symbolic_build")
            if hasattr(keras.Model, name)
        ),
        Patch(iterator, "_get_iterator", batches_of, "Workers compare what they read."),
    ]  # fmt: skip
