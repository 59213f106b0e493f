"""Which batches are tried, on machines whose speed and memory are formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from syrtos.tune.search import Tried, conclude, following


def searched(
    speed: Callable[[int], float], fits: int, own: int, each: int = 1, most: int | None = None, for_memory: bool = True
) -> list[Tried]:
    """Trials of a machine on which batches up to ``fits`` fit, and ``speed(batch)`` samples are trained in a second."""

    def trial(batch: int) -> Tried:
        return (
            Tried(batch, seconds=(batch / speed(batch),) * 3)
            if batch <= fits
            else Tried(batch, failed="ran out of memory", for_memory=for_memory)
        )

    tried = [trial(own)]
    while (batch := following(tried, own, each, most)) is not None:
        tried.append(trial(batch))
        assert len(tried) < 40
    return tried


def batches(tried: list[Tried]) -> list[int]:
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
    one = Tried(64, seconds=(0.1, 0.1, 0.2, 0.4, 9.0))
    assert one.step == 0.2
    assert one.quartiles == (0.1, 0.4)
    assert one.speed == pytest.approx(320)
