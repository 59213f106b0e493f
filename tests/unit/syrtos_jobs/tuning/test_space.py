"""Ranges of hyperparameters: what is refused, and that every suggestion is inside of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos_jobs.tuning import space, studies, suggestion
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial


def number(
    kind: str, low: object, high: object, scale: str | None = None, name: str = "x"
) -> dict[str, Any]:
    asked = {"ScalingType": scale} if scale else {}
    return {
        f"{kind}ParameterRanges": [
            {"Name": name, "MinValue": str(low), "MaxValue": str(high), **asked}
        ]
    }


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({}, "nothing to tune"),
        (number("Continuous", 2, 1), "x ends before it begins: min is 2, and max is 1"),
        (number("Continuous", 0, 1, "Logarithmic"), "needs a min above 0: x has 0"),
        (number("Integer", 0, 9, "Logarithmic"), "needs a min above 0"),
        (number("Integer", 0, 2.5), "a whole number"),
        (number("Continuous", "a", 1), "with a number. Received: 'a'"),
        (number("Continuous", "nan", 1), "with a number"),
        (number("Continuous", 0.5, 1, "ReverseLogarithmic"), "from 0 to less than 1"),
        (number("Integer", 0, 0, "ReverseLogarithmic"), "continuous ranges"),
        (number("Integer", 1, 2) | number("Continuous", 1, 2), "has one range. Received: x, x"),
    ],
)
def test_ranges_that_are_none(ranges: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        space.read(ranges)


def test_wide_ranges_are_logarithmic_where_nothing_is_asked_for() -> None:
    assert [
        space.read(number("Continuous", *ends))[0].scale
        for ends in ((1e-4, 1e-1), (1e-4, 5e-3), (0, 1))
    ] == [
        "log",
        "linear",
        "linear",
    ]


def test_a_grid_has_all_combinations_in_an_order() -> None:
    found = space.read(
        number("Integer", 1, 2, name="n")
        | {"CategoricalParameterRanges": [{"Name": "c", "Values": ["a", "b"]}]}
    )
    assert space.combinations(found) == 4
    assert list(space.grid(found)) == [{"c": c, "n": n} for c in "ab" for n in "12"]
    with pytest.raises(ConfigurationError, match="x is continuous"):
        space.combinations(space.read(number("Continuous", 0, 1)))
    with pytest.raises(ConfigurationError, match="more than"):
        space.combinations(space.read(number("Integer", 0, 10**6)))


ends = st.tuples(st.floats(1e-6, 0.99), st.floats(1e-6, 0.99)).map(sorted)


@settings(max_examples=60, deadline=None)
@given(
    ends,
    st.sampled_from(["Linear", "Logarithmic", "ReverseLogarithmic"]),
    st.integers(0, 2**31),
    st.sampled_from(["Random", "Bayesian"]),
)
def test_suggestions_are_in_range_and_are_read_again_as_they_were(
    low_high: list[float], scale: str, seed: int, strategy: Any
) -> None:
    low, high = low_high
    found = space.read(
        number("Continuous", low, high, scale) | number("Integer", 1, 300, "Logarithmic", "n")
    )
    search = Search(
        name="s",
        strategy=strategy,
        space=found,
        metric="m",
        maximize=False,
        trials=9,
        parallel=1,
        seed=seed,
    )
    trials: list[SearchTrial] = []
    for k in range(1, 4):
        tuned = suggestion.suggest(search, trials, k)
        assert low <= float(tuned["x"]) <= high
        assert 1 <= int(tuned["n"]) <= 300
        trials.append(
            SearchTrial(number=k, name=str(k), tuned=tuned, status="Completed", objective=float(k))
        )
    studies.add(studies.study(search), search, trials)  # Optuna takes them back


def test_scales_are_what_they_are_called() -> None:
    """Of many random values, half are on each side of the middle of the scale."""
    middles = {"Linear": 0.5, "Logarithmic": 1e-2, "ReverseLogarithmic": 1 - 1e-2}
    for scale, middle in middles.items():
        low, high = (
            (0.0, 1.0)
            if scale == "Linear"
            else (1e-4, 1.0)
            if scale == "Logarithmic"
            else (0.0, 1 - 1e-4)
        )
        found = space.read(number("Continuous", low, high, scale))
        search = Search(
            name="s",
            strategy="Random",
            space=found,
            metric="m",
            maximize=False,
            trials=999,
            parallel=1,
        )
        values = [float(suggestion.suggest(search, [], k)["x"]) for k in range(1, 301)]
        assert 110 < sum(value < middle for value in values) < 190, scale


@pytest.mark.parametrize(
    ("given", "point"),
    [
        ({"x": "0.5", "n": "3", "c": "a", "epochs": "9"}, {"x": "0.5", "n": "3", "c": "a"}),
        ({"x": "1", "n": "1", "c": "b"}, {"x": "1", "n": "1", "c": "b"}),
        ({"x": "1.5", "n": "3", "c": "a"}, None),
        ({"x": "nan", "n": "3", "c": "a"}, None),
        ({"x": "0.5", "n": "3.5", "c": "a"}, None),
        ({"x": "0.5", "n": "3", "c": "z"}, None),
        ({"x": "0.5", "n": "", "c": "a"}, None),
        ({"x": "0.5", "c": "a"}, None),
    ],
)
def test_points_of_another_search_are_known_where_they_are_in_range(
    given: dict[str, str], point: dict[str, str] | None
) -> None:
    found = space.read(
        {
            "ContinuousParameterRanges": [{"Name": "x", "MinValue": "0", "MaxValue": "1"}],
            "IntegerParameterRanges": [{"Name": "n", "MinValue": "1", "MaxValue": "4"}],
            "CategoricalParameterRanges": [{"Name": "c", "Values": ["a", "b"]}],
        }
    )
    assert space.within(found, given) == point
