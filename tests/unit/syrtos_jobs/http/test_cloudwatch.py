"""Patterns of words by which events of logs are chosen, as CloudWatch Logs defines them."""

from __future__ import annotations

import pytest

from syrtos_jobs.api.service import ApiError
from syrtos_jobs.http import cloudwatch

EVENTS = ("tick 1", "tick 2 DONE", "ERROR -1", "WARN ?x")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", (0, 1, 2, 3)),
        ("tick", (0, 1)),
        ("tick DONE", (1,)),
        ("?ERROR ?WARN", (2, 3)),
        ("tick -DONE", (0,)),
        ("-tick -WARN", (2,)),
        ("?DONE ?1 tick", (0, 1)),
        ('"tick 2"', (1,)),
        ("-", (2,)),
    ],
)
def test_words(pattern: str, found: tuple[int, ...]) -> None:
    is_wanted = cloudwatch._filter(pattern)
    assert [place for place, text in enumerate(EVENTS) if is_wanted(text)] == list(found)


def test_patterns_of_other_kinds_are_refused() -> None:
    with pytest.raises(ApiError, match="is words here"):
        cloudwatch._filter("{ $.a = 1 }")
