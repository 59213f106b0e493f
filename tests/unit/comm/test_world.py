"""Errors that frameworks wrap are kept as they were raised."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from syrtos.comm import world
from syrtos.errors import DataError, StalledError


@pytest.fixture
def session(no_session: None) -> world.Session:
    """A world of one."""
    return world.init()


class Wrapped(Exception):
    """As TensorFlow reports an error of Python: its name and text somewhere in the middle, no cause."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__(
            "Graph execution error:\n"
            + "\n".join(f"{type(e).__name__}: {e}\n\n[[node]]" for e in errors)
        )


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught, world.remembering_errors():
        raise error
    assert caught.value is error
    return error


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.usefixtures("session")
def test_the_original_of_a_wrapped_error_is_found() -> None:
    error = raised(ValueError("wrapped soon"))
    assert world.original_of(Wrapped(error)) is error


@pytest.mark.usefixtures("session")
def test_an_error_of_the_input_thread_outlives_later_exchanges() -> None:
    error = DataError("Workers read different data")
    in_a_thread(lambda: raised(error))
    with world.remembering_errors():
        pass
    assert world.original_of(Wrapped(error)) is error


@pytest.mark.usefixtures("session")
def test_of_errors_of_several_threads_the_one_that_is_quoted_counts() -> None:
    first, second = DataError("of the input"), StalledError("of the step")
    in_a_thread(lambda: raised(first))
    raised(second)
    assert world.original_of(Wrapped(first)) is first
    assert world.original_of(Wrapped(second)) is second
    assert world.original_of(Wrapped(second, first)) is second


@pytest.mark.usefixtures("session")
def test_of_equal_errors_the_latest_counts() -> None:
    _, again = raised(ValueError("the same")), raised(ValueError("the same"))
    assert world.original_of(Wrapped(again)) is again


@pytest.mark.usefixtures("session")
def test_an_error_that_the_script_has_caught_explains_no_other_error() -> None:
    raised(StalledError("caught by the script"))
    other = Wrapped(ValueError("of a layer"))
    assert world.original_of(other) is other


@pytest.mark.usefixtures("session")
def test_an_error_without_text_is_found_by_its_name() -> None:
    error = raised(KeyboardInterrupt())
    assert world.original_of(Exception("KeyboardInterrupt: \n[[node]]")) is error


def test_few_errors_are_kept(session: world.Session) -> None:
    for number in range(100):
        raised(ValueError(number))
    assert [error.args for error in session.errors] == [(number,) for number in range(92, 100)]


@pytest.mark.usefixtures("no_session")
def test_without_a_world_errors_come_through() -> None:
    with pytest.raises(ValueError, match="alone"), world.remembering_errors():
        raise ValueError("alone")
    error = Wrapped(ValueError("alone"))
    assert world.original_of(error) is error
