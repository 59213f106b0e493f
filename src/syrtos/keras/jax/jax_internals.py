"""The private symbols of JAX that syrtos touches, with the reasons. Seen to work on JAX 0.10.2."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


def exchange_by(address: str, uses_mpi: Callable[[], bool]) -> None:
    """Chooses how XLA exchanges between processes on CPUs, when it makes its client.

    Args:
        address: where the sockets of gloo listen.
        uses_mpi: returns whether MPI is to be used, whose library jaxlib has loaded, in place of gloo.
    """
    # By default gloo listens on the address that the host's name stands for, which other hosts can
    # reach. JAX passes neither of the arguments by which gloo can be told. It has no stubs for its
    # own library.
    library: Any = importlib.import_module("jax._src.lib")._jax
    gloo = library.make_gloo_tcp_collectives

    @functools.wraps(gloo)
    def make(**given: object) -> object:
        if not uses_mpi():
            return gloo(hostname=address, **given)
        made = library.make_mpi_collectives()
        made.Init()
        return made

    library.make_gloo_tcp_collectives = make
