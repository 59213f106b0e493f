"""Lines for the log of a job, before it trains, about what is done otherwise than on SageMaker."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from syrtos.launch.worker.interpreters import version
from syrtos_jobs.requests.request import Job

# Debugger, profiler and experiments are services of SageMaker's own.
_WITHOUT_EFFECT = (
    "DebugHookConfig", "DebugRuleConfigurations", "ProfilerConfig", "ProfilerRuleConfigurations", "ExperimentConfig",
)  # fmt: skip


def of(job: Job) -> Iterator[str]:
    """Yields what is to be said about a job, a text at a time."""
    # an image of another version or framework is replaced by this environment
    image = job.request["AlgorithmSpecification"].get("TrainingImage", "")
    asked = re.search(r"/?([\w-]+):(\d+\.\d[\w.]*)", image)
    if asked:
        here = {name: version(name) for name in ("tensorflow", "jax", "torch", "keras", "tf_keras")}
        found = ", ".join(
            f"{name} {number}" for name, number in here.items() if number != "not installed"
        )
        yield (
            f"syrtos: the job asks for the image {asked[1]}:{asked[2]}; it runs in this machine's"
            f" environment: Python {platform.python_version()}, {found}"
        )
    if ignored := [name for name in _WITHOUT_EFFECT if job.request.get(name)]:
        yield f"syrtos: recorded, and without effect here: {', '.join(ignored)}"
    pipes = [channel.name for channel in job.channels if channel.mode == "Pipe"]
    if pipes and job.distribution.per_host > 1:
        yield (
            f"syrtos: each instance has {job.distribution.per_host} processes, and one stream of"
            f" each Pipe channel ({', '.join(pipes)}): processes that read the same one tear its"
            " records apart, here and on SageMaker. Read it in one process of each instance, or"
            " give each process a channel of its own."
        )
    # instances that run copies of a command that syrtos does not know
    if job.unconnected:
        yield (
            f"syrtos: each of the {len(job.hosts)} instances runs a copy of {job.unconnected!r}."
            " Unless it starts `python -m syrtos train.py`, the copies make no world, and each"
            " trains a model of its own. A Python script as the entry point trains on all."
        )
