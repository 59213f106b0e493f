"""The position in the data, saved with the model and found again.

It is stamped into the file that Keras has written, before that takes its place: a member of the ``.keras`` archive, an attribute of an
HDF5 file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import zipfile
from collections.abc import Callable
from typing import Any

from syrtos.data.loader import Position
from syrtos.keras.planned import PlannedDataset, Stream

_STAMP = "syrtos.json"
_TRAINED_ON, _SAVED = "_syrtos_trained_on", "_syrtos_saved"
_ENDINGS = (".keras", ".h5", ".hdf5")


@dataclasses.dataclass
class Training:
    """What a model is, or was last, trained on.

    Attributes:
        stream: its batches.
        offset: the number that `fit` gives to an epoch, less the data set's own.
    """

    stream: Stream
    offset: int


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a file says about the training of the model in it."""

    name: str
    position: Position
    offset: int
    number: int


def trains_on(model: Any, training: Training) -> None:
    """From now on the model is saved with the position."""
    object.__setattr__(model, _TRAINED_ON, training)


def trained_before(model: Any, dataset: PlannedDataset) -> tuple[Position | None, int | None]:
    """Where this model's training on the data set has come to in this process, and its number; None if it has not begun."""
    training: Training | None = getattr(model, _TRAINED_ON, None)
    if training is None or training.stream.dataset is not dataset:
        return None, None
    return training.stream.position, training.stream.number


def saved_of(model: Any) -> Saved | None:
    """What the file said that the model was loaded from, once."""
    found = getattr(model, _SAVED, None)
    if found is not None:
        object.__setattr__(model, _SAVED, None)
    return found


def stamping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around functions that save a model to a file."""

    @functools.wraps(original)
    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(model, filepath, *args, **kwargs)
        training: Training | None = getattr(model, _TRAINED_ON, None)
        path = str(filepath)
        if training is not None and path.endswith(_ENDINGS) and os.path.isfile(path):
            _stamp(path, training)
        return result

    return save


def finding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around `load_weights`, and functions that load a model."""

    def load(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        given = [*args, *kwargs.values()]
        path = next((str(each) for each in given if isinstance(each, str | os.PathLike)), None)
        model = result if result is not None else args[0]
        if path is not None and (found := _stamp_of(path)) is not None:
            object.__setattr__(model, _SAVED, found)
        return result

    return load


def _stamp(path: str, training: Training) -> None:
    stream = training.stream
    stream.mark()
    facts = {
        "data": stream.dataset.name,
        **dataclasses.asdict(stream.position),
        "offset": training.offset,
        "number": stream.number,
    }
    text = json.dumps(facts)
    if path.endswith(".keras"):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_STAMP, text)
        return
    import h5py

    with h5py.File(path, "r+") as file:
        file.attrs[_STAMP] = text


def _stamp_of(path: str) -> Saved | None:
    """None if the file is none of ours, or says nothing."""
    text = None
    with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile):
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                text = archive.read(_STAMP).decode()
        elif path.endswith(".h5"):
            import h5py

            with h5py.File(path, "r") as file:
                text = str(file.attrs[_STAMP])
    if text is None:
        return None
    facts = json.loads(text)
    return Saved(
        facts["data"], Position(int(facts["epoch"]), int(facts["place"])), int(facts["offset"]), int(facts["number"])
    )
