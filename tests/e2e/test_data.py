"""Planned data sets in real worlds: the same training with any number of workers, through deaths, bad records and uneven files."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import registry

import forking
from framing import framed
from named_checks import CheckedRun
from syrtos.data.proof import verify

SCRIPTS = Path(__file__).parent / "scripts"
ROWS = np.random.default_rng(0).normal(size=(61, 4)).astype(np.float32)


def example(row: np.ndarray) -> bytes:
    import tensorflow as tf

    features = {"x": row.tolist(), "y": [float(row.sum())]}
    lists = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        for name, values in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def write(folder: Path, *counts: int) -> Path:
    """Files with so many records each."""
    folder.mkdir(parents=True, exist_ok=True)
    records = iter([framed(example(row)) for row in ROWS])
    for number, count in enumerate(counts):
        (folder / f"{number}.tfrecord").write_bytes(b"".join(next(records) for _ in range(count)))
    return folder


def run(
    folder: Path,
    size: int,
    *words: object,
    script: str = "data.py",
    flags: Sequence[str] = (),
    run_dir: Path | None = None,
    backend: str = "tensorflow",
) -> subprocess.CompletedProcess[str]:
    """The script under `syrtos run`."""
    command = forking.syrtos_run(
        run_dir or folder / f"run-{size}", size, SCRIPTS / script, *words, flags=flags
    )
    return forking.run(command, {} if backend == "tensorflow" else {"KERAS_BACKEND": backend})


def result(folder: Path, size: int, mode: str, backend: str = "tensorflow") -> dict[str, Any]:
    done = run(folder, size, mode, folder, backend=backend)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "result.json").read_text())


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for mine, theirs in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)
    for when in ("history", "again"):
        for name, values in one[when].items():
            np.testing.assert_allclose(values, other[when][name], rtol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        ("tensorflow", "planned"),
        pytest.param("tensorflow", "pipeline", marks=pytest.mark.long),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [("tensorflow", "steps"), ("tensorflow", "bad"), ("jax", "bad")]
        ),
    ],
)
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param((20, 0, 30, 11), id="uneven files"),
        pytest.param((2,), id="fewer records than workers", marks=pytest.mark.long),
    ],
)
def test_as_one_worker(tmp_path: Path, backend: str, mode: str, counts: Sequence[int]) -> None:
    folder = write(tmp_path, *counts)
    if mode == "bad" and sum(counts) > 2:
        damage(folder / "2.tfrecord")
    expected = result(folder, 1, mode, backend)
    assert_same(expected, result(folder, 3, mode, backend))
    if mode != "pipeline":
        epochs = verify(folder / "run-3")
        assert all(epoch.complete for epoch in epochs[:2])
        assert epochs[0].left_out == (1 if mode == "bad" and sum(counts) > 2 else 0)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[30] ^= 1  # inside the first record
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "first", "dies", "second"),
    [
        ("tensorflow", 2, (13, 1), 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("tensorflow", 1, (20, 0), 3),
                *((name, 3, (13, 1), 2) for name in ("tensorflow", "jax", "torch")),
            ]
        ),
    ],
)
def test_a_killed_run_goes_on_with_the_next_batch(
    tmp_path: Path, backend: str, first: int, dies: tuple[int, int], second: int
) -> None:
    expected = result(write(tmp_path / "whole", 20, 0, 30, 11), 2, "planned", backend)
    folder, run_dir = write(tmp_path / "killed", 20, 0, 30, 11), tmp_path / "killed" / "run"
    died = run(folder, first, "resumed", folder, *dies, run_dir=run_dir, backend=backend)
    assert died.returncode != 0
    again = run(folder, second, "resumed", folder, run_dir=run_dir, backend=backend)
    assert again.returncode == 0, again.stderr[-4000:]
    found = json.loads((folder / "result.json").read_text())
    for mine, theirs in zip(expected["weights"], found["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)
    epochs = verify(run_dir)
    assert [epoch.complete for epoch in epochs] == [True] * 5
    assert tuple(dict.fromkeys((first, second))) in [epoch.workers for epoch in epochs]


BAD = "a_batch_of_bad_records"
CHECKS = (
    BAD, "several_steps_at_once", "counted_steps", "each_model_begins_at_the_beginning", "stopped_in_the_middle", "budget_counts_records_once", "errors",
)  # fmt: skip


@pytest.fixture(scope="module")
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., CheckedRun]:
    """The run of the checks that are asked for on so many workers of a backend, which is made once."""

    @functools.cache
    def run_checks(backend: str, size: int) -> CheckedRun:
        folder = tmp_path_factory.mktemp("checks")
        names = registry.chosen(request, "test_checks", backend=backend, size=size)
        return CheckedRun(
            run(folder, size, ",".join(names), folder, script="data_checks.py", backend=backend),
            names,
        )

    return run_checks


@pytest.mark.parametrize(
    ("backend", "size", "name"),
    [
        pytest.param(
            backend,
            size,
            name,
            marks=pytest.mark.slow if (backend, size) == ("tensorflow", 2) else pytest.mark.long,
        )
        for size in (2, 1)
        for backend, names in {"tensorflow": CHECKS, "jax": (BAD,), "torch": (BAD,)}.items()
        for name in names
    ],
)
def test_checks(checked: Callable[..., CheckedRun], backend: str, size: int, name: str) -> None:
    checked(backend, size).check(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags"), [("asynchronous", ("--ps", "1")), ("horovod", ())])
def test_checks_of_other_ways_to_train(tmp_path: Path, name: str, flags: Sequence[str]) -> None:
    CheckedRun(
        run(tmp_path, 2, name, tmp_path, script="data_checks.py", flags=flags), [name]
    ).check_all()


@pytest.mark.needs("tensorflow")
def test_bad_records_end_the_run_with_their_place(tmp_path: Path) -> None:
    folder = write(tmp_path, 20, 30)
    damage(folder / "1.tfrecord")
    done = run(folder, 2, "planned", folder)
    assert done.returncode == 1
    assert "1.tfrecord, offset" in done.stderr
    assert "its checksum (CRC32C) is wrong" in done.stderr


@pytest.mark.slow
def test_bad_records_that_were_left_out_are_in_the_summary(tmp_path: Path) -> None:
    folder = write(tmp_path, 20, 30)
    damage(folder / "1.tfrecord")
    done = run(folder, 2, "bad", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "1 bad records were skipped" in done.stderr
    assert "1.tfrecord, offset" in done.stderr
