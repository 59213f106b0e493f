"""Data that is divided without a seed is divided alike on all workers, which begin with one seed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np

from syrtos.keras.torch import draws


def test_a_seed_is_given_where_rows_are_shuffled_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, object]] = []

    def split_dataset(
        dataset: object, left_size: object = None, shuffle: bool = False, seed: object = None
    ) -> None:
        given.append({"shuffle": shuffle, "seed": seed})

    split = draws.with_common_seed(split_dataset)
    entropy = np.random.SeedSequence(5)
    monkeypatch.setattr(np.random, "SeedSequence", lambda: entropy)
    split([1, 2], 0.5, shuffle=True)
    split([1, 2], 0.5, True, 3)
    split([1, 2], 0.5)
    assert [one["seed"] for one in given] == [int(entropy.generate_state(1)[0]), 3, None]
