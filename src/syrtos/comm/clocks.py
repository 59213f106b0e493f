"""The seconds by which the clock of each worker is ahead of rank 0's."""

from __future__ import annotations

import time

from syrtos.comm.communicator import Communicator

_ROUNDS = 15


def ahead(comm: Communicator) -> float:
    """Returns the seconds by which this worker's `time.perf_counter` is ahead of rank 0's.

    The result is the median of several rounds. All workers call this together.
    """
    found = []
    for number in range(_ROUNDS):
        comm.agree(f"clocks {number}")
        # Workers leave an agreement at about the same time: on one host within some microseconds,
        # between hosts within about one latency of the network.
        left = time.perf_counter()
        found.append(left - comm.agree(f"clocks {number}: when that was over", left)[0])
    # not by `statistics`: the script may have a module of that name
    return sorted(found)[_ROUNDS // 2]
