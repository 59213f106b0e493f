"""The batches of a script, compared with those that a snapshot was made with."""

from __future__ import annotations

import pytest

from syrtos.keras.recovery.skipping import Batches, batches_from


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (Batches(32, 10, 2), ""),
        (Batches(64, 10, 2), "a step of `fit` trains on 64 rows, and trained on 32"),
        (Batches(64, 5, 2), "a step of `fit` trains on 64 rows, and trained on 32"),
        (Batches(32, 20, 2), "an epoch of `fit` has 20 steps, and had 10"),
        # each of more workers may compute the whole batch
        (Batches(64, 10, 4), ""),
        (Batches(64, 5, 4), "an epoch of `fit` has 5 steps, and had 10"),
        # what is not known is no difference
        (Batches(0, 0, 2), ""),
    ],
)
def test_batches_that_differ(now: Batches, says: str) -> None:
    assert Batches(32, 10, 2).difference(now) == says
    assert Batches().difference(now) == ""


def test_snapshots_of_older_versions_have_none() -> None:
    assert batches_from({}) == Batches()
    assert batches_from({"batches": {"rows": 32.0, "steps": 10, "workers": 2}}) == Batches(
        32, 10, 2
    )
