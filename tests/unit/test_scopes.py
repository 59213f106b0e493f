"""Values that hold inside of a context."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from syrtos.scopes import set_within

_word: ContextVar[str] = ContextVar("word", default="outside")


def test_a_value_holds_inside_of_its_context_alone() -> None:
    with set_within(_word, "outer"):
        with set_within(_word, "inner") as given:
            assert (given, _word.get()) == ("inner", "inner")
        assert _word.get() == "outer"
    assert _word.get() == "outside"


def test_it_is_reset_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), set_within(_word, "inner"):
        raise ValueError("inside")
    assert _word.get() == "outside"


def test_another_thread_does_not_see_it() -> None:
    seen: list[str] = []
    with set_within(_word, "here"):
        thread = threading.Thread(target=lambda: seen.append(_word.get()))
        thread.start()
        thread.join()
    assert seen == ["outside"]
