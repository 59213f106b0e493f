"""Measures the exchange between two hosts: ``mpiexec ... wire.py MEGABYTES`` prints bytes and seconds of the best repetition."""

import json
import sys
import time

import numpy as np

import syrtos
from syrtos.comm import world

syrtos.init()
comm = world.current().comm
array = np.ones(int(float(sys.argv[1]) * 250_000), np.float32)
seconds: list[float] = []
sums: list[np.ndarray] = []
for _ in range(6):
    comm.barrier()
    started = time.perf_counter()
    sums, _total = comm.weighted_sum([array], 1.0)
    seconds.append(time.perf_counter() - started)
assert abs(float(sums[0][-1]) - 1.0) < 1e-6
place = world.current().world
if place.rank == 0:
    print(
        json.dumps(
            {
                "bytes": array.nbytes,
                "seconds": min(seconds),
                "hosts": place.node_count,
                "engine": type(comm).__name__,
            }
        )
    )
