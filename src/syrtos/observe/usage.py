"""Samples of a worker's process, and on one worker of each machine of the machine.

The machine's samples are of processors, memory, disks, network and GPUs. A thread of each worker
takes them, as psutil and NVIDIA's NVML give them, and appends lines to a file. A sample takes about
0.2 ms; the first one imports the libraries, after the script has begun.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from syrtos.observe import steady
from syrtos.observe.ledger import pause
from syrtos.run_dir import RunDir

# Seconds between samples, at least; and before the first, so that importing psutil does not delay a
# script's first lines.
_EVERY, _FIRST = 1.0, 1.0


def sample(run_dir: str, rank: int, machine: int | None, trained: Callable[[], int]) -> None:
    """Starts a thread that takes samples from now on until the process ends.

    Args:
        run_dir: the folder of the run, or of a later generation.
        rank: the rank of this worker.
        machine: the number of the machine, for one worker of it; None for the others.
        trained: returns how many training steps this process has made.
    """
    arguments = (RunDir(Path(run_dir)).usage(rank), rank, machine, trained)
    threading.Thread(target=_sample, args=arguments, name="syrtos usage", daemon=True).start()


def _sample(path: Path, rank: int, machine: int | None, trained: Callable[[], int]) -> None:
    began = time.monotonic()
    time.sleep(_FIRST)
    try:
        # Only here: it takes 20 ms to import.
        import psutil
    except ImportError:
        return
    process = psutil.Process()
    gpus = _Gpus() if machine is not None else None
    try:
        while True:
            facts = _of_process(process) | {"rank": rank, "trained": trained()}
            if machine is not None and gpus is not None:
                facts["machine"] = {"number": machine, **_of_machine(psutil), "gpus": gpus.now()}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(steady.now(), 3), **facts}) + "\n")
            time.sleep(max(_EVERY, pause(time.monotonic() - began)))
    except (OSError, psutil.Error):
        # A full disk, or a folder that is gone, is no reason to end the training.
        return


def _of_process(process: Any) -> dict[str, Any]:
    """Returns seconds of processor time so far, and bytes in memory."""
    with process.oneshot():
        times = process.cpu_times()
        return {
            "cpu_seconds": round(times.user + times.system, 2),
            "memory": process.memory_info().rss,
        }


def _of_machine(psutil: Any) -> dict[str, Any]:
    """Returns the use of the machine's processors, memory, disks and network.

    The values are percent of all processors, bytes of memory, and bytes read, written, sent and
    received so far. A container may not tell some of it.
    """
    memory = psutil.virtual_memory()
    disk, net = psutil.disk_io_counters(), psutil.net_io_counters(pernic=True) or {}
    wires = [counters for name, counters in net.items() if not name.startswith("lo")]
    return {
        "cpu": psutil.cpu_percent(),
        "cores": psutil.cpu_count(),
        "memory": memory.total - memory.available,
        "memory_total": memory.total,
        "read": disk.read_bytes if disk else None,
        "written": disk.write_bytes if disk else None,
        "sent": sum(counters.bytes_sent for counters in wires),
        "received": sum(counters.bytes_recv for counters in wires),
    }


class _Gpus:
    """The GPUs of this machine, through NVML (`nvidia-ml-py`), where both are there."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            import pynvml  # pyright: ignore[reportMissingImports]

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
            ]
        except Exception:
            # no library, no driver, or no GPU: NVML has an error class for each
            self._handles = []

    def now(self) -> list[dict[str, float | None]]:
        """Returns each GPU's percent of time in which it computed, bytes of memory, and watts.

        A value is None where a GPU does not tell it, as a part of one (MIG) or a virtual one.
        """
        return [self._of_gpu(handle) for handle in self._handles]

    def _of_gpu(self, handle: Any) -> dict[str, float | None]:
        nvml = self._nvml
        return {
            "busy": _ask_nvml(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory": _ask_nvml(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "memory_total": _ask_nvml(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "watts": _ask_nvml(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
        }


def _ask_nvml(ask: Callable[[], float]) -> float | None:
    try:
        return ask()
    except Exception:
        # NVML has an error class for each reason.
        return None
