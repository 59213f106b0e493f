"""Calls of the script's Python functions from inside of a compiled step."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import Mesh, PartitionSpec

from syrtos.keras.jax import distribution


def debug_callback(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `jax.debug.callback`: every worker calls the function, with the values of one process.

    JAX calls it on the first device alone, so what it keeps would be rank 0's alone.
    """

    def callback(
        function: Callable[..., object], *args: object, ordered: bool = False, **kwargs: object
    ) -> None:
        if not distribution.traces_step():
            original(function, *args, ordered=ordered, **kwargs)
            return
        leaves, structure = jax.tree.flatten((args, kwargs))
        mesh, replicated = distribution.replicated_sharding().mesh, PartitionSpec()
        assert isinstance(mesh, Mesh)

        def call_once(place: jax.Array, *positional: object, **named: object) -> None:
            # A process may have several devices.
            if mesh.devices.flat[int(place)] == mesh.local_mesh.devices.flat[0]:
                function(*positional, **named)

        def on_device(*whole: object) -> tuple[()]:
            positional, named = jax.tree.unflatten(structure, whole)
            place = jax.lax.axis_index(mesh.axis_names)
            original(call_once, place, *positional, ordered=ordered, **named)
            return ()

        jax.shard_map(
            on_device, mesh=mesh, in_specs=replicated, out_specs=replicated, check_vma=False
        )(*leaves)

    return callback
