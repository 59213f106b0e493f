"""The nodes of an allocation, the batch script of a run, and what becomes of its job."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from syrtos.engines.engine import EngineRequest, RunState
from syrtos.engines.slurm import allocation, batch, submitted_job
from syrtos.errors import ConfigurationError
from syrtos.launch.spec import Host

WANTED = EngineRequest(
    workers=8,
    gpus=1,
    run_dir=Path("/shared/run 1"),
    words=("--track", "mlflow", "train.py", "--epochs", "3"),
    values={"time": "2:00:00", "partition": "gpu"},
    python="/env/bin/python",
    folder=Path("/home/me"),
)
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "names_of", lambda nodes: ["n1", "n2", "n3"])


def counts(env: dict[str, str], workers: int | None = None) -> list[int]:
    return [host.slots for host in allocation.hosts_of(JOB | env, workers) or ()]


def test_nodes_of_an_allocation() -> None:
    assert allocation.hosts_of({}, None) is None
    assert allocation.hosts_of(JOB, None) == (Host("n1", 1), Host("n2", 1), Host("n3", 1))
    assert counts({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}) == [2, 2, 1]
    assert counts({"SLURM_GPUS_ON_NODE": "4"}) == [4, 4, 4]
    assert counts({}, 2) == [1, 1, 1]
    assert counts({}, 10) == [4, 4, 2]
    with pytest.raises(ConfigurationError, match="the allocation has 10 processors on 3 nodes"):
        counts({}, 11)


def test_batch_script(pytestconfig: pytest.Config) -> None:
    golden = pytestconfig.rootpath / "tests" / "golden" / "slurm.sh"
    assert batch.script(WANTED) == golden.read_text()


def test_an_array_has_a_run_directory_for_each_task() -> None:
    text = batch.script(
        dataclasses.replace(
            WANTED, values={"array": "0-3", "signal": "USR2@60", "setup": "module load x"}
        )
    )
    assert """--run-dir '/shared/run 1'/"$SLURM_ARRAY_TASK_ID" --track""" in text
    assert """scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}\"""" in text
    assert "#SBATCH --signal=B:USR2@60" in text
    assert "kill -USR1 $launcher' USR2" in text
    assert "\nmodule load x\n" in text


def test_unknown_values_are_named() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"`--with tme=\.\.\.` means nothing to slurm\. Did you mean `time`\?",
    ):
        batch.script(dataclasses.replace(WANTED, values={"tme": "1"}))


RUNS, WAITS, FAILS = (
    RunState("running"),
    RunState("waiting"),
    RunState("failed", "job 1_2 ended", 3),
)


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ([RunState("finished", code=0), RUNS, FAILS], RUNS),
        ([WAITS, FAILS], WAITS),
        ([RunState("finished", code=0), RunState("stopped", code=75), FAILS], FAILS),
        ([RunState("finished", code=0)] * 2, RunState("finished", code=0)),
    ],
)
def test_the_state_of_an_array(states: list[RunState], together: RunState) -> None:
    assert submitted_job.combine(states) == together


def test_the_output_of_an_array(tmp_path: Path) -> None:
    for task, text in ((0, "a\nb\n"), (10, "d\nhalf"), (2, "c\n")):
        (tmp_path / f"slurm-7_{task}.log").write_text(text)
    job = submitted_job.SubmittedJob("7", tmp_path, is_array=True)
    assert b"".join(job.output(follow=False)) == b"0 | a\n0 | b\n2 | c\n10 | d\n10 | half\n"


def _commands(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Puts commands of Slurm on the path that fail with a text, as where no controller answers."""
    for name in ("scontrol", "scancel"):
        (folder / name).write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_where_slurm_does_not_answer_the_recorded_end_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commands(tmp_path, monkeypatch, "slurm_load_jobs error: Unable to contact slurm controller")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with pytest.raises(ConfigurationError, match=r"Slurm does not answer, .*Unable to contact"):
        submitted_job.SubmittedJob("7", run_dir).state()
    with pytest.raises(ConfigurationError, match="Slurm does not answer"):
        submitted_job.SubmittedJob("7", run_dir).stop()
    with pytest.raises(ConfigurationError, match="No signal was sent: `scancel 7` says: "):
        submitted_job.SubmittedJob("7", run_dir).stop(at_once=True)
    (run_dir / "run.json").write_text('{"end": ["FINISHED", 0]}')
    assert submitted_job.SubmittedJob("7", run_dir).state() == RunState("finished", code=0)
