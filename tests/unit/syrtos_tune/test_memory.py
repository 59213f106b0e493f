"""What a machine has left, what a trial will need, and whether it ended for want of memory."""

from __future__ import annotations

import signal

import pytest

from syrtos.launch.outcome import End, Outcome
from syrtos.observe.memory import MachineMemory
from syrtos_tune import memory
from syrtos_tune.ends import out_of_memory
from syrtos_tune.memory import TrialMemory, forecast


def test_the_first_forecast_takes_all_growth_for_the_batchs() -> None:
    assert forecast([TrialMemory(64, 1000, 1640)], 128) == 1000 + 2 * 640


def test_later_forecasts_follow_the_two_largest_batches() -> None:
    points = [
        TrialMemory(256, 1000, 3000),
        TrialMemory(64, 1000, 1900),
        TrialMemory(128, 1000, 2000),
    ]
    assert forecast(points, 512) == 3000 + (3000 - 2000) * 2


def test_a_peak_that_did_not_grow_is_not_forecast_to_shrink() -> None:
    assert forecast([TrialMemory(64, 1000, 2000), TrialMemory(128, 1000, 1900)], 256) == 1900


def test_a_little_is_left_for_others() -> None:
    assert memory.usable(MachineMemory(1000, 10_000)) == 900
    assert memory.is_short(MachineMemory(200, 10_000))
    assert not memory.is_short(MachineMemory(2000, 10_000))


@pytest.mark.parametrize(
    "text",
    [
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3 GiB",
        "ResourceExhaustedError: Graph execution error: OOM when allocating tensor",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 6553760896 bytes.",
    ],
)
def test_frameworks_say_that_memory_has_ended(text: str) -> None:
    assert out_of_memory(Outcome(end=End.FAILED, code=1, failures=[{"rank": 0, "text": text}]), "")


def test_other_errors_are_no_want_of_memory() -> None:
    failed = Outcome(
        end=End.FAILED, code=1, failures=[{"rank": 0, "text": "ValueError: shapes differ"}]
    )
    assert not out_of_memory(failed, "")
    assert not out_of_memory(Outcome(end=End.CRASHED, status=-signal.SIGTERM), "")
    assert not out_of_memory(Outcome(end=End.CRASHED, status=-signal.SIGSEGV), "")


def test_the_kernel_kills_and_libraries_abort() -> None:
    assert "SIGKILL" in out_of_memory(Outcome(end=End.CRASHED, status=-signal.SIGKILL), "")
    aborted = Outcome(end=End.CRASHED, status=-signal.SIGABRT)
    assert "bad_alloc" in out_of_memory(
        aborted, "terminate called after throwing an instance of 'std::bad_alloc'"
    )
    assert out_of_memory(Outcome(end=End.CRASHED, status=-signal.SIGSEGV), "", limited=True)
