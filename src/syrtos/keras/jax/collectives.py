"""XLA's exchanges between the workers: by which means it makes them, and what they take."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import multihost_utils

from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras.jax import jax_internals
from syrtos.keras.split.script_modules import script_mentions

if TYPE_CHECKING:
    from syrtos.comm.xla_collectives import XLACollectives


def choose(session: Session, address: str) -> None:
    """Lets XLA exchange by MPI on CPUs where that serves the script, else by gloo.

    All workers call it together, before JAX computes.

    Args:
        session: the world.
        address: where gloo listens.

    Raises:
        ConfigurationError: `--exchange mpi` was asked for, and a worker can't exchange so.
    """
    jax_internals.exchange_by(
        address, functools.partial(_uses_mpi, session, _prepares_mpi(session))
    )


@contextlib.contextmanager
def counting(session: Session) -> Iterator[None]:
    """Context manager around a step: counts its time in XLA's exchanges, where MPI makes them."""
    if session.world.size == 1:
        yield
        return
    # What was exchanged before, as by a callback, is no part of the step.
    _collectives(session).seconds()
    yield
    if seconds := _collectives(session).seconds():
        session.ledger.spend("exchange", seconds)
        session.ledger.say(xla="MPI")


def await_all(session: Session) -> None:
    """Waits until XLA has made all exchanges of this script; all workers call it together.

    An exchange by MPI may call Python, which a thread can't do while the interpreter ends.
    """
    state = 2 if _collectives(session).is_broken() else int(are_by_mpi(session))
    # After one that was given up there are no more.
    if max(session.comm.agree("exchanges of XLA", state)) == 1:
        # XLA makes exchanges in the order in which they were asked for.
        multihost_utils.sync_global_devices("the end of the script")


def are_by_mpi(session: Session) -> bool:
    """Returns whether XLA exchanges by MPI in this process, which has computed."""
    return session.world.size > 1 and _collectives(session).is_used


def _collectives(session: Session) -> XLACollectives:
    # Importing it starts MPI, which a world of one lacks.
    from syrtos.comm.xla_collectives import XLACollectives

    return session.part(XLACollectives)


def _prepares_mpi(session: Session) -> bool:
    """Prepares XLA's exchanges by MPI, and returns whether they can be made."""
    asked, lacking = session.options.exchange, _collectives(session).lacking
    if asked == "mpi" and lacking:
        raise ConfigurationError(
            f"`--exchange mpi` can't be done with JAX by {lacking}. Mend that (Debian: `apt-get"
            " install gcc`), or leave the option out."
        )
    serves = session.comm.agree("MPI serves the script", float(_suits_mpi()))
    return not lacking and (asked == "mpi" or (asked != "framework" and all(serves)))


def _uses_mpi(session: Session, is_prepared: bool) -> bool:
    """Returns whether XLA, which begins to compute, is to exchange by MPI."""
    if is_prepared and (session.options.exchange == "mpi" or _suits_mpi()):
        _collectives(session).is_used = True
        return True
    return False


def _suits_mpi() -> bool:
    """Returns whether XLA can exchange by MPI what this script computes, as far as it is known.

    It can't exchange float16, as which float8 travels, nor for several devices of one process.
    """
    several = re.search(r"force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    config: Any = jax.config  # declares none of its options
    if max(config.jax_num_cpu_devices, int(several[1]) if several else 1) > 1:
        return False
    keras = sys.modules.get("keras")
    # Asked for while Keras is imported, too.
    policy = keras.config.dtype_policy() if keras and hasattr(keras, "config") else None
    if policy is not None and "float16" in (policy.compute_dtype, policy.variable_dtype):
        return False
    # Layers have policies of their own.
    return not script_mentions(r"(?<!b)float16|float8")
