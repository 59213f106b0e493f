"""Records with odd contents: each is read without what can't be, and its file is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import curve, epochs, generation, step, write

from syrtos.cli import main
from syrtos.cli.summary import print_summary
from syrtos.report import facts, page, prometheus, text
from syrtos.report.figures import Figures
from syrtos.report.progress import read_progress
from syrtos.report.read import load
from syrtos.run_dir import RunDir

WHOLE = [b"", b"\0\xff\n", b"{", b"[]\n", b"7\n", b"null\n", b"[" * 9999 + b"\n"]
ODD = ("odd", [], {}, None, 1e400, 10**400, float("nan"), -1, True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    sums = {"gradient_bytes": 1e6, "gradient_sums": 2.0, "meetings": 3.0}
    generation(tmp_path, 0.0, 9.0, [[step(number) for number in range(20)]] * 2, sums)
    point = {"time": 1001.0, "fit": 1, "trained": 5, "epoch": 1, "logs": {"loss": 1.0}}
    epochs(tmp_path, [{**point, "epochs": 2, "step": 5, "steps_per_epoch": 5}])
    curve(tmp_path, [{**point, "learning_rate": 0.1}])
    machine = {"number": 0, "cpu": 9.0, "cores": 2, "memory": 1, "memory_total": 2, "read": None, "gpus": []}  # fmt: skip
    sample = {"cpu_seconds": 0.5, "memory": 5, "rank": 0, "machine": machine}
    samples = [{"time": 1000.0 + at, "trained": at, **sample} for at in range(5)]
    write(RunDir(tmp_path).usage(0), samples)
    request = {"program": {"name": "a.py", "arguments": ["--lr", "1"]}, "workers": 2, "options": {"timeout": 3.0}, "versions": {"keras": "3"}}  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps({**request, "sha256": "a", "elastic": None}))
    return tmp_path


def variants(data: bytes, is_object: bool) -> Iterator[bytes]:
    """Other contents of a file: nothing of it, half of it, and members of other types."""
    yield from WHOLE
    yield data[: len(data) // 2]
    lines = [data] if is_object else data.splitlines(keepends=True)
    for at in sorted({0, min(1, len(lines) - 1), len(lines) - 1}):
        whole: dict[str, Any] = json.loads(lines[at])
        odd = [{**whole, name: value} for name in whole for value in ODD]
        without = [{key: whole[key] for key in whole if key != name} for name in whole]
        for line in (*odd, *without):
            yield b"".join([*lines[:at], json.dumps(line).encode() + b"\n", *lines[at + 1 :]])


@pytest.mark.parametrize(
    "name",
    ["run.json", *(f"ledger/{each}" for each in ("launcher.json", "rank-0.jsonl", "epochs.jsonl", "curve.jsonl", "usage-0.jsonl"))],
)  # fmt: skip
def test_a_damaged_file_changes_neither_an_exit_code_nor_is_it_a_traceback(
    run_dir: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = run_dir / name
    for number, data in enumerate(list(variants(path.read_bytes(), name.endswith(".json")))):
        path.write_bytes(data)
        found = facts.of_run(load(run_dir))
        text.report(found)
        page.page([found], None, False)
        print_summary(run_dir)
        assert "no summary" not in capsys.readouterr().err, data
        assert read_progress(run_dir).describe_running()
        # drawing its table takes longer than all of the rest
        form = ["--json"] if number % 8 else []
        assert main(["forecast", str(run_dir), *form]) in (0, 2)
        assert prometheus.families({"a": Figures(run_dir)})
    path.write_bytes(b"\0\xff\n")
    assert any(str(path) in sentence for sentence in load(run_dir).missing)


def test_what_keras_does_not_know_is_no_damage(run_dir: Path) -> None:
    line = {"time": 1.0, "fit": 1, "trained": 5, "epoch": 1, "epochs": 2, "steps_per_epoch": None}
    epochs(run_dir, [line])
    assert load(run_dir).missing == []


def test_what_is_lost_is_not_known_where_no_launcher_could_write(run_dir: Path) -> None:
    generation(run_dir / "generation-2", 9.0, 12.0, [[step(number) for number in range(5)]])
    assert facts.of_run(load(run_dir))["goodput"] < 1
    RunDir(run_dir).launcher.unlink()
    found = facts.of_run(load(run_dir))
    assert found["goodput"] is None
    text.report(found)
    page.page([found], None, False)


def test_absent_workers_are_named_whatever_their_number(run_dir: Path) -> None:
    for workers, says in ((3, "The ledgers of rank 2 "), (10**400, "ranks 2, 3, 4, 5, 6, 7, 8, 9, ... ")):  # fmt: skip
        (run_dir / "run.json").write_text(json.dumps({"workers": workers}))
        (sentence,) = load(run_dir).missing
        assert says in sentence
