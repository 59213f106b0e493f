"""Figures of a run while it goes on."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from recorded import epochs, generation, step

from syrtos.errors import ConfigurationError
from syrtos.report import prometheus
from syrtos.report.figures import Figures
from syrtos.run_dir import RunDir


def test_only_what_is_new_is_a_point(tmp_path: Path) -> None:
    generation(tmp_path, 0.0, None, [[step(n) for n in range(4)]] * 2)
    epochs(
        tmp_path,
        [
            {
                "time": 5.0,
                "fit": 1,
                "epoch": 1,
                "trained": 4,
                "logs": {"loss": 2.0},
                "learning_rate": 0.1,
            }
        ],
    )
    figures = Figures(tmp_path)
    (point,) = figures.points()
    assert (point.step, point.values) == (4, {"epoch/loss": 2.0, "epoch/learning_rate": 0.1})
    assert figures.points() == []
    assert figures.steps == 4
    assert figures.step_seconds == pytest.approx(0.1)
    assert figures.samples_per_second == pytest.approx(160)
    with RunDir(tmp_path).ledger(0).open("a") as file:
        file.write(json.dumps(step(4)) + '\n{"phase": "tr')
    assert figures.points() == []
    assert figures.steps == 5


def test_another_generation_goes_on_counting(tmp_path: Path) -> None:
    generation(tmp_path, 0.0, 1.0, [[step(n) for n in range(4)]], outcome="CRASHED")
    figures = Figures(tmp_path)
    figures.points()
    again = tmp_path / "generation-2"
    generation(again, 1.0, None, [[{"phase": "facts", "trained": 3}, step(3), step(4)]])
    epochs(
        again,
        [
            {
                "time": 5.0,
                "fit": 1,
                "epoch": 2,
                "trained": 2,
                "logs": {"loss": 1.0},
                "learning_rate": None,
            }
        ],
    )
    (point,) = figures.points()
    assert point.step == figures.steps == 5
    assert figures.generations == 2


def test_prometheus_reads_it_on_the_loopback_interface(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    generation(run, 0.0, None, [[step(n, wait=0.01) for n in range(4)]] * 2)
    epochs(
        run,
        [
            {
                "time": 5.0,
                "fit": 1,
                "epoch": 1,
                "trained": 4,
                "logs": {"loss": 2.0},
                "learning_rate": 0.1,
            }
        ],
    )
    with prometheus.serving(run, 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            families = {
                family.name: family
                for family in text_string_to_metric_families(answer.read().decode())
            }
        with (
            pytest.raises(ConfigurationError, match="Name another port"),
            prometheus.serving(run, port),
        ):
            pass
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
    assert families["syrtos_training_steps"].samples[0].value == 4
    assert families["syrtos_metric"].samples[0].labels == {"run": "my run", "metric": "loss"}
    waits = [
        sample.value
        for sample in families["syrtos_worker_seconds"].samples
        if sample.labels["kind"] == "wait"
    ]
    assert waits == pytest.approx([0.04, 0.04])
