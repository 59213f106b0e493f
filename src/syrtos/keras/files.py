"""Files are written once, by rank 0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from syrtos.comm import world
from syrtos.errors import SyrtosError
from syrtos.keras import pace

_fits_running = 0


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
        result, failed = None, True
        try:
            if session.world.rank == 0:
                with session.ledger.span("checkpoint"):
                    result = original(*args, **kwargs)
            failed = False
        finally:
            failures = session.comm.agree("files are written", float(failed)) if together else [0.0]
            if together and pace.meet(failed):
                failures = [1.0]
        if any(failures):
            raise SyrtosError(
                "Rank 0 could not write the file; its log has the reason. No worker goes on as if it had."
            )
        return result

    return save


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
