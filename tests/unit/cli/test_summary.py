"""The one screen at the end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from syrtos.cli.failure import print_failure
from syrtos.cli.summary import print_summary, print_table
from syrtos.launch.outcome import End, Outcome
from syrtos.report import facts
from syrtos.report.read import load
from syrtos.run_dir import RunDir

WORKERS: dict[int, dict[str, Any]] = {0: {"host": "a", "pid": 10}, 1: {"host": "b", "pid": 101}}


def train(run_dir: Path, rank: int, waited: float, **line: Any) -> None:
    path = RunDir(run_dir).ledger(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    step = {
        "phase": "train",
        "steps": 1,
        "samples": 8.0,
        "wall": 1.0,
        "wait": waited,
        "compute": 1.0 - waited,
    } | line
    path.write_text(f"{json.dumps(step)}\n" * 1500)


def failure_screen(
    outcome: Outcome,
    capsys: pytest.CaptureFixture[str],
    run_dir: Path = Path("/runs/1"),
    has_hosts: bool = False,
) -> str:
    print_failure(outcome, run_dir, has_hosts)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_run_adds_up_on_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, 0, waited=1.0)
    train(tmp_path, 1, waited=0.0)
    print_summary(tmp_path)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0].split() == ["workers", "2"]
    assert lines[1].split()[:5] == ["speed", "not", "measured,", "at", "most"]
    assert lines[2].split()[:3] == ["time", "1,500.0", "s,"]
    assert lines[3].startswith("steps") and "1,500 (median" in lines[3]  # noqa: PT018
    assert lines[3].rstrip().endswith(", 16 samples/s")
    assert any(line.startswith("spent on") and "waiting 50%" in line for line in lines)
    assert any(
        line.startswith("slowest") and "rank 1: the others wait for it" in line for line in lines
    )
    assert lines[-1] == f"run directory: {tmp_path}"


ODD_LINES = [
    b"\0\xff\xfe", b"[]", b"3", b"{}", b'{"phase": 3, "wall": 1}', b'{"phase": "train", "steps": 1}', b'{"phase": "train", "wall": "long"}',
    b'{"phase": "train", "wall": 1, "steps": []}', b'{"phase": "train", "wall": NaN}', b'{"phase": "facts", "began": "now"}',
    b'{"phase": "facts", "imported": 3}', b'{"phase": "facts", "trained": {}}', b"[" * 9999,
]  # fmt: skip


@pytest.mark.parametrize("line", ODD_LINES)
def test_a_line_that_no_worker_writes_is_left_out_and_its_file_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    for rank in (0, 1):
        train(tmp_path, rank, waited=0.0)
    path = RunDir(tmp_path).ledger(1)
    path.write_bytes(path.read_bytes() + line + b"\n")
    print_summary(tmp_path)
    said = capsys.readouterr().err
    assert f"{path} is damaged: the summary is without what can't be read." in said
    assert "1,500 (median" in said
    report = load(tmp_path)
    assert any(f"1 line of {path} can't be read" in sentence for sentence in report.missing)
    facts.of_run(report)


@pytest.mark.parametrize(
    "text",
    ["", "\0\xff", "{", "[]", "7", '{"began": "now", "ended": 3.0}', '{"began": 1.0, "ended": []}', '{"outcome": 4}', "[" * 9999],
)  # fmt: skip
def test_what_a_launcher_has_not_written_is_left_out_and_its_file_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    train(tmp_path, 0, waited=0.0)
    RunDir(tmp_path).launcher.write_text(text)
    print_summary(tmp_path)
    said = capsys.readouterr().err
    assert f"{RunDir(tmp_path).launcher} is damaged" in said
    assert "1,500 (median" in said
    report = load(tmp_path)
    assert any(str(RunDir(tmp_path).launcher) in sentence for sentence in report.missing)
    facts.of_run(report)


@pytest.mark.parametrize("name", ["rank-x.jsonl", "rank-1.jsonl"])
def test_other_files_among_ledgers_change_no_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    train(tmp_path, 0, waited=0.0)
    (tmp_path / "ledger" / name).mkdir()
    print_summary(tmp_path)
    assert "1,500 (median" in capsys.readouterr().err


def test_no_kind_of_record_changes_how_a_run_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 0, waited=0.0)
    path = RunDir(tmp_path).ledger(0)
    path.write_text('{"phase": "facts", "input": ["of no known kind"]}\n' + path.read_text())
    print_summary(tmp_path, full=True)
    assert f"no summary, as the record in {tmp_path} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("full", [False, True])
def test_the_short_form_has_ten_lines_and_each_advice_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], full: bool
) -> None:
    """All that a usual run of ten seconds can have: a measured speed, an advice, busy cores and a slow worker."""
    facts = {"input": "sliced", "update": "compiled"}
    kinds = dict.fromkeys(("input", "update", "exchange", "callbacks", "rest"), 0.001)
    for rank, waited in ((0, 0.0065), (1, 0.0)):
        train(tmp_path / "two", rank, waited, wall=0.03, compute=0.025 - waited, **kinds)
        with RunDir(tmp_path / "two").ledger(rank).open("a") as file:
            file.write(json.dumps({"phase": "facts", **facts}) + "\n")
    train(tmp_path / "one", 0, 0.0, wall=0.02, compute=0.02, samples=16.0)
    request = {"sha256": "1", "program": {"name": "train.py"}, "options": {"batch": "global"}}
    for name in ("one", "two"):
        (tmp_path / name / "run.json").write_text(json.dumps(request))
        print_summary(tmp_path / name, full)
        screen = capsys.readouterr().err
    lines = [line.rstrip() for line in screen.splitlines()]
    assert (len(lines) <= 10) is not full, screen
    assert screen.count("larger batch") == 1
    assert screen.count("`-n 1`") == 1
    assert (
        "recommended: one worker was 1.5× as fast (one). Use `-n 1`, or a larger batch." in screen
    )
    assert (
        " ".join(lines[1].split())
        == "speed 0.67× the speed of one worker (median 20.0 ms a step in one)"
    )
    assert ("each worker reads and prepares all records" in screen) is full
    assert ("compiled by XLA" in screen) is full
    assert ("█" in screen) is full


def test_a_short_training_that_gains_nothing_is_told_so_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ranks in (("one", 1), ("two", 2)):
        for rank in range(ranks):
            train(tmp_path / name, rank, 0.0, wall=0.001 * ranks, compute=0.001 * ranks)
        request = {"sha256": "1", "options": {"batch": "global"}}
        (tmp_path / name / "run.json").write_text(json.dumps(request))
        print_summary(tmp_path / name)
    assert "recommended: Use `-n 1`, or a larger batch.\n" in capsys.readouterr().err


def test_a_loop_of_the_scripts_own_has_a_rate_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 0, waited=0.0, phase="loop", samples=0.0)
    print_summary(tmp_path, full=True)
    screen = capsys.readouterr().err
    assert "1,500 updates of the script's own loop" in screen
    assert "1.0 from the first update to the last" in screen
    assert "samples/s" not in screen


def test_a_run_that_only_evaluates_has_no_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 0, waited=0.0, phase="test")
    print_summary(tmp_path)
    screen = capsys.readouterr().err
    assert "evaluation" in screen
    assert not re.search("steps|samples", screen)


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({"hosts": 2}, True),
        ({}, False),
        ({"hosts": 2, "compress": "bf16"}, False),
        ({"hosts": 2, "sync_every": 32}, False),
    ],
)
def test_hosts_that_wait_for_their_network_are_told_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], is_told: bool
) -> None:
    train(tmp_path, 0, waited=0.2, exchange=0.3, compute=0.5)
    with RunDir(tmp_path).ledger(0).open("a") as file:
        file.write(json.dumps({"phase": "facts", **facts}) + "\n")
    print_summary(tmp_path)
    screen = capsys.readouterr().err
    told = "exchanging gradients between 2 hosts takes 50% of training. `--compress bf16` sends half the bytes: training should be 1.3× as fast."
    assert (f"recommended: {told}" in screen) is is_told


@pytest.mark.parametrize(
    ("update", "facts", "is_told"),
    [
        (0.2, {"optimizer_state": 6e8}, True),
        (0.05, {"optimizer_state": 6e8}, False),
        (0.2, {"optimizer_state": 0}, False),
        (0.2, {"optimizer_state": 6e8, "hosts": 2}, False),
        (
            0.2,
            {"optimizer_state": 6e8, "gradient_bytes": 3e8},
            False,
        ),  # gathering would cost what is saved
    ],
)
def test_a_run_that_spends_its_time_in_updates_is_told_what_helps(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    update: float,
    facts: dict[str, Any],
    is_told: bool,
) -> None:
    for rank in range(2):
        train(tmp_path, rank, waited=0.0, update=update, compute=1 - update)
    with RunDir(tmp_path).ledger(0).open("a") as file:
        file.write(json.dumps({"phase": "facts", **facts}) + "\n")
    print_summary(tmp_path)
    screen = capsys.readouterr().err
    advice = "recommended: the optimizer's update takes 20% of training. `--shard-update` divides it among the workers"
    assert (advice in screen) is is_told
    assert (
        "each of which keeps 300 of 600 MB of the optimizer's state: training should be 11% faster"
        in screen
    ) is is_told


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            {"compress": "bf16", "sync_every": 32, "asked_to_sync_every": 32},
            "changes of weights as bf16, every 32 steps",
        ),
        ({"compress": "bf16"}, "gradients as bf16"),
        ({"asked_to_sync_every": 32}, "the script has called none"),
        (
            {
                "asked_to_shard_update": True,
                "update": "compiled",
                "state_kept": 3e8,
                "state_whole": 6e8,
            },
            "compiled by XLA, sharded: a worker keeps 300 of 600 MB",
        ),
        ({"asked_to_shard_update": True}, "on every worker: no optimizer of the script"),
    ],
)
def test_what_is_sent_and_updated_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], says: str
) -> None:
    train(tmp_path, 0, waited=0.2)
    train(tmp_path, 1, waited=0.2)
    with RunDir(tmp_path).ledger(0).open("a") as file:
        file.write(json.dumps({"phase": "facts", **facts}) + "\n")
    print_summary(tmp_path, full=True)
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        ({}, "`dataset.prefetch"),
        ({"input": "sliced"}, "`dataset.prefetch"),  # of one worker
        ({"input": "planned"}, "`parse_fn` cheaper"),
    ],
)
def test_training_that_waits_for_data_is_told_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, str], advice: str
) -> None:
    train(tmp_path, 0, waited=0.0, input=0.25, compute=0.75)
    with RunDir(tmp_path).ledger(0).open("a") as file:
        file.write(json.dumps({"phase": "facts", **facts}) + "\n")
        file.write(json.dumps({"phase": "script", "wall": 4000.0, "rest": 4000.0}) + "\n")
    print_summary(tmp_path)
    screen = capsys.readouterr().err
    assert "recommended: input takes 25% of training." in screen
    assert advice in screen


def test_a_run_that_failed_shows_what_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 0, waited=0.0)
    print_table(tmp_path)
    assert "1,500 (median" in capsys.readouterr().err


def test_generations_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1,500 steps of 1 s, of which 500 are computed again; 20 s before and 10 s after."""
    train(tmp_path, 0, waited=0.0)
    train(tmp_path / "generation-2", 0, waited=0.0)
    for folder, began in ((tmp_path, 0.0), (tmp_path / "generation-2", 1510.0)):
        with RunDir(folder).ledger(0).open("r+") as file:
            lines = file.read()
            file.seek(0)
            facts = {"phase": "facts", "began": began, **({"trained": 1000} if began else {})}
            file.write(
                json.dumps(facts)
                + "\n"
                + json.dumps({"phase": "script", "wall": 20.0, "rest": 20.0})
                + "\n"
            )
            file.write(lines)
        RunDir(folder).launcher.write_text(
            json.dumps({"began": began, "ended": began + 1530.0 - (20.0 if began else 0)})
        )
    print_summary(tmp_path)
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().err.splitlines()}
    assert lines["time"][0] == "3,050.0"
    assert lines["steps"][0] == "2,500"
    assert (
        " ".join(lines["restarts"])
        == "1: 30.0 s until training went on, 500 steps again in 500.0 s"
    )
    assert lines["goodput"][0] == "82.6%"
    newest = tmp_path / "generation-3" / "ledger"
    newest.mkdir(parents=True)
    (newest / "launcher.json").write_text(json.dumps({"began": 3100.0, "ended": 3101.0}))
    (newest / "rank-0.jsonl").write_text(json.dumps({"phase": "facts", "began": 3100.0}) + "\n")
    print_summary(tmp_path)
    assert "the run ended before training went on" in capsys.readouterr().err
    RunDir(tmp_path).launcher.unlink()
    print_summary(tmp_path)
    said = capsys.readouterr().err
    assert "what they cost could not be recorded" in said
    assert "goodput" not in said


