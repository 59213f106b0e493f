"""Joins JAX's processes to one right after the script's `import jax`, before any computation."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import multihost_utils

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import rendezvous
from syrtos.keras.jax import jax_internals
from syrtos.keras.split.script_modules import script_mentions

if TYPE_CHECKING:
    from syrtos.comm.xla_collectives import XLACollectives
    from syrtos.keras.protocols import R

# Seconds. The launcher sees a worker that dies or hangs: JAX, which would abort the others without
# a word of the cause, is to wait for longer.
_HEARTBEAT = 24 * 3600
_SOCKET = "unix:"


class StepCount:
    """The number of steps of Keras's own that this process has made with the others."""

    made = 0


@functools.cache
def join() -> None:
    """Joins the workers of this world by `jax.distributed`; a world of one needs nothing.

    Raises:
        ConfigurationError: JAX has computed before the script imported Keras, and Keras's backend
            was not known to be JAX.
    """
    session = world.current()
    if session.world.size == 1:
        return
    # A worker that dies becomes an exception in the others' next exchange, instead of SIGABRT, and
    # an exit waits for nobody.
    jax.config.update("jax_enable_recoverability", True)
    # SIGTERM is the launcher's, and the script's.
    jax.config.update("jax_enable_preemption_service", False)
    host = rendezvous.listening_address("JAX", session)
    jax_internals.exchange_by(host, functools.partial(_uses_mpi, session, _prepares_mpi(session)))
    address = _address(session, host)
    try:
        jax.distributed.initialize(
            address,
            session.world.size,
            session.world.rank,
            cluster_detection_method="deactivate",
            coordinator_bind_address=address,
            initialization_timeout=int(min(session.options.timeout, 300)),
            heartbeat_timeout_seconds=_HEARTBEAT,
            shutdown_timeout_seconds=5,
        )
    except RuntimeError as error:
        raise ConfigurationError(
            f"JAX could not join the workers: {error} Set KERAS_BACKEND=jax before the script"
            " imports JAX (`KERAS_BACKEND=jax syrtos run ...`), or import keras first, and leave"
            " out a `jax.distributed.initialize` of the script's own."
        ) from error
    finally:
        session.comm.agree("joined by JAX")
        # Connections outlive their socket.
        if address.startswith(_SOCKET):
            shutil.rmtree(Path(address.removeprefix(_SOCKET)).parent, ignore_errors=True)
    jax.distributed.initialize = _joined_already
    jax.device_put = _putting_on_own(jax.device_put)
    atexit.register(_leave, os.getpid())


def _address(session: Session, host: str) -> str:
    """Returns the address at which rank 0's coordinator listens, on ``host`` of each worker.

    It is that of a Unix socket where all workers are on one host.
    """
    rank = session.world.rank
    # The coordinator knows no authentication: its socket is in a folder of this user's alone.
    if host == rendezvous.LOOPBACK:
        return session.comm.broadcast_object(
            f"{_SOCKET}{rendezvous.folder()}/jax" if rank == 0 else None
        )
    return session.comm.broadcast_object(
        f"{host}:{rendezvous.free_port(host)}" if rank == 0 else None
    )


def _prepares_mpi(session: Session) -> bool:
    """Prepares XLA's exchanges by MPI; all workers call it together.

    Returns:
        Whether MPI is to be used where it serves the script.

    Raises:
        ConfigurationError: `--exchange mpi` was asked for, and a worker can't exchange so.
    """
    asked = session.options.exchange
    if asked == "framework":
        return False
    lacking = _collectives(session).lacking
    if asked == "mpi" and lacking:
        raise ConfigurationError(
            f"`--exchange mpi` can't be done with JAX by {lacking}. Mend that (Debian: `apt-get"
            " install gcc`), or leave the option out."
        )
    serves = session.comm.agree("MPI serves the script", float(_suits_mpi()))
    return not lacking and (asked == "mpi" or all(serves))


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
    policy = keras.config.dtype_policy() if hasattr(keras, "config") else None
    if policy is not None and "float16" in (policy.compute_dtype, policy.variable_dtype):
        return False
    # Layers have policies of their own.
    return not script_mentions(r"(?<!b)float16|float8")


