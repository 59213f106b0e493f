"""Rank 0 comes too late to an exchange that rank 1 gives up."""

from __future__ import annotations

import os
import time

import jax
import keras  # noqa: F401  It joins the workers.
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("rows",))
ROWS, WHOLE = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
rows = jax.make_array_from_callback((4,), ROWS, lambda index: np.ones(4, np.float32)[index])
total = jax.jit(lambda x: x.sum(), out_shardings=WHOLE)
assert float(total(rows)) == 4
if jax.process_index() == 0:
    time.sleep(8)
else:
    for _ in range(2):
        try:
            print("exchanged", float(total(rows)))
        except Exception as error:
            print("given up:", error, flush=True)
    time.sleep(6)
# Leaving JAX is an exchange, too.
os._exit(0)
