"""Joins JAX's processes to one right after the script's `import jax`, before any computation."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import rendezvous
from syrtos.keras.jax import collectives

if TYPE_CHECKING:
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
    collectives.choose(session, host)
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
        collectives.await_all(session)
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
