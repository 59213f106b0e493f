"""Which limit of this machine an error has met."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.launch import limits

CODE = "import sys; from syrtos.launch.limits import *; print({})"


def under(kind: int, value: int, asked: str) -> str:
    """What is answered in a process that has this limit of setrlimit(2)."""
    return subprocess.run(
        [sys.executable, "-c", CODE.format(asked)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(kind, (value, value)),
    ).stdout


@pytest.mark.parametrize(
    ("kind", "value", "error", "sentence"),
    [
        (resource.RLIMIT_AS, 1 << 32, "MemoryError:", "limited to 4194304 kB of addresses"),
        (resource.RLIMIT_AS, 1 << 32, "can't start new thread", "`ulimit -v unlimited`"),
        (resource.RLIMIT_NOFILE, 64, "OSError: [Errno 24] Too many open files", "`ulimit -n"),
        (resource.RLIMIT_NPROC, 4000, "pthread_create failed", "`ulimit -u"),
        (resource.RLIMIT_CPU, 4000, "", "limited to 4000 s of processor time: raise that with"),
        (resource.RLIMIT_FSIZE, 1 << 30, "OSError: [Errno 27] File too large", "`ulimit -f"),
    ],
)
def test_the_limit_is_named_with_how_to_raise_it(
    kind: int, value: int, error: str, sentence: str
) -> None:
    status = -signal.SIGXCPU if kind == resource.RLIMIT_CPU else None
    assert sentence in under(kind, value, f"explain({error!r}, {status})")


def test_a_limit_that_nobody_has_set_is_not_blamed() -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("this process has a limit of addresses")
    assert limits.explain("MemoryError:") == ""
    assert limits.explain("ValueError: x", 1) == ""


@pytest.mark.parametrize("status", [-signal.SIGBUS, 128 + signal.SIGBUS])
def test_sigbus_is_shared_memory_that_is_full(status: int) -> None:
    assert "--shm-size" in limits.explain("", status)


def test_small_files_are_known_before_workers_start() -> None:
    assert "`ulimit -f unlimited`" in under(resource.RLIMIT_FSIZE, 10240, "missing_room(2)")
    assert under(resource.RLIMIT_FSIZE, 10240, "missing_room(1)") == "\n"


def test_room_for_mpi_is_known_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.missing_room(2) == ""
    full = os.statvfs("/dev/shm")
    few = os.statvfs_result((4096, 4096, 16, 16, 16, *tuple(full)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    assert "/dev/shm has 0.1 MB free, and MPI needs 4.4 MB there for 4 w" in limits.missing_room(4)
    assert limits.missing_room(1) == ""


def test_shared_memory_that_can_t_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    error = (
        "MPIDI_UCX_init_worker(86): ucx function returned with failed status(Shared memory error)"
    )
    assert "--shm-size" in limits.explain(error)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    says = "/dev/shm can't be written to: mount it"
    assert says in limits.missing_room(2)
    assert limits.missing_room(1) == ""
    assert limits.explain(error).startswith(says)
    assert "--shm-size" not in limits.explain(error)


def test_the_smallest_limit_of_a_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_pids_max", lambda: iter(["max", "100", "30"]))
    assert "limited to 30 threads (pids.max)" in limits.explain("can't start new thread")
    assert "--pids-limit" in limits.explain("can't start new thread")


def test_control_groups_are_read() -> None:
    """Of this process's own: there may be none."""
    assert all(text == "max" or text.isdigit() for text in limits._pids_max())
    assert Path("/proc/self/cgroup").exists() or not list(limits._pids_max())


def test_more_workers_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (opened + 40, opened + 40))
    assert limits.missing_descriptors(2, 2) == ""
    assert limits.missing_descriptors(4, 2) == ""
    assert "`ulimit -n" in limits.missing_descriptors(20, 2)
    assert "`ulimit -n" in limits.missing_descriptors(10**24, 2)


def test_the_soft_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, raised = len(os.listdir("/proc/self/fd")), list[object]()
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (opened + 4, opened + 100))
    monkeypatch.setattr(limits.resource, "setrlimit", lambda which, to: raised.append(to))
    assert limits.missing_descriptors(20, 2) == ""
    assert raised == [(opened + 72, opened + 100)]
    assert "`ulimit -n" in limits.missing_descriptors(60, 2)


def test_kills_for_lack_of_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = limits.kills_for_memory()
    monkeypatch.setattr(limits, "kills_for_memory", lambda: before)
    assert limits.describe_kills(before) == ""
    monkeypatch.setattr(limits, "kills_for_memory", lambda: before + 2)
    assert "Linux has killed 2 processes of this machine" in limits.describe_kills(before)
