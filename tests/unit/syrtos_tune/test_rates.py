"""What range tests say, on curves that are formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from syrtos_tune.rates import conclude, smooth
from syrtos_tune.terminal import chart
from syrtos_tune.text import of_rates, rate_facts

RATES = [10 ** (-6 + 6 * k / 99) for k in range(100)]


def curve(least: float, noise: float = 0.0) -> list[float]:
    """Losses of a model that learns nothing at tiny rates, most at ``least``, and diverges above: until then they fall from 2 to 1."""
    random = np.random.default_rng(0)
    falling = [2 - 1 / (1 + (least / 8 / rate) ** 1.5) for rate in RATES]
    rising = [(rate / (3 * least)) ** 3 for rate in RATES]
    losses = [a + b + noise * random.normal() for a, b in zip(falling, rising, strict=True)]
    return losses[: next((k for k, loss in enumerate(losses) if loss > 8), len(losses))]


def test_the_exponential_mean_has_no_bias_at_its_beginning() -> None:
    assert smooth([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])
    assert smooth([1.0, 2.0])[1] == pytest.approx((0.9 * 1 + 2) / 1.9)


@pytest.mark.parametrize("least", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_recommended_rate_is_below_the_least_loss_and_not_far(
    least: float, noise: float
) -> None:
    losses = curve(least, noise)
    found = conclude(RATES[: len(losses)], losses, 100)
    assert found.recommended is not None
    assert found.least is not None
    assert found.stable is not None
    assert least / 4 < found.least < 4 * least
    assert found.least / 10 <= found.recommended <= found.least / 3
    assert found.least <= found.stable < 8 * least
    assert found.tenth == pytest.approx(found.least / 10)


def test_a_loss_that_ends_as_nan_counts_up_to_there() -> None:
    losses = [*curve(1e-2)[:75], math.nan]
    found = conclude(RATES[: len(losses)], losses, 100)
    assert found.diverged
    assert found.recommended is not None
    assert len(found.smoothed) == 75


@pytest.mark.parametrize("seed", range(20))
def test_a_flat_curve_recommends_nothing(seed: int) -> None:
    losses = (2 + 0.1 * np.random.default_rng(seed).normal(size=100)).tolist()
    found = conclude(RATES, losses, 100)
    assert found.recommended is None
    assert "flat" in found.reason


def test_a_loss_that_only_rose_asks_for_lower_rates() -> None:
    losses = [1 + 0.2 * k for k in range(30)]
    found = conclude(RATES[:30], losses, 100)
    assert found.recommended is None
    assert "--from" in found.reason


def test_a_loss_that_still_falls_asks_for_higher_rates() -> None:
    losses = [2 - k / 100 for k in range(100)]
    found = conclude([rate / 1e4 for rate in RATES], losses, 100)
    assert "--to" in found.reason


def test_too_few_batches_say_so() -> None:
    assert "too few" in conclude(RATES[:3], [1.0, 5.0, math.inf], 100).reason


def test_a_chart_has_its_least_value_at_the_bottom_and_a_mark() -> None:
    lines = chart([3.0, 2.0, 1.0, 2.0], height=2, marked=2)
    assert lines[0].startswith("        3 │█")
    assert lines[-1].index("▲") == lines[1].index("│") + 1 + 2


def test_the_rate_at_which_the_test_ended_is_said_beside_the_highest_stable_one() -> None:
    losses = curve(1e-2)
    found = conclude(RATES[: len(losses)], losses, 100)
    assert found.stable is not None
    ended = RATES[len(losses) - 1]
    assert found.stable < ended
    said = " ".join(of_rates(found, None, ended))
    assert (
        f"highest stable rate {found.stable:.3g}. The test ended at {ended:.3g}: the loss diverged."
        in said
    )
    assert "little" not in said


def test_a_loss_that_fell_by_little_is_said_to_say_little() -> None:
    losses = [4 + loss for loss in curve(1e-2)]  # from 6 to 5
    facts = {"rates": RATES[: len(losses)], "losses": losses, "rate": 1e-3, "optimizer": "Adam"}
    told = rate_facts(facts, conclude(RATES[: len(losses)], losses, 100))
    assert told["sentences"][0].startswith(
        "Recommended, with little confidence: a learning rate of "
    )
    assert "fell by little in the test, from 5.994 to 5.395:" in told["sentences"][1]
    assert list(told)[:2] == ["kind", "sentences"]
    assert list(told)[-3:] == ["rates", "losses", "smoothed"]
