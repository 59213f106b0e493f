"""A real Slurm: its allocations, batch jobs, preemption and the way back into the queue."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pauses
import pytest
import slurm

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]
RUN = [str(pauses.SYRTOS), "run"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.cluster(nodes=3) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_left(cluster: slurm.Slurm) -> Iterator[None]:
    """A test that fails leaves no job for the next, or for its own second try."""
    yield
    if cluster.jobs():
        cluster.cancel()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pauses.undisturbed(3, tmp_path_factory.mktemp("undisturbed"))


def start(cluster: slurm.Slurm, folder: Path, *command: str) -> subprocess.Popen[str]:
    env = {**os.environ, "SLURM_CONF": str(cluster.folder / "slurm.conf")}
    return subprocess.Popen(
        [*command], env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def on_slurm(cluster: slurm.Slurm, folder: Path, *options: str) -> subprocess.Popen[str]:
    words = [
        "--on",
        "slurm",
        "-n",
        "3",
        "--with",
        "ntasks-per-node=1",
        "--run-dir",
        "run",
        *options,
    ]
    return start(cluster, folder, *RUN, *words, str(pauses.SCRIPT), ".")


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=600)[0]


def output_of_requeued(
    cluster: slurm.Slurm, folder: Path, job: str, run: subprocess.Popen[str]
) -> str:
    """What a run has printed whose job goes back into the queue and then to its end."""
    pauses.wait_for(lambda: cluster.fact(job, "Restarts") == "1")
    (folder / "go").touch()
    cluster.begin_now(job)
    said = output_of(run)
    assert run.returncode == 0, said
    assert "the same run was stopped" in said
    return said


def pids_of_agents(node: str) -> list[int]:
    """The processes of `srun` that have started an agent on a node."""
    done = subprocess.run(
        ["pgrep", "-f", f"srun --unbuffered .* -w {node} "],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(pid) for pid in done.stdout.split()]


@pytest.mark.long  # `test_recovery_on_hosts` loses a host in the middle of a run
def test_an_allocation_whose_node_is_lost(
    cluster: slurm.Slurm, tmp_path: Path, expected: str
) -> None:
    run = start(
        cluster, tmp_path, "salloc", "-N3", "-n3", *RUN, "--run-dir", "run", str(pauses.SCRIPT), "."
    )
    pauses.wait_for((tmp_path / "reached").exists)
    for pid in pids_of_agents("n3"):
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    said = output_of(run)
    assert run.returncode == 0, said
    assert "3 workers on n1, n2, n3" in said
    assert "Generation 2 goes on from step " in said
    assert pauses.weights_of(said) == expected


@pytest.mark.long  # it ends and is requeued as one that is preempted
def test_a_batch_job_before_its_time_limit_goes_back_into_the_queue(
    cluster: slurm.Slurm, tmp_path: Path, expected: str
) -> None:
    run = on_slurm(cluster, tmp_path)
    pauses.wait_for((tmp_path / "reached").exists)
    (job,) = cluster.jobs()
    cluster.signal(job, "USR1")  # as --signal has it sent
    said = output_of_requeued(cluster, tmp_path, job, run)
    assert said.count("epoch 1\n") == 1
    assert pauses.weights_of(said) == expected


def test_a_job_that_is_more_urgent_preempts(
    cluster: slurm.Slurm, tmp_path: Path, expected: str
) -> None:
    run = on_slurm(cluster, tmp_path)
    pauses.wait_for((tmp_path / "reached").exists)
    (job,) = cluster.jobs()
    urgent = cluster.srun(["--partition=urgent", "-N3", "--exclusive", "true"], timeout=300)
    assert urgent.returncode == 0, urgent.stderr
    said = output_of_requeued(cluster, tmp_path, job, run)
    assert pauses.weights_of(said) == expected


def test_a_job_that_is_put_back_into_the_queue(
    cluster: slurm.Slurm, tmp_path: Path, expected: str
) -> None:
    """By `scontrol requeue`, which sends SIGTERM to all of its processes, and SIGKILL soon after."""
    run = on_slurm(cluster, tmp_path)
    pauses.wait_for((tmp_path / "reached").exists)
    (job,) = cluster.jobs()
    cluster.requeue(job)
    said = output_of_requeued(cluster, tmp_path, job, run)
    # Its last snapshot is of a step that depends on how long steps and snapshots take.
    assert "goes on from step " in said
    assert pauses.weights_of(said) == expected


def test_detached(cluster: slurm.Slurm, tmp_path: Path) -> None:
    submitted = on_slurm(cluster, tmp_path, "--detach")
    assert "run" in output_of(submitted)
    pauses.wait_for((tmp_path / "reached").exists)
    assert "Running: epoch " in output_of(
        start(cluster, tmp_path, str(pauses.SYRTOS), "status", "run")
    )
    assert "epoch 3\n" in output_of(start(cluster, tmp_path, str(pauses.SYRTOS), "logs", "run"))
    output_of(start(cluster, tmp_path, str(pauses.SYRTOS), "stop", "run"))
    said = output_of(start(cluster, tmp_path, str(pauses.SYRTOS), "logs", "-f", "run"))
    assert "`syrtos resume" in said
    state = start(cluster, tmp_path, str(pauses.SYRTOS), "status", "run")
    assert "Its state is saved" in output_of(state)
    assert state.returncode == 75


@pytest.mark.long  # `test_detached` follows a job, unit tests the logs of several
def test_an_array_is_followed(cluster: slurm.Slurm, tmp_path: Path) -> None:
    script = tmp_path / "task.py"
    script.write_text(
        'import os, syrtos\nsyrtos.init()\nprint("task", os.environ["SLURM_ARRAY_TASK_ID"])\n'
    )
    words = ("--on", "slurm", "-n", "2", "--with", "array=0-2", "--run-dir", "run", str(script))
    run = start(cluster, tmp_path, *RUN, *words)
    said = output_of(run)
    assert run.returncode == 0, said
    for task in range(3):
        assert f"{task} | task {task}\n" in said
        assert (tmp_path / "run" / str(task) / "run.json").is_file()


def test_what_slurm_refuses(cluster: slurm.Slurm, tmp_path: Path) -> None:
    refused = on_slurm(cluster, tmp_path, "--with", "partition=nowhere")
    assert "Slurm refuses the job: " in output_of(refused)
    assert refused.returncode == 2