def test_without_training_only_the_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(tmp_path)
    assert capsys.readouterr().err == f"run directory: {tmp_path}\n"


def test_the_first_failure_is_shown_with_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    failures = [
        {"rank": 1, "host": "b", "text": "ValueError: x\n"},
        {"rank": 0, "host": "a", "text": "later"},
    ]
    screen = failure_screen(Outcome(End.FAILED, 1, failures=failures, workers=WORKERS), capsys)
    assert "rank 1 on b failed first:\n\nValueError: x\n" in screen
    assert "/runs/1/logs/rank-1.log" in screen
    assert "later" not in screen


def leave_failure(run_dir: Path, rank: int, time: float) -> None:
    (run_dir / "logs").mkdir(exist_ok=True)
    facts = {
        "rank": rank,
        "host": "b",
        "text": f"ValueError: by rank {rank}\n",
        "code": 1,
        "time": time,
    }
    (run_dir / "logs" / f"rank-{rank}.failure").write_text(json.dumps(facts))


def test_failures_whose_events_were_lost_are_read_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_failure(tmp_path, 0, time=20.0)
    leave_failure(tmp_path, 1, time=10.0)
    screen = failure_screen(Outcome(End.LOST, 1, workers=WORKERS), capsys, tmp_path)
    assert "rank 1 on b failed first:\n\nValueError: by rank 1\n" in screen
    assert f"{tmp_path}/logs/rank-1.log" in screen
    assert "by rank 0" not in screen


