"""Files are written once, by rank 0."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.comm import world
from syrtos.errors import SyrtosError
from syrtos.keras import pace

_fits_running = 0


def fit_is_running() -> bool:
    """Whether this process is inside a `fit` of Keras."""
    return _fits_running > 0


def by_rank_0(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a saving method write on rank 0 only.

    Outside of `fit`, and unless the script asked for its rank (then it may call this on one rank only), all workers
    wait until the file is complete, so that each can read it back.
    """

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        session = world.sharing()
        if session.world.size == 1 and not pace.own():
            with session.ledger.span("checkpoint"):
                return original(*args, **kwargs)
        together = not _fits_running and not session.rank_aware
        result, error = None, None
        try:
            if session.world.rank == 0:
                with session.ledger.span("checkpoint"):
                    result = original(*args, **kwargs)
        except BaseException as raised:
            error = raised
        failures = session.comm.agree("files are written", float(error is not None)) if together else [0.0]
        if together and pace.meet(error is not None):
            failures = [1.0]
        reason = _told(session, error) if any(failures) else ""
        if error is not None:
            raise error
        if any(failures):
            raise SyrtosError(f"Rank 0 could not write the file: {reason}")
        return result

    return save


def _told(session: Any, error: BaseException | None) -> str:
    """Why rank 0 has failed, on all ranks: theirs may be the first error that a person sees."""
    if pace.own():
        return "its log has the reason."
    return session.comm.broadcast_object(f"{type(error).__name__}: {error}" if error is not None else None)


def as_saved_model(export: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """In a training job `save` to a folder for models writes a SavedModel, as Keras 2 did and scripts for SageMaker expect."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            models = settings.environment().get("SM_MODEL_DIR")
            inside = models and isinstance(filepath, (str, os.PathLike)) and Path(filepath).is_relative_to(models)
            if not inside or Path(filepath).suffix:
                return original(self, filepath, *args, **kwargs)
            print(
                f"syrtos: {filepath} is a folder: the model is exported there as a SavedModel (Keras 3 saves to .keras files)"
            )
            return export(self, os.fspath(filepath))

        return save

    return wrapper


def inside_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    """While `fit` runs only rank 0 may be saving: checkpoints are its own callbacks' doing."""

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        global _fits_running
        _fits_running += 1
        try:
            return original(*args, **kwargs)
        finally:
            _fits_running -= 1

    return fit
