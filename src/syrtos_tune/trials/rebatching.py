"""The data of a script's `fit` in batches of another size, for trials.

It is repeated where it ends too early, and no batch is smaller than the others. Serves Keras 3 and
Keras 2.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals

if TYPE_CHECKING:
    import tensorflow as tf
    from keras.utils import PyDataset

    from syrtos.keras.datasets.planned import PlannedDataset
    from syrtos.keras.protocols import Model

    class _Rows(Protocol):
        @property
        def shape(self) -> Sequence[int]: ...


# Returns the rows of a new batch for those of the script's own.
Size = Callable[[int], int]
# Batches of an epoch, or epochs, where a trial ends by itself long before.
ENDLESS = 10**6
_KERAS_DEFAULT = 32
# Steps of an epoch, at least: its first is slower, as the input begins anew, and is not measured.
_LEAST_STEPS = 3
_IN_MEMORY = ("x", "y", "sample_weight")


@dataclasses.dataclass(frozen=True)
class Rebatched:
    """The arguments of `fit` with other batches, and what is known of them.

    Attributes:
        arguments: arguments of `fit`, in place of the script's.
        batch: rows of a batch.
        own: rows of the script's batches.
        note: what else the data differs in from the script's, in words; empty for nothing.
        rows: how many an epoch of the script trains on; 0 if that is not known.
    """

    arguments: dict[str, object]
    batch: int
    own: int
    note: str = ""
    rows: int = 0


def rebatch_data(model: Model, given: Mapping[str, Any], size: Size) -> Rebatched:
    """Returns the data among the arguments ``given`` to `fit`, in batches of another size.

    They have ``size(own)`` rows, where the script's have ``own``.

    Raises:
        ConfigurationError: data of a kind whose batches can't be changed.
    """
    keras = keras_internals.keras_of(model)
    x: Any = given.get("x")
    tree, made = _tree(keras), _choose_maker(keras, x, keras_internals.steps_in_call(model))
    if made is not None:
        return made(tree, x, size)
    if hasattr(x, "__next__"):
        return _of_generator(tree, x, size)
    leaves = tree.flatten(x)
    if not leaves or not all(len(getattr(leaf, "shape", ())) for leaf in leaves):
        raise ConfigurationError(
            "`syrtos tune batch` can change the batches of arrays, tf.data, PyDataset, torch's"
            f" DataLoader and generators. `fit` was given {type(x).__name__}."
        )
    return _of_arrays(tree, given, leaves, size, keras_internals.steps_in_call(model))


# A function that rebatches one kind of data: it is given this Keras's functions on nested
# structures, the data, and the new size.
Make = Callable[[ModuleType, Any, Size], Rebatched]


def _choose_maker(keras: ModuleType, x: object, each: int) -> Make | None:
    """Returns the function that rebatches data of the kind of ``x``, which has its own batches.

    None for arrays and generators.
    """
    planned = sys.modules.get("syrtos.keras.datasets.planned")
    tensorflow, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if planned is not None and isinstance(x, planned.PlannedDataset):
        return _of_planned
    if isinstance(x, keras.utils.Sequence):  # which is PyDataset in Keras 3
        return functools.partial(_of_py_dataset, keras, each)
    if tensorflow is not None and isinstance(x, tensorflow.data.Dataset):
        return _of_pipeline
    if torch is not None and isinstance(x, torch.utils.data.DataLoader):
        return functools.partial(_of_loader, torch.utils.data)
    return None


def _tree(keras: ModuleType) -> ModuleType:
    """Returns the functions on nested structures of this Keras."""
    return keras.tree if hasattr(keras, "tree") else importlib.import_module("tensorflow").nest


def _rows(tree: ModuleType, batch: object) -> int:
    return next(
        (int(leaf.shape[0]) for leaf in tree.flatten(batch) if len(getattr(leaf, "shape", ()))), 0
    )


# -- arrays ----------------------------------------------------------------------------------------


def _of_arrays(
    tree: ModuleType, given: Mapping[str, Any], leaves: list[_Rows], size: Size, each: int
) -> Rebatched:
    rows = _count_trained_rows(int(leaves[0].shape[0]), given)
    own = min(int(given.get("batch_size") or _KERAS_DEFAULT), rows)
    batch = size(own)
    least, whole = _steps(rows // batch, each)
    if least > rows // batch:
        take, note = (
            functools.partial(_repeat_rows, rows=least * batch, of=rows),
            _repeated_note(rows, "rows"),
        )
    else:
        take, note = functools.partial(_first, rows=whole * batch), ""
    data = {
        name: tree.map_structure(take, given[name])
        for name in _IN_MEMORY
        if given.get(name) is not None
    }
    return Rebatched({**data, "batch_size": batch, "steps_per_epoch": None}, batch, own, note, rows)


def _count_trained_rows(rows: int, given: Mapping[str, Any]) -> int:
    """Returns how many rows Keras trains on: all but the last ones, split off for validation."""
    split = (
        0.0 if given.get("validation_data") is not None else given.get("validation_split") or 0.0
    )
    return max(math.floor(rows * (1.0 - split)), 1)


def _steps(steps: int, each: int) -> tuple[int, int]:
    """Returns the least number of steps of an epoch, and how many of ``steps`` whole calls take.

    A call of the training function takes ``each`` steps.
    """
    return (each if each > 1 else _LEAST_STEPS), steps // each * each


def _repeated_note(rows: int, what: str) -> str:
    return f"the data has {rows:,} {what}, which were repeated"


def _first(leaf: Any, rows: int) -> Any:
    return leaf if leaf is None else leaf.iloc[:rows] if hasattr(leaf, "iloc") else leaf[:rows]


def _repeat_rows(leaf: Any, rows: int, of: int) -> Any:
    if leaf is None:
        return leaf
    array = np.asarray(_first(leaf, of))
    return np.concatenate([array] * math.ceil(rows / len(array)))[:rows]


# -- data that has its own batches -----------------------------------------------------------------


def _of_pipeline(tree: ModuleType, x: tf.data.Dataset[Any], size: Size) -> Rebatched:
    """Rebatches a `tf.data.Dataset` of batches.

    What its own functions do to a batch is done to the script's batches, before they are joined or
    taken apart.
    """
    shapes = [leaf.shape for leaf in tree.flatten(x.element_spec) if hasattr(leaf, "shape")]
    own = next((shape[0] for shape in shapes if shape.rank), None) or _rows(tree, next(iter(x)))
    batch = size(own)
    same = x.filter(functools.partial(_is_whole, tree, own)).repeat()
    made = same if batch == own else x.repeat().rebatch(batch, drop_remainder=True).prefetch(2)
    # A cardinality less than 0 stands for endless data, or for data of unknown length.
    rows = max(int(x.cardinality()), 0) * own
    return Rebatched({"x": made, "steps_per_epoch": ENDLESS}, batch, own, rows=rows)


def _is_whole(tree: ModuleType, rows: int, *batch: tf.Tensor) -> tf.Tensor:
    """Returns whether a batch is not the smaller last one, in the graph of a pipeline."""
    tensorflow = sys.modules["tensorflow"]
    first = next(leaf for leaf in tree.flatten(batch) if leaf.shape.rank)
    return tensorflow.shape(first)[0] == rows


def _of_planned(_tree: ModuleType, x: PlannedDataset, size: Size) -> Rebatched:
    """Rebatches a data set of `syrtos.data`, which makes batches of any size itself."""
    own, records = x.loader.batch, len(x.loader.source)
    batch = size(own)
    if batch > records:
        raise ConfigurationError(
            f"A batch of {batch:,} has more rows than the data set of syrtos.data, which has"
            f" {records:,} records."
        )
    loader = dataclasses.replace(x.loader, batch=batch)
    return Rebatched({"x": type(x)(loader), "steps_per_epoch": None}, batch, own, rows=records)


def _of_loader(data: ModuleType, _tree: ModuleType, x: Any, size: Size) -> Rebatched:
    """Rebatches a `DataLoader` of torch: makes it anew with the same options."""
    endless = isinstance(x.dataset, data.IterableDataset)
    if not endless and type(x.batch_sampler) is not data.BatchSampler:
        raise ConfigurationError(
            "`syrtos tune batch` can't change the batches of a DataLoader with a batch_sampler of"
            f" its own ({type(x.batch_sampler).__name__}). Give it `batch_size` and `sampler` in"
            " its place."
        )
    batch, options, note = size(x.batch_size), {}, ""
    dataset = x.dataset
    if not endless and len(x.sampler) < batch:
        note = _repeated_note(len(x.sampler), "records")
        dataset = data.ConcatDataset([x.dataset] * math.ceil(batch / len(x.sampler)))
        options["shuffle"] = isinstance(x.sampler, data.RandomSampler)
    elif not endless:
        options["sampler"] = x.sampler
    same = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "prefetch_factor",
        "persistent_workers",
    )
    options |= {name: getattr(x, name) for name in same}
    made = data.DataLoader(dataset, batch_size=batch, drop_last=True, **options)
    rows = 0 if endless else len(x.sampler)
    return Rebatched({"x": made, "steps_per_epoch": None}, batch, x.batch_size, note, rows)


def _of_py_dataset(
    keras: ModuleType, each: int, tree: ModuleType, x: PyDataset, size: Size
) -> Rebatched:
    """Rebatches a `PyDataset` or `Sequence`: the script's batches are joined and taken apart."""
    own, length = _rows(tree, x[0]), _length(x)
    batch = size(own)
    whole = (
        length if length is None or length == 1 or _rows(tree, x[length - 1]) == own else length - 1
    )
    if whole is None:
        steps, note = None, ""
    else:
        least, steps = _steps(whole * own // batch, each)
        note = _repeated_note(whole * own, "rows") if steps < least else ""
        steps = max(least, steps)
    made = _class_over(keras.utils.Sequence)(tree, x, own, batch, whole, steps)
    return Rebatched(
        {"x": made, "steps_per_epoch": ENDLESS if whole is None else None},
        batch,
        own,
        note,
        (whole or 0) * own,
    )


def _length(x: Any) -> int | None:
    """Returns the number of batches in an epoch; None for endless data."""
    if hasattr(x, "num_batches"):  # Keras 3
        return x.num_batches
    return len(x)


@functools.cache
def _class_over(base: type) -> type:
    """Returns a class of data sets for this Keras, which joins another's batches and cuts them."""

    class Joined(base):
        def __init__(
            self,
            tree: ModuleType,
            inner: PyDataset,
            own: int,
            batch: int,
            batches: int | None,
            steps: int | None,
        ) -> None:
            names = ("workers", "use_multiprocessing", "max_queue_size")
            super().__init__(
                **{name: getattr(inner, name) for name in names if hasattr(inner, name)}
            )
            self._tree, self._inner, self._own, self._batch, self._batches, self._steps = (
                tree,
                inner,
                own,
                batch,
                batches,
                steps,
            )

        def __len__(self) -> int:
            return self._steps or ENDLESS

        @property
        def num_batches(self) -> int | None:
            return self._steps

        def __getitem__(self, index: int) -> object:
            first, end = index * self._batch, (index + 1) * self._batch
            numbers = range(first // self._own, (end - 1) // self._own + 1)
            parts = [
                self._inner[number % self._batches if self._batches else number]
                for number in numbers
            ]
            return _cut(self._tree, parts, first - numbers[0] * self._own, self._batch)

        def on_epoch_end(self) -> None:
            self._inner.on_epoch_end()

    return Joined


def _of_generator(tree: ModuleType, x: Iterator[object], size: Size) -> Rebatched:
    first = next(x, None)
    own = 0 if first is None else _rows(tree, first)
    if not own:
        raise ConfigurationError(
            "`fit` was given a generator whose first batch has no rows. Check the data that it is"
            " made from."
        )
    batch = size(own)
    return Rebatched(
        {"x": _join_batches(tree, x, first, batch), "steps_per_epoch": ENDLESS}, batch, own
    )


def _join_batches(
    tree: ModuleType, source: Iterator[object], first: object, batch: int
) -> Iterator[object]:
    """Yields batches of ``batch`` rows from the batches of a generator.

    Where the generator ends, its first batch follows again and again.
    """
    parts: list[object] = []
    held, following = 0, first
    while True:
        parts.append(following)
        held += _rows(tree, following)
        while held >= batch:
            yield _cut(tree, parts, 0, batch)
            parts, held = (
                [_cut(tree, parts, batch, held - batch)] if held > batch else [],
                held - batch,
            )
        following = next(source, first)


def _cut(tree: ModuleType, parts: Sequence[object], first: int, rows: int) -> object:
    """Returns ``rows`` rows, from the row ``first`` on, of batches that follow each other."""

    def cut(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        whole = (
            leaves[0] if len(leaves) == 1 else np.concatenate([np.asarray(leaf) for leaf in leaves])
        )
        return whole[first : first + rows]

    return tree.map_structure(cut, *parts)
