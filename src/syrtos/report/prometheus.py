"""The figures of runs in Prometheus's format.

See https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from syrtos.errors import ConfigurationError
from syrtos.report.figures import Figures

_LOOPBACK = "127.0.0.1"


_Sample = tuple[tuple[str, ...], float | None]


def _of_workers(figures: Figures, value: Callable[[Any], Iterable[_Sample]]) -> Iterator[_Sample]:
    for rank, worker in sorted(figures.workers.items()):
        yield from (((str(rank), *labels), number) for labels, number in value(worker))


def _host_percent(figures: Figures) -> Iterator[_Sample]:
    for worker in figures.workers.values():
        if machine := worker.usage.get("machine"):
            yield (str(machine["number"]),), machine.get("cpu")


# Each family: its class, name, meaning, labels beside the run, and its samples; those without a
# value are left out.
_FAMILIES: Sequence[tuple[Any, str, str, tuple[str, ...], Callable[[Figures], Iterable[_Sample]]]] = (
    (CounterMetricFamily, "syrtos_training_steps", "Training steps so far.", (), lambda f: [((), f.steps)]),
    (GaugeMetricFamily, "syrtos_generations", "Generations of workers so far: 1 and the number of restarts.", (), lambda f: [((), f.generations)]),
    (GaugeMetricFamily, "syrtos_epoch", "The epoch that goes on, or ended last.", (), lambda f: [((), f.epoch)]),
    (GaugeMetricFamily, "syrtos_step_seconds", "Median time of the last 100 training steps of rank 0.", (), lambda f: [((), f.step_seconds)]),
    (GaugeMetricFamily, "syrtos_samples_per_second", "Training samples of all workers, over their last 100 steps.", (), lambda f: [((), f.samples_per_second)]),
    (GaugeMetricFamily, "syrtos_learning_rate", "The learning rate.", (), lambda f: [((), f.learning_rate)]),
    (GaugeMetricFamily, "syrtos_metric", "The last value of a loss or metric of Keras.", ("metric",), lambda f: [((k,), v) for k, v in f.logs.items()]),
    (CounterMetricFamily, "syrtos_worker_seconds", "Seconds of a worker by kind: input, compute, exchange, wait, ...", ("rank", "kind"),
     lambda f: _of_workers(f, lambda w: [((kind,), spent) for kind, spent in w.seconds.items()])),
    (GaugeMetricFamily, "syrtos_worker_memory_bytes", "Resident memory of a worker.", ("rank",),
     lambda f: _of_workers(f, lambda w: [((), w.usage.get("memory"))])),
    (GaugeMetricFamily, "syrtos_host_cpu_percent", "Percent of all processors of a host that are busy.", ("host",), _host_percent),
)  # fmt: skip


def families(runs: Mapping[str, Figures]) -> list[Metric]:
    """Returns the metric families of runs by name. The name is the value of the label ``run``."""
    for figures in runs.values():
        figures.points()
    found = []
    for kind, name, meaning, labels, samples in _FAMILIES:
        # not `job`, which Prometheus has as a label of its own
        family = kind(name, meaning, labels=["run", *labels])
        for run, figures in runs.items():
            for values, number in samples(figures):
                if number is not None:
                    family.add_metric([run, *values], number)
        found.append(family)
    return found


class _Collector:
    """A collector that reads the files of a run when it is asked, and not before."""

    def __init__(self, run_dir: Path) -> None:
        self._name, self._figures = run_dir.name, Figures(run_dir)
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        # The server answers each request in a thread of its own, and the figures go on from where
        # they were.
        with self._lock:
            return families({self._name: self._figures})


@contextmanager
def serving(run_dir: Path, port: int) -> Iterator[int]:
    """Context manager: ``/metrics`` on the loopback interface has the figures of a run.

    Yields the port (0 asks for a free one).

    Raises:
        ConfigurationError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(_Collector(run_dir))  # type: ignore[arg-type]
    try:
        server, thread = start_http_server(port, addr=_LOOPBACK, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"`--metrics-port {port}`: {error.strerror} on {_LOOPBACK}. Name another port, or 0 for"
            " a free one."
        ) from error
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
