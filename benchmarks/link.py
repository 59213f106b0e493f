"""Measures the link between two workers on two hosts, of `make bench-simulate`: rank 0 prints a line of JSON with its latency (s) and bandwidth (bytes/s)."""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

import syrtos

SMALL, LARGE, TIMES = 8, 32 << 20, 9

syrtos.init()


def seconds(size: int) -> float:
    """Of a sum of so many bytes: a median."""
    array, found = np.ones(size // 4, np.float32), []
    for _ in range(TIMES):
        syrtos.barrier()
        began = time.perf_counter()
        syrtos.allreduce(array)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


small, large = seconds(SMALL), seconds(LARGE)
if syrtos.rank() == 0:
    # a sum begins with an agreement, in one round, and takes two rounds itself; between two hosts each sends as many bytes as there are
    print(json.dumps({"latency": small / 3, "bandwidth": LARGE / (large - small)}), flush=True)
