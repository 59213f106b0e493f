"""Finds the shares of planned data that Keras's iterator reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syrtos.keras.datasets.planned import Stream


def stream_of(iterator: object) -> Stream | None:
    """Returns the shares of a planned data set that Keras's iterator reads; None for other data."""
    return getattr(getattr(iterator, "data_adapter", None), "syrtos_stream", None)
