"""The gradient noise scale, from made-up gradients whose noise is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.observe.gradient_norms import GradientNorms
from syrtos.report import facts, noise_scale
from syrtos.report.read import load

DIMENSION = 50


def write(
    run_dir: Path,
    shares: list[int],
    noise: float,
    steps: int = 400,
    facts: dict[str, object] | None = None,
) -> None:
    """Ledgers of workers whose gradients are a vector of norm 1 and noise of variance ``noise`` in a sample."""
    random = np.random.default_rng(0)
    mean = np.full(DIMENSION, DIMENSION**-0.5)
    folder = run_dir / "ledger"
    folder.mkdir(parents=True)
    lines: list[list[dict[str, object]]] = [
        [{"phase": "facts", "began": 1.0, **(facts or {})}] for _ in shares
    ]
    for step in range(steps):
        own = [
            mean + random.normal(0, (noise / DIMENSION / share) ** 0.5, DIMENSION)
            for share in shares
        ]
        whole = np.average(own, axis=0, weights=shares)
        for rank, share in enumerate(shares):
            line = {
                "phase": "train",
                "step": step,
                "steps": 1,
                "samples": share,
                "wall": 0.01,
                "compute": 0.01,
            }
            lines[rank].append(
                {
                    **line,
                    "own_square": float(own[rank] @ own[rank]),
                    "mean_square": float(whole @ whole),
                }
            )
    for rank, each in enumerate(lines):
        (folder / f"rank-{rank}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in each)
        )


@pytest.mark.parametrize(
    ("shares", "noise"),
    [([16, 16], 300.0), ([8, 8, 8, 8], 300.0), ([20, 4], 100.0), ([1, 1], 10.0)],
)
def test_the_noise_that_was_put_in_is_found(
    tmp_path: Path, shares: list[int], noise: float
) -> None:
    write(tmp_path, shares, noise)
    found = noise_scale.describe_noise_scale(load(tmp_path))
    assert found["scale"] == pytest.approx(noise, rel=0.25)
    assert found["low"] < found["scale"] < found["high"]
    assert found["batch"] == sum(shares)
    assert found["supported"] == int(found["scale"] / sum(shares) * len(shares))
    assert "are worth it" in found["text"]
    assert len(found["series"]) == 40


def test_an_epoch_of_fewer_samples_is_named(tmp_path: Path) -> None:
    write(tmp_path, [16, 16], 300.0)
    epoch = {
        "epoch": 0,
        "epochs": 1,
        "step": 4,
        "steps_per_epoch": 4,
        "trained": 400,
        "time": 1.0,
        "logs": {},
    }
    (tmp_path / "ledger" / "epochs.jsonl").write_text(json.dumps(epoch) + "\n")
    text = noise_scale.describe_noise_scale(load(tmp_path))["text"]
    assert "about 23 workers, if each keeps the 16 samples that it has now" in text
    assert "No step can have that many here: an epoch had about 130 samples." in text


def test_a_batch_that_is_larger_than_the_noise_scale(tmp_path: Path) -> None:
    write(tmp_path, [64, 64], 20.0)
    found = noise_scale.describe_noise_scale(load(tmp_path))
    assert found["scale"] == pytest.approx(20, rel=0.25)
    assert "A larger batch would mostly average noise that does not matter" in found["text"]
    assert "more workers pay off only if" in found["text"]


@pytest.mark.parametrize("noise", [4.0, 300.0])
def test_where_workers_do_not_pay_none_are_named(tmp_path: Path, noise: float) -> None:
    """The report says elsewhere to use fewer of them."""
    write(tmp_path, [16, 16], noise)
    text = noise_scale.describe_noise_scale(load(tmp_path), pays=False)["text"]
    assert "The gradient noise scale is about" in text
    assert "workers" not in text


def test_noise_alone_gives_no_number(tmp_path: Path) -> None:
    write(tmp_path, [1, 1], 1e9, steps=40)
    found = noise_scale.describe_noise_scale(load(tmp_path))
    assert found.get("scale", 1e6) > 1e5 or "hides the gradient" in found["text"]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"sync_every": 4}, "--sync-every"),
        ({"asked_to_shard_update": True}, "--shard-update"),
        ({"compress": "bf16"}, "--compress"),
    ],
)
def test_a_run_without_measurements_says_why(
    tmp_path: Path, facts: dict[str, object], why: str
) -> None:
    write(tmp_path, [4, 4], 1.0, steps=3, facts=facts)
    assert why in noise_scale.describe_noise_scale(load(tmp_path))["text"]


def test_one_worker_has_nothing_to_compare(tmp_path: Path) -> None:
    write(tmp_path, [4], 1.0)
    assert "the run had one" in noise_scale.describe_noise_scale(load(tmp_path))["text"]


@given(st.lists(st.integers(1, 3_000_000), min_size=1, max_size=5), st.integers(0, 64))
def test_large_gradients_are_measured_more_rarely_and_on_the_same_steps(
    sizes: list[int], first: int
) -> None:
    def measured(worker: int) -> list[int]:
        norms, found = GradientNorms(), []
        for step in range(first, first + 100):
            norms.begin(step, 1)
            for size in sizes:
                array = np.broadcast_to(np.float32(1 + worker), size)
                norms.add([array[:1] if size else array], [array[:1]], 1.0)
                norms._seen += array.nbytes - 4
            if norms.take():
                found.append(step)
        return found

    assert measured(0)[1:] == measured(1)[1:]
    assert len(measured(0)) >= 3


def test_steps_that_add_up_gradients_are_not_measured() -> None:
    norms = GradientNorms()
    norms.is_off = True
    norms.begin(0, 1)
    norms.add([np.ones(3, np.float32)], [np.ones(3, np.float32)], 1.0)
    assert norms.take() is None
    norms.is_off = False
    norms.begin(0, 4)  # four steps executed as one
    norms.add([np.ones(3, np.float32)], [np.ones(3, np.float32)], 1.0)
    assert norms.take() is None
    norms.begin(0, 1)
    norms.add([np.full(3, np.nan, np.float32)], [np.ones(3, np.float32)], 1.0)
    assert norms.take() is None
    norms.begin(0, 1)
    norms.add([np.full(4, 2, np.float16)], [np.ones(4, np.float16)], 1.0)
    assert norms.take() == (16.0, 4.0)


def beside_one_worker(tmp_path: Path, noise: float, alone: float) -> dict[str, Any]:
    """Returns the report of two workers with steps of 10 ms beside one whose steps take ``alone`` s."""
    write(tmp_path / "two", [16, 16], noise)
    (tmp_path / "one").mkdir()
    request = {"sha256": "1", "program": {}, "versions": {}, "options": {"batch": "global"}}
    for name, workers, step in (("two", 2, 0.01), ("one", 1, alone)):
        (tmp_path / name / "run.json").write_text(json.dumps(request))
        measured = {"workers": workers, "step": step, "samples": 32.0}
        (tmp_path / name / "speed.json").write_text(json.dumps(measured))
    return facts.of_run(load(tmp_path / "two"))


@pytest.mark.parametrize(
    ("noise", "action"), [(300.0, "use `-n 1`, or a larger batch"), (4.0, "use `-n 1`")]
)
def test_a_report_has_one_verdict_on_the_number_of_workers(
    tmp_path: Path, noise: float, action: str
) -> None:
    found = beside_one_worker(tmp_path, noise, alone=0.005)
    assert found["recommended"]["action"] == action
    assert found["recommended"]["text"].startswith("one worker was 2.0× as fast (one). Use `-n 1`")
    assert "worker" not in found["noise_scale"]["text"]
    assert found["batch"] == (
        "A step has 32 samples, which 2 workers divide (`--batch global`): 16 each."
    )


def test_where_workers_pay_the_noise_scale_names_how_many(tmp_path: Path) -> None:
    found = beside_one_worker(tmp_path, 300.0, alone=0.018)
    assert found["recommended"] is None
    assert found["speed"].startswith("1.80× the speed of one worker")
    assert "workers, if each keeps the 16 samples that it has now" in found["noise_scale"]["text"]


def test_a_disturbed_run_is_no_fact_in_a_report(tmp_path: Path) -> None:
    found = beside_one_worker(tmp_path, 300.0, alone=0.0614)
    assert found["recommended"] is None
    assert found["speed"].startswith("not known: one, of one worker, was disturbed")
    assert "6.1" not in json.dumps(found["speed"])
