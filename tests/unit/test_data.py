"""Data sets are asked for by the same options, whatever they are read from."""

from __future__ import annotations

import collections
import inspect
from typing import TYPE_CHECKING, get_type_hints

import numpy as np
import pytest

from syrtos import data
from syrtos.data import cache
from syrtos.data.sources import Arrays
from syrtos.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from syrtos.keras.datasets.planned import PlannedDataset

READERS = [getattr(data, name) for name in data.__all__ if name.startswith("from_")]


def checked_by_the_type_checker(made: PlannedDataset) -> data.Dataset:
    return made


def test_the_options_are_those_of_every_data_set() -> None:
    own = inspect.signature(data.from_source).parameters
    keywords = {name for name, parameter in own.items() if parameter.kind is parameter.KEYWORD_ONLY}
    assert set(get_type_hints(data.DatasetOptions)) == keywords


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_readers_are_typed(reader: object) -> None:
    signature = inspect.signature(reader)  # type: ignore[arg-type]
    assert signature.return_annotation == "Dataset"
    assert all(
        p.annotation == "Unpack[DatasetOptions]"
        for p in signature.parameters.values()
        if p.kind is p.VAR_KEYWORD
    )


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"batch_size": 2.5}, {"batch_size": 2, "shuffle": -1}]
)
def test_wrong_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="Received"):
        data.from_arrays(np.zeros(3), **wrong)  # type: ignore[arg-type]


def test_rows_are_asked_for() -> None:
    with pytest.raises(DataError, match="lists of numbers become arrays"):
        data.from_arrays([1, 2, 3], batch_size=1)  # type: ignore[list-item]


def test_named_tuples_stay_what_they_are() -> None:
    Pair = collections.namedtuple("Pair", "x y")
    read = Arrays(Pair(np.arange(3), np.arange(3))).read(np.asarray([1]))
    assert isinstance(read, Pair)
    assert read.y.tolist() == [1]


@pytest.mark.parametrize("wrong", ["20G", "-1", "1e9"])
def test_a_wrong_size_of_the_cache_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("SYRTOS_CACHE_BYTES", wrong)
    with pytest.raises(
        ConfigurationError, match="SYRTOS_CACHE_BYTES must be a whole number of bytes"
    ):
        cache.default()
