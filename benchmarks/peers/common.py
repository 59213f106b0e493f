"""What all peers share: starting the workers, timing them, printing the result as JSON.

A peer's script leads when run by hand, and starts itself again once for each worker. A worker learns
its place from `--worker`; rank 0 leaves its result in a file, which the leader prints.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import models

WARM_UP = 3
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}  # NPROC is what XLA's CPU client reads
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}

Line = dict[str, Any]
Reduce = Callable[[], Any]  # sums over the workers, waits, returns the local vector


class PeerError(Exception):
    """A peer could not be measured."""


@dataclass(frozen=True)
class Worker:
    """One worker's place in its world; `exchange` is false when the workers ignore each other."""

    rank: int
    size: int
    ports: list[int]
    directory: str
    exchange: bool

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def meet(self) -> None:
        """Wait until every worker is here, so that independent workers run at the same time."""
        ready = [Path(self.directory, f"ready.{rank}") for rank in range(self.size)]
        ready[self.rank].touch()
        while not all(path.exists() for path in ready):
            time.sleep(0.001)


def reduce_peer(peer: str, connect: Callable[[Worker], Callable[[int], Reduce]]) -> None:
    """Measure sum-allreduces: `connect` joins the world and makes a reduce of so many float32."""
    parser = arguments(repeats=20)
    parser.add_argument("--bytes", type=int, nargs="+", default=[100_000_000])
    options = parser.parse_args()
    if options.worker:
        work(options, lambda worker: reduce_medians(connect(worker), worker, options))
    else:
        lead({"peer": peer, "work": "reduce"}, lambda: reduce_lines(options))


def step_peer(peer: str, train: Callable[[Worker, models.Model, int], list[float]]) -> None:
    """Measure training steps: `train` runs so many steps of a model and returns when each ended, in seconds."""
    parser = arguments(repeats=10)
    parser.add_argument("--model", choices=list(models.MODELS), default="mlp")
    options = parser.parse_args()
    if options.worker:
        model = models.MODELS[options.model]
        work(options, lambda worker: step_median(train(worker, model, WARM_UP + options.repeats)))
    else:
        lead({"peer": peer, "work": f"step of {options.model}"}, lambda: step_lines(options))


def arguments(repeats: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one set of workers")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    return parser


def lead(head: Line, measure: Callable[[], Iterable[Line]]) -> None:
    """Print one JSON line per result, or one that says what went wrong."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for line in measure():
            print(json.dumps(head | line), flush=True)
    except PeerError as error:
        print(json.dumps(head | {"error": str(error)}), flush=True)
        sys.exit(1)


def reduce_lines(options: argparse.Namespace) -> Iterable[Line]:
    medians = run_world(options, exchange=True)
    for size, median in zip(options.bytes, medians, strict=True):
        yield {
            "bytes": size,
            "workers": options.workers,
            "median_ms": round(median, 4),
            "repeats": options.repeats,
        }


def step_lines(options: argparse.Namespace) -> Iterable[Line]:
    alone = run_world(options, exchange=False)
    together = run_world(options, exchange=True)
    yield {
        "parameters": models.MODELS[options.model].parameters,
        "batch_per_worker": models.MODELS[options.model].batch,
        "workers": options.workers,
        "median_step_ms": round(together, 2),
        "no_exchange_step_ms": round(alone, 2),
        "ratio_to_no_exchange": round(together / alone, 3),
        "repeats": options.repeats,
    }


def run_world(options: argparse.Namespace, exchange: bool) -> Any:
    """Start the workers, wait for them and return what rank 0 measured."""
    ports = free_ports(options.workers)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as started:
        processes = []
        for rank in range(options.workers):
            processes.append(start(Worker(rank, options.workers, ports, directory, exchange)))
            started.callback(stop, processes[-1])
        wait(processes, directory, options.timeout)
        return json.loads(result_path(directory).read_text())


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start(worker: Worker) -> subprocess.Popen[bytes]:
    with log_path(worker.directory, worker.rank).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *sys.argv, "--worker", json.dumps(asdict(worker))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | ONE_THREAD | QUIET,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and whatever it started; one that has ended is only collected."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait(processes: list[subprocess.Popen[bytes]], directory: str, timeout: int) -> None:
    deadline = time.monotonic() + timeout
    while any(codes := [process.poll() != 0 for process in processes]):
        for rank, process in enumerate(processes):
            if process.returncode:
                raise PeerError(failure(rank, process.returncode, directory))
        if time.monotonic() > deadline:
            raise PeerError(f"{sum(codes)} of {len(codes)} workers not done after {timeout} s")
        time.sleep(0.05)


def failure(rank: int, status: int, directory: str) -> str:
    lines = log_path(directory, rank).read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "(it said nothing)")
    return f"worker {rank} ended with status {status}: {last.strip()[:500]}"


def work(options: argparse.Namespace, measure: Callable[[Worker], Any]) -> None:
    """Be one worker. The alarm ends it should its leader be killed before it can."""
    signal.alarm(options.timeout)
    worker = Worker(**options.worker)
    result = measure(worker)
    if worker.rank == 0:
        result_path(worker.directory).write_text(json.dumps(result))


def reduce_medians(
    bind: Callable[[int], Reduce], worker: Worker, options: argparse.Namespace
) -> list[float]:
    return [reduce_median(bind(size // 4), worker, options.repeats) for size in options.bytes]


def reduce_median(reduce: Reduce, worker: Worker, repeats: int) -> float:
    """Every worker's vector is full of its rank + 1: check the first sum, then time the others."""
    found, expected = float(reduce()[0]), worker.size * (worker.size + 1) / 2
    if found != expected:
        raise PeerError(f"the sum is {found}, expected {expected}")
    samples = [milliseconds(reduce) for _ in range(WARM_UP + repeats)]
    return statistics.median(samples[WARM_UP:])


def milliseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def step_median(ends: list[float]) -> float:
    """The median step in ms; the steps up to WARM_UP only mark where the first timed one begins."""
    kept = ends[WARM_UP - 1 :]
    return statistics.median(b - a for a, b in pairwise(kept)) * 1000


def batch_clock(keras: Any) -> Any:
    """A callback that notes in `ends` when each batch ended. Asking for logs as numbers makes `fit` wait for the batch."""

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            self.ends.append(time.perf_counter())

    return Clock()


def log_path(directory: str, rank: int) -> Path:
    return Path(directory, f"log.{rank}")


def result_path(directory: str) -> Path:
    return Path(directory, "result.json")
