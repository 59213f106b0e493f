"""Charts of processors, memory, disks, network and GPUs of each machine over a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from syrtos.report.read import Generation, RunRecord

# Bytes that have passed since the machine was started: a chart shows them by second.
_COUNTERS = ("read", "written", "sent", "received")


def describe_machines(run: RunRecord) -> list[dict[str, Any]]:
    """Returns a record for each machine that was sampled, with its workers."""
    numbers = sorted(
        {
            sample["machine"]["number"]
            for generation in run.generations
            for sample in _of_machines(generation)
        }
    )
    return [_machine(run, number) for number in numbers]


def _of_machines(generation: Generation) -> list[Mapping[str, Any]]:
    return [sample for sample in generation.usage if isinstance(sample.get("machine"), dict)]


def _machine(run: RunRecord, number: int) -> dict[str, Any]:
    at: list[float] = []
    samples: list[Mapping[str, Any]] = []
    for generation in run.generations:
        for sample in _of_machines(generation):
            if sample["machine"]["number"] == number:
                at.append(round(generation.offset + sample["time"] - generation.began, 2))
                samples.append(sample["machine"])
    ranks = [rank for rank in run.last_trained.ranks if rank.facts.get("node", 0) == number]
    last = samples[-1]
    return {
        "name": (ranks[0].host if ranks else "") or f"host {number}",
        "number": number,
        "ranks": [rank.rank for rank in ranks],
        "cores": last.get("cores"),
        "memory_total": last.get("memory_total"),
        "at": at,
        "cpu": [sample.get("cpu") for sample in samples],
        "memory": [sample.get("memory") for sample in samples],
        **{name: _by_second(at, [sample.get(name) for sample in samples]) for name in _COUNTERS},
        "gpus": _gpus(samples),
        "workers": [_worker(run, rank.rank) for rank in ranks],
    }


def _by_second(at: Sequence[float], values: Sequence[Any]) -> list[float | None]:
    found: list[float | None] = [None]
    for k in range(1, len(values)):
        seconds = at[k] - at[k - 1]
        known = (
            values[k] is not None
            and values[k - 1] is not None
            and seconds > 0
            and values[k] >= values[k - 1]
        )
        found.append(round((values[k] - values[k - 1]) / seconds, 1) if known else None)
    return found


def _gpus(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    count = max((len(sample.get("gpus") or ()) for sample in samples), default=0)
    names = ("busy", "memory", "memory_total", "watts")
    return [
        {name: [_of_gpu(sample, gpu, name) for sample in samples] for name in names}
        for gpu in range(count)
    ]


def _of_gpu(sample: Mapping[str, Any], gpu: int, name: str) -> Any:
    gpus = sample.get("gpus") or ()
    return gpus[gpu].get(name) if gpu < len(gpus) else None


def _worker(run: RunRecord, rank: int) -> dict[str, Any]:
    """Returns the peak memory of a worker's process, and the mean number of cores it kept busy.

    The mean is taken from the worker's first sample to its last.
    """
    samples = [
        sample
        for sample in run.last_trained.usage
        if sample.get("rank") == rank and {"memory", "cpu_seconds"} <= sample.keys()
    ]
    memory = max((sample["memory"] for sample in samples), default=0)
    cores = 0.0
    if len(samples) > 1 and samples[-1]["time"] > samples[0]["time"]:
        cores = (samples[-1]["cpu_seconds"] - samples[0]["cpu_seconds"]) / (
            samples[-1]["time"] - samples[0]["time"]
        )
    return {"rank": rank, "memory": memory, "cores": round(cores, 2)}
