"""The position in the data, saved with the model and found again.

The script's own learning rate is saved and found in the same way, if it is scaled. Both are stamped
into the file that Keras has written, before that takes its place: a member of the ``.keras``
archive, an attribute of an HDF5 file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate

from syrtos.data.loader import Position
from syrtos.keras.datasets.planned import PlannedDataset, Stream
from syrtos.keras.features import learning_rate
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, P, R

_STAMP = "syrtos.json"
_ENDINGS = (".keras", ".h5", ".hdf5")


@dataclasses.dataclass
class TrainedData:
    """The data that a model is, or was last, trained on.

    Attributes:
        stream: its batches.
        offset: the number that `fit` gives to an epoch, less the data set's own.
    """

    stream: Stream
    offset: int


@dataclasses.dataclass(frozen=True)
class SavedPosition:
    """The facts in a file about the training of the model in it."""

    name: str
    position: Position
    offset: int
    number: int


@dataclasses.dataclass
class _ModelRecord:
    """The record of a model's training.

    Attributes:
        trained_on: the data that it is trained on.
        saved: the facts in the file that it was loaded from, until they are asked for.
    """

    trained_on: TrainedData | None = None
    saved: SavedPosition | None = None


def trains_on(model: Model, training: TrainedData) -> None:
    """Notes the data that a model is trained on: from now on it is saved with its position."""
    record_of(model, _ModelRecord).trained_on = training


def trained_before(model: Model, dataset: PlannedDataset) -> tuple[Position | None, int | None]:
    """Returns how far a model's training on a data set has come in this process, and its number.

    Both are None if it has not begun.
    """
    training = read_record(model, _ModelRecord).trained_on
    if training is None or training.stream.dataset is not dataset:
        return None, None
    return training.stream.position, training.stream.number


def saved_of(model: Model) -> SavedPosition | None:
    """Returns the facts in the file the model was loaded from, at the first call; else None."""
    record = record_of(model, _ModelRecord)
    found, record.saved = record.saved, None
    return found


def saving_position(
    original: Callable[Concatenate[Model, object, P], R],
) -> Callable[Concatenate[Model, object, P], R]:
    """Wraps functions that save a model to a file: they save the position, too."""

    @functools.wraps(original)
    def save(model: Model, filepath: object, *args: P.args, **kwargs: P.kwargs) -> R:
        result = original(model, filepath, *args, **kwargs)
        facts, path = _facts(model), str(filepath)
        if facts and path.endswith(_ENDINGS) and os.path.isfile(path):
            _stamp(path, facts)
        return result

    return save


def finding(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `load_weights`, and functions that load a model: they find the position, too."""

    def load(*args: P.args, **kwargs: P.kwargs) -> R:
        result = original(*args, **kwargs)
        given = [*args, *kwargs.values()]
        path = next((str(each) for each in given if isinstance(each, str | os.PathLike)), None)
        model = result if result is not None else args[0]
        if path is not None and (facts := _stamp_of(path)):
            _take(model, facts)
        return result

    return load


def _facts(model: Model) -> dict[str, object]:
    """Returns the facts that a file of the model is to hold."""
    facts: dict[str, object] = {}
    training = read_record(model, _ModelRecord).trained_on
    if training is not None:
        stream = training.stream
        stream.mark()
        position = dataclasses.asdict(stream.position)
        facts |= {
            "data": stream.dataset.name,
            **position,
            "offset": training.offset,
            "number": stream.number,
        }
    rate = learning_rate.base_rate(getattr(model, "optimizer", None))
    return facts if rate is None else facts | {"base_rate": rate}


def _take(model: object, facts: dict[str, Any]) -> None:
    if "data" in facts:
        position = Position(int(facts["epoch"]), int(facts["place"]))
        saved = SavedPosition(facts["data"], position, int(facts["offset"]), int(facts["number"]))
        record_of(model, _ModelRecord).saved = saved
    optimizer: Optimizer | None = getattr(model, "optimizer", None)
    # Where weights alone were loaded, the script's own rate counts.
    restored = optimizer is not None and learning_rate.batches_trained(optimizer) > 0
    if "base_rate" in facts and restored:
        learning_rate.set_base_rate(optimizer, float(facts["base_rate"]))


def _stamp(path: str, facts: Mapping[str, object]) -> None:
    text = json.dumps(facts)
    if path.endswith(".keras"):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_STAMP, text)
        return
    import h5py

    with h5py.File(path, "r+") as file:
        file.attrs[_STAMP] = text


def _stamp_of(path: str) -> dict[str, Any] | None:
    """Returns the facts that a file was stamped with; None if it is none of ours, or holds none."""
    with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile, ValueError):
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                return json.loads(archive.read(_STAMP))
        if path.endswith(_ENDINGS):
            import h5py

            with h5py.File(path, "r") as file:
                return json.loads(str(file.attrs[_STAMP]))
    return None
