"""Compares each kind of exchange between devices with the same function of a local array, in each type that has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras  # noqa: F401  It joins the workers.
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("rows",))
WHOLE, ROWS = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("rows"))
SIZE = (
    12  # rows and columns of a small array; an array of `WIDE` columns is summed in shared memory
)
WIDE = 50_000
OPERATIONS = {
    "sum": (lambda x: x.sum(0), WHOLE),
    "product": (lambda x: x.prod(0), WHOLE),
    "max": (lambda x: x.max(0), WHOLE),
    "min": (lambda x: x.min(0), WHOLE),
    "any": (lambda x: (x > 0).any(0), WHOLE),
    "gathered": (lambda x: x + x, WHOLE),
    "reversed": (lambda x: x[::-1], ROWS),
    "transposed": (lambda x: x.T, ROWS),
    "product of matrices": (lambda x: x.T @ x, ROWS),
}
TYPES = ["float32", "float64", "bfloat16", "int8", "uint8", "int32", "int64", "uint32", "complex64"]
ORDERED = {"max", "min", "any"}


def compare(name: str, whole: np.ndarray) -> None:
    function, placed = OPERATIONS[name]
    rows = jax.make_array_from_callback(whole.shape, ROWS, lambda index: whole[index])
    found = jax.jit(function, out_shardings=placed)(rows)
    expected = np.asarray(jax.jit(function)(jnp.asarray(whole)))
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(
            np.asarray(shard.data), expected[shard.index], err_msg=f"{name} {whole.dtype}"
        )


jax.config.update("jax_enable_x64", True)
generator, compared = np.random.default_rng(0), 0
for dtype in TYPES:
    for name in OPERATIONS:
        if not (name in ORDERED and dtype == "complex64"):
            # Whole numbers: sums in any order are equal.
            compare(name, generator.integers(0, 3, (SIZE, SIZE)).astype(jnp.dtype(dtype)))
            compared += 1
# Devices in an order of their own.
mesh = Mesh(np.array(jax.devices()[::-1]), ("rows",))
WHOLE, ROWS = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("rows"))
for name, (function, placed) in list(OPERATIONS.items()):
    OPERATIONS[name] = (function, NamedSharding(mesh, placed.spec))
    compare(name, generator.integers(0, 3, (SIZE, SIZE)).astype(np.float32))
    compared += 1
for name in ("sum", "max"):
    wide = generator.integers(0, 100, (SIZE, WIDE)).astype(np.float64)
    compare(name, wide)
    wide[3, 7] = np.nan
    compare(name, wide)
    compared += 2
print(f"compared {compared} of rank {jax.process_index()} of {jax.process_count()}")
# Nothing waits for these: they are under way when the script ends.
many = jax.jit(lambda x: (x.T @ x).sum(0), out_shardings=WHOLE)
for _ in range(3):
    many(
        jax.make_array_from_callback(
            (1200, 1200), ROWS, lambda index: np.ones((1200, 1200), np.float32)[index]
        )
    )
