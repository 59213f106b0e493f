"""What Keras's tests import from the `conftest.py` of its repository, which its distributions lack."""

from __future__ import annotations

import pytest


def skip_if_backend(given_backend: str, reason: str) -> pytest.MarkDecorator:
    """Skips a test on the backend of that name."""
    from keras.src.backend import backend

    return pytest.mark.skipif(backend() == given_backend, reason=reason)
