"""`syrtos data`."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from framing import framed
from syrtos.cli import main
from syrtos.data.bad_records import BadRecords
from syrtos.data.loader import Loader, Position
from syrtos.data.proof import SampleLedger
from syrtos.data.sources import Arrays


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYRTOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")


def test_inspect_shows_files_and_balance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, count in enumerate((30, 0, 10)):
        (tmp_path / f"{number}.tfrecord").write_bytes(framed(b"x" * 100) * count)
    assert main(["data", "inspect", str(tmp_path / "*.tfrecord"), "-n", "3", "--batch", "8"]) == 0
    shown = capsys.readouterr().out
    assert "40 in 3 files" in shown
    assert "2.25 (largest / mean)" in shown
    assert "██████████  " in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line}
    assert rows["whole"].split()[-3:] == ["0", "30", "125.0%"]
    fewest, most, _ = rows["syrtos.data"].split()[-3:]
    # Of each of the five batches a worker has the rows that it has of any: 3, 3 and 2.
    assert (int(fewest), int(most)) == (10, 15)


def test_inspect_counts_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0.tfrecord").write_bytes(framed(b"x" * 100)[:-1])
    assert main(["data", "inspect", str(tmp_path / "0.tfrecord")]) == 0
    assert "damaged  1: training fails" in capsys.readouterr().out


def test_inspect_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(tmp_path / "*.csv")]) == 2
    assert "No file matches" in capsys.readouterr().err


def inspected(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["data", "inspect", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_inspect_takes_the_paths_that_a_shell_has_expanded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x.csv", "y.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n3,4\n")
    code, out, _ = inspected(capsys, tmp_path / "x.csv", tmp_path / "y.csv")
    assert code == 0
    assert "4 in 2 files" in out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("notes.md", b"hello\nworld\n", "is no TFRecord file, and its name tells no other format"),
        (
            "model.bin",
            bytes(range(256)) * 20,
            "is no TFRecord file, and its name tells no other format",
        ),
        ("packed", gzip.compress(b"hello\nworld\n", mtime=0), "is no TFRecord file"),
        (
            "numbers.csv",
            bytes(range(128, 256)) * 20,
            "is no CSV file: its first line must be UTF-8 text",
        ),
        ("empty.csv", b"", "has no records"),
        ("header.csv", b"a,b\n", "has no records"),
        ("x.parquet", b"hello", "is no Parquet file"),
    ],
)
def test_inspect_of_a_file_that_is_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    code, _, errors = inspected(capsys, tmp_path / name)
    assert code == 2
    assert errors.startswith(f"syrtos: {tmp_path / name} {said}"), errors


def test_inspect_of_files_of_several_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    (tmp_path / "y.jsonl").write_text("{}\n")
    code, _, errors = inspected(capsys, tmp_path)
    assert code == 2
    assert "several formats" in errors
    assert f"{tmp_path / 'x.csv'} (CSV)" in errors


def test_inspect_of_an_image_beside_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cat.png").write_bytes(b"...")
    (tmp_path / "README.txt").write_bytes(b"cats")
    monkeypatch.chdir(tmp_path)
    code, out, _ = inspected(capsys, "cat.png", "README.txt")
    assert code == 0
    assert "1 in 1 classes" in out


@pytest.mark.parametrize("arguments", [("-n", "0"), ("--batch", "0"), ("-n", "-1")])
def test_inspect_for_no_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        inspected(capsys, tmp_path, *arguments)
    assert ended.value.code == 2
    assert "must be 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_verify_of_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["data", "verify", str(tmp_path / name)]) == 2
    assert (
        f"syrtos: {tmp_path / name} is no folder. Expected the directory of a run"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("damage", ["not json\n", "[1]\n", "{}\n", '{"from"\n'])
def test_verify_of_a_damaged_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "samples-x-rank-0.jsonl").write_text(damage)
    assert main(["data", "verify", str(tmp_path)]) == 2
    assert "line 1: the line, or one before it, is not what was written" in capsys.readouterr().err


def test_verify_of_workers_that_were_killed_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "samples-x-rank-0.jsonl").write_text('{"from"')
    assert main(["data", "verify", str(tmp_path)]) == 0
    assert "no record was trained on twice" in capsys.readouterr().out


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = Loader(Arrays(np.arange(20)), lambda rows: rows, 6, 1, BadRecords("fail", 0, 20))
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
