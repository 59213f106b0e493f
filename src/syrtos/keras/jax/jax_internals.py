"""The private symbols of JAX that syrtos touches, with the reasons. Seen to work on JAX 0.10.2."""

from __future__ import annotations

import functools
import importlib
from typing import Any


def listen_on(address: str) -> None:
    """Makes the sockets of gloo listen on ``address``; gloo exchanges between processes on CPUs."""
    # By default they listen on the address that the host's name stands for, which other hosts can
    # reach. JAX passes neither of the arguments by which gloo can be told. It has no stubs for its
    # own library.
    gloo: Any = importlib.import_module("jax._src.lib")._jax
    gloo.make_gloo_tcp_collectives = functools.partial(
        gloo.make_gloo_tcp_collectives, hostname=address
    )