def test_what_the_launcher_heard_goes_before_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_failure(tmp_path, 0, time=10.0)
    heard = [{"rank": 1, "host": "b", "text": "OSError: heard"}]
    screen = failure_screen(
        Outcome(End.FAILED, 1, failures=heard, workers=WORKERS), capsys, tmp_path
    )
    assert "rank 1 on b failed first:\n\nOSError: heard\n" in screen
    assert "by rank 0" not in screen


@pytest.mark.parametrize(
    ("code", "name"), [(130, "SIGINT (signal 2)"), (143, "SIGTERM (signal 15)")]
)
def test_a_stopped_run_is_no_failure_of_a_worker(
    capsys: pytest.CaptureFixture[str], code: int, name: str
) -> None:
    failures = [{"rank": 0, "text": "KeyboardInterrupt"}]
    screen = failure_screen(Outcome(End.STOPPED, code, failures=failures, workers=WORKERS), capsys)
    assert screen == f"\nsyrtos: stopped by {name}. Run directory: /runs/1\n"


def test_a_killed_worker_is_named_by_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    screen = failure_screen(Outcome(End.CRASHED, 137, 1, -9, workers=WORKERS), capsys)
    assert (
        "rank 1 on b ended first: its process (number 101) was ended by SIGKILL (signal 9)."
        in screen
    )
    assert "out of memory" in screen
    assert "/runs/1/logs/rank-1.log" in screen


