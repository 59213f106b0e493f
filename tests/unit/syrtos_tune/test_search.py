"""Which batches are tried, on machines whose speed and memory are formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from syrtos_tune.batch import BatchSearch
from syrtos_tune.search import BatchTrial, conclude, doubtful, following
from syrtos_tune.text import of_batches


def searched(
    speed: Callable[[int], float],
    fits: int,
    own: int,
    each: int = 1,
    most: int | None = None,
    for_memory: bool = True,
) -> list[BatchTrial]:
    """Trials of a machine on which batches up to ``fits`` fit, and ``speed(batch)`` samples are trained in a second."""

    def trial(batch: int) -> BatchTrial:
        return (
            BatchTrial(batch, seconds=(batch / speed(batch),) * 3)
            if batch <= fits
            else BatchTrial(batch, failed="ran out of memory", for_memory=for_memory)
        )

    tried = [trial(own)]
    while (batch := following(tried, own, each, most)) is not None:
        tried.append(trial(batch))
        assert len(tried) < 40
    return tried


def batches(tried: list[BatchTrial]) -> list[int]:
    return [one.batch for one in tried]


def test_sizes_double_until_memory_ends_and_are_refined_to_an_eighth() -> None:
    tried = searched(lambda batch: batch, fits=900, own=64)
    assert batches(tried) == [64, 128, 256, 512, 1024, 768, 896, 960]
    found = conclude(tried, None)
    assert found is not None
    assert (found.largest, found.fastest, found.recommended) == (896, 896, 896)
    assert "960 did not work: it ran out of memory" in found.why


def test_two_doublings_without_gain_end_the_growth() -> None:
    tried = searched(lambda batch: min(batch, 256), fits=10**9, own=64)
    assert batches(tried) == [64, 128, 256, 512, 1024]
    found = conclude(tried, None)
    assert found is not None
    assert (found.largest, found.recommended) == (1024, 256)
    assert "5 %" in found.why


def test_the_smallest_batch_within_five_percent_is_looked_for_below_the_own() -> None:
    tried = searched(lambda batch: 100 if batch >= 16 else 50, fits=10**9, own=64)
    assert batches(tried) == [64, 128, 256, 32, 16, 8]
    found = conclude(tried, None)
    assert found is not None
    assert found.recommended == 16


def test_an_own_batch_that_does_not_fit_is_halved_until_one_does() -> None:
    tried = searched(lambda batch: batch, fits=30, own=256)
    assert batches(tried)[:4] == [256, 128, 64, 32]
    assert max(batch for batch in batches(tried) if batch <= 30) >= 28
    nothing = searched(lambda batch: batch, fits=0, own=4)
    assert batches(nothing) == [4, 2, 1]
    assert conclude(nothing, None) is None


@pytest.mark.parametrize("workers", [2, 3])
def test_sizes_are_multiples_of_the_workers_and_at_most_what_was_asked_for(workers: int) -> None:
    tried = searched(lambda batch: batch, fits=10**9, own=workers * 10, each=workers, most=100)
    assert all(batch % workers == 0 for batch in batches(tried))
    assert max(batches(tried)) == 100 // workers * workers
    found = conclude(tried, 100)
    assert found is not None
    assert "--most 100" in found.why


def test_a_batch_that_fails_otherwise_ends_the_growth_without_refinement() -> None:
    tried = searched(lambda batch: batch, fits=100, own=64, for_memory=False)
    assert batches(tried) == [64, 128, 32]  # half the size, in case it is as fast


def test_a_step_is_the_median_and_noise_lies_between_quartiles() -> None:
    one = BatchTrial(64, seconds=(0.1, 0.1, 0.2, 0.4, 9.0))
    assert one.step == 0.2
    assert one.quartiles == (0.1, 0.4)
    assert one.speed == pytest.approx(320)


def test_the_search_ends_at_the_rows_and_the_recommendation_leaves_ten_updates_in_an_epoch() -> (
    None
):
    tried = searched(lambda batch: batch, fits=10**9, own=32, most=2160)
    found = conclude(tried, None, own=32, rows=2160)
    assert found is not None
    assert max(batches(tried)) == found.fastest == 2160
    assert (found.recommended, found.capped) == (128, True)
    assert "2,160 rows" in found.why
    said = " ".join(of_batches(BatchSearch(tried, 32, 1, 0, 0, rows=2160, found=found)))
    assert "Samples per second are 4.00 times those of the script's own batch of 32." in said
    assert "17 updates in place of 68" in said
    assert "fewer than 10 updates" in said
    assert "gradient noise scale" in said
    assert "Training is" not in said


def test_a_script_whose_own_batch_makes_few_updates_is_not_given_a_smaller_one_for_that() -> None:
    tried = searched(lambda batch: batch, fits=10**9, own=512, most=1000)
    found = conclude(tried, None, own=512, rows=1000)
    assert found is not None
    assert found.recommended == 512


def test_a_winner_that_stands_out_or_varies_is_tried_twice_and_both_count() -> None:
    calm = [BatchTrial(batch, seconds=(batch / 100,) * 4) for batch in (32, 64, 128)]
    found = conclude(calm, None)
    assert found is not None
    assert doubtful(calm, found) is None
    lucky = BatchTrial(64, seconds=(64 / 150,) * 4)
    found = conclude(tried := [calm[0], lucky, calm[2]], None)
    assert found is not None
    assert doubtful(tried, found) == found.recommended == 64
    both = lucky.merge_with(BatchTrial(64, seconds=(64 / 100,) * 4))
    assert both.speed == pytest.approx(120)
    assert doubtful([calm[0], both, calm[2]], found) is None  # no third time
    assert lucky.merge_with(failed := BatchTrial(64, failed="ran out of memory")) is failed
    wide = BatchTrial(32, seconds=(0.2, 0.32, 0.32, 0.5))
    found = conclude(tried := [wide, *calm[1:]], None)
    assert found is not None
    assert doubtful(tried, found) == 32
