"""`syrtos run`: what is typed is what is planned."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from syrtos import cli
from syrtos.cli.run_request import RunRequest
from syrtos.settings import OPTIONS_VARIABLE, Options, options_from

DryRun = Callable[..., tuple[list[str], Options]]


@pytest.fixture
def dry_run(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> DryRun:
    """Plans ``syrtos run OPTIONS train.py ARGUMENTS``; the command that would be run, and the options it carries."""
    monkeypatch.chdir(script.parent)

    def plan(options: str = "", arguments: str = "") -> tuple[list[str], Options]:
        words = ["run", "--dry-run", *options.split(), "train.py", *arguments.split()]
        assert cli.main(words) == 0
        printed = capsys.readouterr().out.replace(" \\\n", " ")
        words = shlex.split(printed, comments=True)
        at = max(
            index for index, word in enumerate(words) if word.startswith(f"{OPTIONS_VARIABLE}=")
        )
        return words[at + 1 :], options_from({OPTIONS_VARIABLE: words[at].partition("=")[2]})

    return plan


@pytest.mark.parametrize(
    ("typed", "printed"), [((), "1 process, "), (("-n", "3", "--oversubscribe"), "3 processes, ")]
)
def test_one_worker_unless_asked(
    script: Path, typed: tuple[str, ...], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "--dry-run", *typed, str(script)]) == 0
    assert capsys.readouterr().out.startswith(f"# {printed}")


@pytest.mark.parametrize("asked", ["short", "full"])
def test_the_summary_that_is_asked_for(
    script: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[RunRequest] = []

    def execute(request: RunRequest, *_: object, **__: object) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr("syrtos.cli.run.execute", execute)
    assert cli.main(["run", "--summary", asked, str(script)]) == 0
    assert [request.full_summary for request in requests] == [asked == "full"]
    assert not requests[0].any_batches


def test_options_have_their_defaults(dry_run: DryRun) -> None:
    _, options = dry_run()
    assert Options(run_dir=options.run_dir) == options


def test_a_dry_run_leaves_nothing_behind(dry_run: DryRun, script: Path) -> None:
    _, options = dry_run()
    assert list(script.parent.iterdir()) == [script]
    assert Path(options.run_dir).is_absolute()
    assert Path(options.run_dir).parent == script.parent / "runs"


def test_every_training_option_travels(dry_run: DryRun, tmp_path: Path) -> None:
    typed = (
        "--batch per-worker --sync-batchnorm --scale-lr sqrt --warmup-epochs 5 --check-every 7 --timeout 8.5 "
        "--bucket-mb 9.5 --exchange mpi --on-nan stop --run-dir somewhere"
    )
    _, options = dry_run(typed)
    where = str(tmp_path / "somewhere")
    assert options == Options(
        batch="per-worker", sync_batchnorm=True, scale_lr="sqrt", warmup_epochs=5, check_every=7, timeout=8.5,
        bucket_mb=9.5, exchange="mpi", on_nan="stop", run_dir=where,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        "--epochs 3",
        "-n 9 --hosts x:1",
        "--dry-run --run-dir elsewhere",
        "fit --help -h",
        "--version",
    ],
)
def test_the_scripts_arguments_are_its_own(dry_run: DryRun, arguments: str) -> None:
    command, options = dry_run("-n 1", arguments)
    words = arguments.split()
    assert command[-len(words) - 1 :] == [command[-len(words) - 1], *words]
    assert command[-len(words) - 1].endswith("train.py")
    assert "elsewhere" not in options.run_dir


@pytest.mark.parametrize("arguments", ["--host 0.0.0.0", "--b 3", "--s 1"])
def test_the_scripts_arguments_are_no_abbreviations_of_ours(
    dry_run: DryRun, arguments: str
) -> None:
    command, _ = dry_run("-n 1", arguments)
    assert command[-2:] == arguments.split()


def test_a_number_of_workers_after_a_script_that_reads_arguments_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nassert sys.argv[1:] == ['-n', '2']\n")
    for words, told in (
        ([str(script), "-n", "2"], True),
        (["-n", "1", str(script), "-n", "2"], False),
    ):
        assert cli.main(["run", "--run-dir", str(tmp_path / "run"), *words]) == 0
        says = f"`-n` after the script goes to the script, so this run has one worker. For more write `syrtos run -n 2 {script}`."
        assert (says in capfd.readouterr().err) == told


def test_a_number_of_workers_after_a_script_without_arguments_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("print('it ran')\n")
    command = ["run", "--run-dir", str(tmp_path / "run"), str(tmp_path / "train.py"), "-n", "2"]
    assert cli.main(command) == 2
    assert f"`syrtos run -n 2 {tmp_path / 'train.py'}`" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
    # a module beside the script reads them
    (tmp_path / "helper.py").write_text("from argparse import ArgumentParser\n")
    assert cli.main(command) == 0


def test_the_scripts_double_dash_is_its_own(dry_run: DryRun) -> None:
    command, _ = dry_run("-n 1", "-- --x")
    assert command[-2:] == ["--", "--x"]


@pytest.mark.parametrize(
    ("typed", "processes"),
    [
        ("--hosts a:2,b:3", "2 on a, 3 on b"),
        ("--hosts a:2,b:3 -n 4", "2 on a, 2 on b"),
        ("--hostfile hosts", "2 on a, 3 on b"),
    ],
)
def test_hosts_fill_their_slots_unless_asked(
    typed: str,
    processes: str,
    script: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(script.parent)
    Path("hosts").write_text("a slots=2\nb slots=3\n")
    assert cli.main(["run", "--dry-run", *typed.split(), "--ssh", "/opt/rsh", str(script)]) == 0
    printed = capsys.readouterr().out
    assert (
        ", ".join(" on ".join(pair) for pair in re.findall(r"# (\d+) processes on (\w),", printed))
        == processes
    )
    assert "/opt/rsh a " in printed


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("-n 0 train.py", "`-n` must be 1 or more workers"),
        ("-n 99999 train.py", "99999 workers were asked for.*--oversubscribe"),
        ("trian.py", "There is no script trian.py"),
        ("--hosts a:x train.py", "A host is written"),
        ("--hosts a:2 -n 3 train.py", "the hosts have 2 slots"),
        ("--hostfile nowhere train.py", "nowhere can't be read"),
        ("--timeout 0 train.py", "`timeout` must be more than 0"),
        ("--warmup-epochs -1 train.py", "`warmup_epochs` must be 0 or more"),
    ],
)
@pytest.mark.usefixtures("dry_run")
def test_mistakes_are_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], typed: str, message: str
) -> None:
    assert cli.main(["run", *typed.split()]) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err)
    assert captured.out == ""
    assert captured.err.startswith("syrtos: ")
    assert captured.err.count("\n") == 1