@contextlib.contextmanager
def counting_exchanges(session: Session) -> Iterator[None]:
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


def _await_exchanges(session: Session) -> None:
    """Waits until XLA has made all exchanges of this script; all workers call it together.

    An exchange by MPI may call Python, which a thread can't do while the interpreter ends.
    """
    if any(session.comm.agree("exchanges of XLA", float(exchanges_by_mpi(session)))):
        # XLA makes exchanges in the order in which they were asked for.
        multihost_utils.sync_global_devices("the end of the script")


def exchanges_by_mpi(session: Session) -> bool:
    """Returns whether XLA exchanges by MPI in this process, which has computed."""
    return session.world.size > 1 and _collectives(session).is_used


def _collectives(session: Session) -> XLACollectives:
    # Importing it starts MPI, which a world of one lacks.
    from syrtos.comm.xla_collectives import XLACollectives

    return session.part(XLACollectives)


def _uses_mpi(session: Session, is_prepared: bool) -> bool:
    """Returns whether XLA, which begins to compute, is to exchange by MPI."""
    if is_prepared and (session.options.exchange == "mpi" or _suits_mpi()):
        _collectives(session).is_used = True
        return True
    return False


def _suits_mpi() -> bool:
    """Returns whether XLA can exchange by MPI what this script computes.

    It can't exchange float16, as which float8 travels, nor for several devices of one process.
    """
    several = re.search(r"force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    config: Any = jax.config  # declares none of its options
    if max(config.jax_num_cpu_devices, int(several[1]) if several else 1) > 1:
        return False
    keras = sys.modules.get("keras")
    policy = keras.config.dtype_policy() if keras is not None else None
    if policy is not None and "float16" in (policy.compute_dtype, policy.variable_dtype):
        return False
    # Layers have policies of their own.
    script = getattr(sys.modules["__main__"], "__file__", None)
    with contextlib.suppress(OSError):
        text = Path(script).read_text(errors="replace") if script else ""
        return not re.search(r"(?<!b)float16|float8", text)
    return True


def _leave(pid: int) -> None:
    """Leaves JAX, when the script has come to its end on all workers."""
    # A forked process runs the functions of `atexit` too, and has not joined.
    if os.getpid() != pid:
        return
    session = world.current()
    comm = session.comm
    # A script that has failed may not have come so far.
    if not StepCount.made and comm.rank == 0 and not hasattr(sys, "last_value"):
        print(
            "syrtos: the script has called no `fit`, `evaluate` or `predict` of Keras, and no"
            " function of its own was split (one is that trains, is compiled by `jax.jit` and"
            " computes enough): each worker has computed all by itself, but for what the script"
            " splits over the devices of all workers (`jax.devices()`).",
            file=sys.stderr,
        )
    try:
        _await_exchanges(session)
    finally:
        # Rank 0's coordinator goes last: JAX aborts a process that finds it gone.
        if comm.rank == 0:
            comm.agree("left JAX")
        jax.distributed.shutdown()
        if comm.rank > 0:
            comm.agree("left JAX")


def _putting_on_own(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps `jax.device_put`: a device of another worker stands for this worker's own.

    A script that names a single device, e.g. `jax.devices()[0]`, means one of its own process.
    """

    @functools.wraps(original)
    def device_put(x: object, device: Any = None, **options: object) -> R:
        if isinstance(device, jax.Device) and device.process_index != jax.process_index():
            own = jax.local_devices(backend=device.platform)
            device = own[(device.local_hardware_id or 0) % len(own)]
        return original(x, device, **options)

    return device_put


def _joined_already(*args: object, **kwargs: object) -> None:
    """Does nothing, in place of `jax.distributed.initialize`: the process is joined already.

    A script may call that function, or `keras.distribution.initialize`, which calls it.
    """
