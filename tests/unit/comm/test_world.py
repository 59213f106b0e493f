"""Errors that frameworks wrap are kept as they were raised."""

from __future__ import annotations

import pytest

from syrtos.comm import world


@pytest.fixture
def session(no_session: None) -> world.Session:
    """A world of one."""
    return world.init()


def test_what_is_raised_is_remembered_and_raised(session: world.Session) -> None:
    error = ValueError("wrapped soon")
    with pytest.raises(ValueError, match="wrapped soon") as caught, world.remembering_errors():
        raise error
    assert caught.value is error
    assert session.error is error


def test_the_last_error_counts(session: world.Session) -> None:
    for error in (ValueError("first"), KeyboardInterrupt()):
        with pytest.raises(type(error)), world.remembering_errors():
            raise error
        assert session.error is error


def test_without_an_error_nothing_is_remembered(session: world.Session) -> None:
    with world.remembering_errors():
        pass
    assert session.error is None


@pytest.mark.usefixtures("no_session")
def test_without_a_world_errors_come_through() -> None:
    with pytest.raises(ValueError, match="alone"), world.remembering_errors():
        raise ValueError("alone")
