"""Calls of the script's Python functions from inside of a compiled step."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from syrtos.keras.jax import distribution


def debug_callback(original: Callable[..., object]) -> Callable[..., object]:
    """Wraps `jax.debug.callback`: every worker calls the function, with the values of one process.

    JAX calls it on the first device alone, so what it keeps would be rank 0's alone.
    """

    def callback(*args: Any, **options: object) -> object:
        is_call = bool(args) and not options.get("partitioned")
        if not (is_call and distribution.traces_step()):
            return original(*args, **options)
        function, *positional = args
        ordered = options.pop("ordered", False)
        leaves, structure = jax.tree.flatten((positional, options))
        numbers = [
            i for i, leaf in enumerate(leaves) if isinstance(leaf, Number) or _is_array(leaf)
        ]
        mesh, replicated = distribution.replicated_sharding().mesh, PartitionSpec()
        assert isinstance(mesh, Mesh)

        def call_once(place: jax.Array, *found: object, **named: object) -> None:
            # A process may have several devices.
            if mesh.devices.flat[int(place)] == mesh.local_mesh.devices.flat[0]:
                function(*found, **named)

        def on_device(*whole: object) -> tuple[()]:
            given = dict(zip(numbers, whole, strict=True))
            rest = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
            found, named = jax.tree.unflatten(structure, rest)
            place = jax.lax.axis_index(mesh.axis_names)
            original(call_once, place, *found, ordered=ordered, **named)
            return ()

        jax.shard_map(
            on_device, mesh=mesh, in_specs=replicated, out_specs=replicated, check_vma=False
        )(*(leaves[i] for i in numbers))
        return None

    return callback


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "dtype")