@pytest.mark.parametrize("code", [0, 3])
def test_a_worker_that_vanished_is_named(capsys: pytest.CaptureFixture[str], code: int) -> None:
    outcome = Outcome(End.LOST, code or 1, 0, code, unfinished=(0, 1), workers=WORKERS)
    screen = failure_screen(outcome, capsys)
    assert (
        f"rank 0 on a ended first: its process (number 10) ended with exit code {code} before its script"
        in screen
    )
    assert "os._exit" in screen
    assert "/runs/1/logs/rank-0.log" in screen


def test_a_failed_check_of_a_library_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    check = "F0000 00:00:1 1 tensor.cc:1] Check failed: dtype() == expected_dtype (1 vs. 3)"
    (tmp_path / "logs" / "rank-1.log").write_text(
        f"Epoch 1\n{check}\nFatal Python error: Aborted\n\nmore\n"
    )
    screen = failure_screen(Outcome(End.CRASHED, 134, 1, -6, workers=WORKERS), capsys, tmp_path)
    assert (
        f"SIGABRT (signal 6).\n  {check}\n  Fatal Python error: Aborted\nIts output is in" in screen
    )
    assert "out of memory" not in screen


def test_workers_that_ended_silently_are_all_named(capsys: pytest.CaptureFixture[str]) -> None:
    screen = failure_screen(
        Outcome(End.LOST, 1, None, 0, unfinished=(0, 1), workers=WORKERS), capsys
    )
    assert "one of the ranks 0, 1 ended with exit code 0 before its script" in screen
    assert "/runs/1/logs\n" in screen


def test_workers_that_never_started_show_how_hosts_are_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = Outcome(End.NOT_STARTED, 255, 0, why="could not be started")
    assert "--hosts" not in failure_screen(outcome, capsys)
    screen = failure_screen(outcome, capsys, has_hosts=True)
    assert "could not be started" in screen
    assert "rank 0 could not be started" in screen
    assert "reachable by `ssh NAME true`" in screen
