"""What an exchange that has stalled leaves behind."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from syrtos.comm import world
from syrtos.comm.mpi import MPICommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import StalledError
from syrtos.testing import run_world


def late() -> int:
    """Rank 1 comes when rank 0 has given up: MPI then still writes what it brings. Returns how many requests are kept for that."""
    everyone = world.current().comm
    assert isinstance(everyone, MPICommunicator)
    comm = MPICommunicator(everyone.comm.Dup(), Watchdog(0.2))
    if comm.rank == 0:
        with pytest.raises(StalledError):
            comm.agree("come")
    everyone.barrier()
    if comm.rank == 1:
        comm.watchdog.timeout = 60
        comm.agree("come")
    else:
        MPI.Request.Waitall(comm._unfinished)
    return len(comm._unfinished)


def passes_by_late() -> str:
    """Rank 1 comes when rank 0 has given up to pass by; both are in step at the next operation."""
    everyone = world.current().comm
    assert isinstance(everyone, MPICommunicator)
    comm = MPICommunicator(everyone.comm.Dup(), Watchdog(0.2))
    for until in (None, lambda: False):
        if comm.rank == 0:
            with pytest.raises(StalledError, match="a file"):
                comm.pass_by("a file", until=until)
        everyone.barrier()
    comm.watchdog.timeout = 60
    comm.barrier()
    return "in step"


def test_arrays_of_an_exchange_that_was_given_up_are_kept() -> None:
    assert run_world(2, late) == [1, 0]


def test_a_worker_that_gave_up_to_pass_by_is_in_step_afterwards() -> None:
    assert run_world(2, passes_by_late) == ["in step"] * 2
