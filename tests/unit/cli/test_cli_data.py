"""`syrtos data`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framing import framed
from syrtos.cli import main
from syrtos.data.bad import Policy
from syrtos.data.loader import Loader, Position
from syrtos.data.proof import SampleLedger
from syrtos.data.sources import Arrays


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYRTOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")


def test_inspect_shows_files_and_balance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, count in enumerate((30, 0, 10)):
        (tmp_path / f"{number}.tfrecord").write_bytes(framed(b"x" * 100) * count)
    assert main(["data", "inspect", str(tmp_path / "*.tfrecord"), "-n", "3", "--batch", "8"]) == 0
    shown = capsys.readouterr().out
    assert "40 in 3 files" in shown
    assert "2.25 (the largest over the mean)" in shown
    assert "██████████  " in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line}
    assert rows["whole"].split()[-3:] == ["0", "30", "125.0%"]
    fewest, most, _ = rows["syrtos.data"].split()[-3:]
    assert int(most) - int(fewest) <= 2


def test_inspect_counts_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0.tfrecord").write_bytes(framed(b"x" * 100)[:-1])
    assert main(["data", "inspect", str(tmp_path / "0.tfrecord")]) == 0
    assert "damaged  1: training fails" in capsys.readouterr().out


def test_inspect_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(tmp_path / "*.csv")]) == 2
    assert "No file matches" in capsys.readouterr().err


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = Loader(Arrays(np.arange(20)), lambda rows: rows, 6, 1, Policy("fail", 0, 20))
    ledger = SampleLedger(str(tmp_path), "numbers", 0, 1)
    ledger.begin(loader.plan(), Position(), 0)
    for chunk in loader.chunks(loader.plan()):
        for share in chunk.shares:
            ledger.add(share)
    ledger.end(Position(1))
    assert main(["data", "verify", str(tmp_path)]) == 0
    assert "0      20       all" in capsys.readouterr().out
    path = next((tmp_path / "data").glob("*.jsonl"))
    path.write_text(path.read_text().replace('"left_out": 0', '"left_out": 3', 1))
    assert main(["data", "verify", str(tmp_path)]) == 2
    assert "chain of hashes breaks" in capsys.readouterr().err
