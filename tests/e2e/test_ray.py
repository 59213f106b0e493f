"""Runs on a real Ray cluster of three nodes, some of which are killed: the results are those of `syrtos run` on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import ray_cluster
from ray_cluster import LONG, RayCluster

import forking
import syrtos

SYRTOS = (sys.executable, "-m", "syrtos")
SCRIPTS = Path(__file__).parents[1] / "faults" / "scripts"
RECOVERING, ELASTIC = SCRIPTS / "recovering.py", SCRIPTS / "elastic.py"
NODES = 3
# Ray gives each worker of one CPU one thread; some of the runs here take their time, so that something can happen to them.
ENV = {"OMP_NUM_THREADS": "1"}
SLOW = {"PACE": "0.2"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(ray_cluster.missing() is not None, reason=str(ray_cluster.missing())),
]


@pytest.fixture(scope="module")
def started() -> Iterator[RayCluster]:
    with ray_cluster.cluster(NODES) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: RayCluster) -> Iterator[RayCluster]:
    """The cluster, complete and free; what a test leaves behind fails it."""
    started.restore(NODES)
    yield started
    started.until_nothing_is_left()
    started.restore(NODES)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the same script on this machine."""
    folder = tmp_path_factory.mktemp("here")
    done = forking.run(
        forking.syrtos_run(folder / "run", NODES, RECOVERING, folder / "out", "arrays"), ENV
    )
    assert done.returncode == 0, done.stderr
    return folder


def start(folder: Path, *words: object, **env: str) -> subprocess.Popen[str]:
    command = (*SYRTOS, "run", "--run-dir", folder / "run", *words)
    return subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, **ENV, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def on(
    cluster: RayCluster,
    folder: Path,
    *words: object,
    workers: int = NODES,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Starts a run on the cluster."""
    return start(
        folder,
        "--on",
        "ray",
        "--with",
        f"address={cluster.address}",
        "-n",
        workers,
        *words,
        **(env or {}),
    )


def training(folder: Path) -> tuple[object, ...]:
    return "--env", "PACE", RECOVERING, folder / "out", "arrays"


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what was printed."""
    try:
        said, _ = process.communicate(timeout=LONG)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, said


def until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONG
    while not done():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps(folder: Path, name: str = "times.txt") -> int:
    """How many steps of training have been made, with those that were made again."""
    times = folder / "out" / name
    return len(times.read_text().splitlines()) if times.exists() else 0


def assert_equal_results(first: Path, second: Path) -> None:
    one, other = (dict(np.load(folder / "out" / "weights.npz")) for folder in (first, second))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.long  # the next test has a result of the cluster too
def test_the_result_is_that_of_this_machine(
    cluster: RayCluster, here: Path, tmp_path: Path
) -> None:
    code, said = ended(on(cluster, tmp_path, *training(tmp_path)))
    assert code == 0, said
    assert_equal_results(here, tmp_path)


def test_a_lost_node_s_worker_runs_on_the_others(
    cluster: RayCluster, here: Path, tmp_path: Path
) -> None:
    run = on(cluster, tmp_path, *training(tmp_path), env=SLOW)
    until(lambda: steps(tmp_path) > 10, run)
    cluster.kill(2)
    until((tmp_path / "run" / "generation-2").exists, run)
    (tmp_path / "out" / "hurry").touch()
    code, said = ended(run)
    assert code == 0, said
    assert "Generation 2 goes on from" in said
    assert "can't be reached: their workers run on the other hosts" in said
    assert_equal_results(here, tmp_path)


@pytest.mark.long  # membership is that of `test_elastic`
def test_an_elastic_run_takes_a_node_that_comes_later(cluster: RayCluster, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    code, said = ended(start(alone, ELASTIC, alone / "out", "arrays"))
    assert code == 0, said
    run = on(cluster, tmp_path, "--min-workers", 2, ELASTIC, tmp_path / "out", "arrays", "0.8")
    until(lambda: steps(tmp_path, "steps.txt") > 5, run)
    cluster.kill(2)
    until(lambda: (tmp_path / "run" / "generation-2" / "logs" / "rank-1.log").exists(), run)
    assert not (tmp_path / "run" / "generation-2" / "logs" / "rank-2.log").exists()
    cluster.add()
    until(lambda: (tmp_path / "run" / "generation-3" / "logs" / "rank-2.log").exists(), run)
    code, said = ended(run)
    assert code == 0, said
    assert "There are slots for 3 workers now, and 2 trained." in said
    assert set((tmp_path / "out" / "steps.txt").read_text().split()) == {"2", "3"}
    assert_equal_results(alone, tmp_path)


def test_a_run_that_has_no_place_says_what_is_missing(cluster: RayCluster, tmp_path: Path) -> None:
    code, said = ended(on(cluster, tmp_path, "--with", "wait=3", "train.py", workers=9))
    assert code == 2
    assert "9 x 1 CPU were asked for, and the cluster has 3 CPU on 3 nodes" in said
    assert "there are too few CPUs, unless an autoscaler starts nodes" in said
    cluster.until_free(NODES)


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    code, said = ended(
        start(
            tmp_path,
            "--on",
            "ray",
            "-n",
            2,
            "--with",
            "address=127.0.0.1:1",
            "train.py",
            RAY_ADDRESS="",
        )
    )
    assert code == 2
    assert "No Ray cluster was found at 127.0.0.1:1" in said


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_nothing_is_left_when_the_launcher_ends(
    cluster: RayCluster, tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import time, syrtos\nsyrtos.init()\nopen(f'{tmp_path}/{{syrtos.rank()}}', 'w').close()\ntime.sleep(900)\n"
    )
    run = on(cluster, tmp_path, script)
    until(lambda: all((tmp_path / str(rank)).exists() for rank in range(NODES)), run)
    run.send_signal(number)
    code, said = ended(run)
    assert code == (-9 if number == signal.SIGKILL else 128 + number), said
    cluster.until_nothing_is_left()
    cluster.until_free(NODES)


def test_ctrl_c_ends_the_wait_for_places(cluster: RayCluster, tmp_path: Path) -> None:
    run = on(cluster, tmp_path, "train.py", workers=9)
    assert run.stdout is not None
    assert "waits for Ray" in run.stdout.readline()
    run.send_signal(signal.SIGINT)
    assert ended(run)[0] == 130
    cluster.until_nothing_is_left()


def test_a_function_is_called_on_workers(cluster: RayCluster, tmp_path: Path) -> None:
    def train(start: float) -> tuple[float, int]:
        import numpy

        import syrtos

        return float(syrtos.allreduce(numpy.full(1, start))[0]), syrtos.size()

    assert syrtos.ray.run(train, (2.0,), workers=NODES, run_dir=tmp_path / "run") == (6.0, NODES)
