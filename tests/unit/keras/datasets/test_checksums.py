"""Checksums of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syrtos.keras.datasets.checksums import checksum_of, compared_rows, is_compared


def test_the_first_batches_are_compared_and_then_every_64th() -> None:
    found = [number for number in range(200) if is_compared(number)]
    assert found == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(8.0), np.arange(8.0)[::-1]),
        (np.zeros(8), np.eye(1, 8)[0]),
        (np.array([b"a", b"bc"], object), np.array([b"ab", b"c"], object)),
        (np.array("a", object), np.array("b", object)),
        (np.array(["a"]), np.array(["b"])),
        (np.zeros([0, 2]), np.zeros([1, 2])),
    ],
)
def test_arrays_that_differ_have_other_checksums(one: Any, other: Any) -> None:
    assert checksum_of([one]) == checksum_of([one.copy()])
    assert checksum_of([one]) != checksum_of([other])


def test_of_a_large_array_rows_from_all_over_it_are_compared() -> None:
    large = np.arange(5 * 10_000.0).reshape(5, 10_000)
    np.testing.assert_array_equal(compared_rows(large), large[[0, 2, 4]])
    labels = np.arange(20_000)
    swapped = np.concatenate([labels[:1], labels[1:-1][::-1], labels[-1:]])
    assert checksum_of([labels]) != checksum_of([swapped])
    texts = np.array([b"x" * 9] * 999, object)
    assert len(compared_rows(texts)) == 64
