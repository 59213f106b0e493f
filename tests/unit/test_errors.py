"""One exception tree, and its picture."""

from __future__ import annotations

import inspect

import pytest

from syrtos import errors

CLASSES = [error for _, error in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_a_syrtos_error(error: type[Exception]) -> None:
    assert issubclass(error, errors.SyrtosError)


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_in_the_picture(error: type[Exception]) -> None:
    assert error.__name__ in (errors.__doc__ or "").split()


@pytest.mark.parametrize(
    "error", [errors.OutOfStepError, errors.StalledError, errors.SharedMemoryError]
)
def test_whoever_catches_exchange_errors_catches_all_of_them(error: type[Exception]) -> None:
    assert issubclass(error, errors.ExchangeError)
