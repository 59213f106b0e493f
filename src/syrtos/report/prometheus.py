"""The figures of runs as Prometheus reads them: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from syrtos.errors import ConfigurationError
from syrtos.report.figures import Figures

_LOOPBACK = "127.0.0.1"


def families(runs: Mapping[str, Figures]) -> list[Metric]:
    """The families of metrics of some runs, by name, which is the value of the label ``run``: Prometheus has a label ``job`` of its own."""
    label = "run"
    steps = CounterMetricFamily("syrtos_training_steps", "Training steps so far.", labels=[label])
    generations = GaugeMetricFamily(
        "syrtos_generations", "Generations of workers so far: 1 and the number of restarts.", labels=[label]
    )
    epoch = GaugeMetricFamily("syrtos_epoch", "The epoch that goes on, or ended last.", labels=[label])
    step = GaugeMetricFamily(
        "syrtos_step_seconds", "Median time of the last 100 training steps of rank 0.", labels=[label]
    )
    rate = GaugeMetricFamily(
        "syrtos_samples_per_second", "Training samples of all workers, over their last 100 steps.", labels=[label]
    )
    learning_rate = GaugeMetricFamily("syrtos_learning_rate", "The learning rate.", labels=[label])
    metric = GaugeMetricFamily(
        "syrtos_metric", "The last value of a loss or metric of Keras.", labels=[label, "metric"]
    )
    seconds = CounterMetricFamily(
        "syrtos_worker_seconds",
        "Seconds of a worker by kind: input, compute, exchange, wait, ...",
        labels=[label, "rank", "kind"],
    )
    memory = GaugeMetricFamily("syrtos_worker_memory_bytes", "Resident memory of a worker.", labels=[label, "rank"])
    cpu = GaugeMetricFamily(
        "syrtos_host_cpu_percent", "Percent of all processors of a host that are busy.", labels=[label, "host"]
    )
    for name, figures in runs.items():
        figures.points()
        steps.add_metric([name], figures.steps)
        generations.add_metric([name], figures.generations)
        epoch.add_metric([name], figures.epoch)
        for family, value in (
            (step, figures.step_seconds),
            (rate, figures.samples_per_second),
            (learning_rate, figures.learning_rate),
        ):
            if value is not None:
                family.add_metric([name], value)
        for key, value in figures.logs.items():
            metric.add_metric([name, key], value)
        for rank, worker in sorted(figures.workers.items()):
            for kind, spent in worker.seconds.items():
                seconds.add_metric([name, str(rank), kind], spent)
            if "memory" in worker.usage:
                memory.add_metric([name, str(rank)], worker.usage["memory"])
            if machine := worker.usage.get("machine"):
                cpu.add_metric([name, str(machine["number"])], machine["cpu"])
    return [steps, generations, epoch, step, rate, learning_rate, metric, seconds, memory, cpu]


class _Collector:
    """Reads the files of a run when it is asked, and not before."""

    def __init__(self, run_dir: Path) -> None:
        self._name, self._figures = run_dir.name, Figures(run_dir)
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            return families({self._name: self._figures})


@contextmanager
def serving(run_dir: Path, port: int) -> Iterator[int]:
    """Inside, ``/metrics`` on the loopback interface has the figures of a run. Yields the port (0 asks for a free one).

    Raises:
        ConfigurationError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(_Collector(run_dir))  # type: ignore[arg-type]
    try:
        server, thread = start_http_server(port, addr=_LOOPBACK, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"`--metrics-port {port}`: {error.strerror} on {_LOOPBACK}. Name another port, or 0 for a free one."
        ) from error
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
