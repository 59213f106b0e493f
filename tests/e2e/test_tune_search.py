"""`syrtos tune SEARCH.yaml` as a person uses it: to its end, through Ctrl-C, a kill and mistakes, and beside a service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from syrtos_jobs.client import local
from syrtos_jobs.store.home import Home

TRIAL = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--units", type=int)
parser.add_argument("--pause", type=float)
given = parser.parse_args()
for epoch in range(3):
    print(f"9/9 - 0s - loss: {1 / (epoch + 1):.4f} - val_accuracy: {1 - given.lr * given.units:.4f}", flush=True)
    time.sleep(given.pause)
"""
SEARCH = """
entry_point: trial.py
hyperparameters: {pause: %s}
objective: {maximize: val_accuracy}
strategy: random
parameters:
  lr: {min: 1e-4, max: 1e-2}
  units: [8, 16]
jobs: %d
parallel: 2
seed: 4
"""


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "SYRTOS_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "syrtos", *words],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def done(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def search(folder: Path, pause: float = 0.0, jobs: int = 3, script: str = TRIAL) -> None:
    (folder / "trial.py").write_text(script)
    (folder / "search.yaml").write_text(SEARCH % (pause, jobs))


def until_said(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"{words} was not said")


def processes_of(folder: Path) -> str:
    return subprocess.run(
        ["pgrep", "-fa", str(folder)], capture_output=True, text=True, check=False
    ).stdout


def test_a_search_and_the_same_again(tmp_path: Path) -> None:
    search(tmp_path, script="import beside; open('k.txt')\n" + TRIAL)
    for name in ("beside.py", "k.txt"):
        (tmp_path / name).touch()  # they travel with the script
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == 0, out + err
    assert len(re.findall(r"trial \d of 3: val_accuracy 0\.\d+, lr=\S+, units=\d+", err)) == 3
    values = [float(line.split()[2]) for line in out.splitlines()[1:4]]
    assert values == sorted(values, reverse=True)
    best = re.search(r"train with them:  syrtos submit (\S+)", out)
    assert best
    job = yaml.safe_load((tmp_path / best[1]).read_text())
    assert 1 - job["hyperparameters"]["lr"] * job["hyperparameters"]["units"] == pytest.approx(
        values[0], abs=1e-4
    )
    assert f"best: trial {out.splitlines()[1].split()[0]}, val_accuracy {values[0]:.6g}" in out

    again, same, err = done(command(tmp_path, "tune", "search.yaml"))
    assert (again, same) == (0, out)
    assert "has finished before" in err
    assert "trial 1" not in err


@pytest.mark.slow
def test_ctrl_c_ends_the_trials_and_the_same_command_goes_on(tmp_path: Path) -> None:
    search(tmp_path, pause=0.7, jobs=4)
    process = command(tmp_path, "tune", "search.yaml")
    until_said(process, "trial 1 of 4")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, out, err = done(process)
    assert code == 130
    assert "goes on with the trials that have finished" in err
    assert time.monotonic() - began < 15 * max(
        1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))
    )
    assert processes_of(tmp_path) == ""
    finished = [line.split()[2] for line in out.splitlines() if "Completed" in line]
    assert 1 <= len(finished) < 4

    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == 0, err
    assert "goes on with the trials that have finished" in err
    rows = [line.split() for line in out.splitlines() if "Completed" in line]
    assert sorted(row[0] for row in rows) == ["1", "2", "3", "4"]
    assert {*finished} <= {row[2] for row in rows}
    assert len({row[3] for row in rows}) == 4


@pytest.mark.slow
def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    search(tmp_path, pause=0.3, jobs=4)
    process = command(tmp_path, "tune", "search.yaml")
    until_said(process, "trial 1 of 4")
    process.kill()
    process.communicate()
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == 0, err
    assert "is going on" in err
    assert out.count("Completed") == 4
    assert processes_of(tmp_path) == ""


@pytest.mark.slow
def test_beside_a_service_the_search_outlives_the_command(tmp_path: Path) -> None:
    search(tmp_path, pause=0.7, jobs=4)
    server = command(tmp_path, "serve", "--port", "0", "--capacity", "2")
    try:
        until_said(server, "serving training jobs")
        process = command(tmp_path, "tune", "search.yaml")
        until_said(process, "trial 1 of 4")
        process.send_signal(signal.SIGINT)
        code, _, err = done(process)
        assert code == 130
        name = re.search(r"(\S+) goes on in the service", err)
        assert name
        stopped, _, _ = done(command(tmp_path, "stop", name[1]))
        assert stopped == 0
        service, deadline = local.service_of(Home(tmp_path / "home")), time.monotonic() + 60
        while (record := service.tunings.get(name[1])) and not record.final:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert record is not None
        assert record.status == "Stopped"
        assert not any(trial.active for trial in local.trials(service, name[1]))
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("results", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_search_whose_next_trial_can_not_be_created_keeps_its_results(
    tmp_path: Path, results: bool
) -> None:
    """The second trial finds its data, and removes it: the third can't be created."""
    data, began = tmp_path / "data", tmp_path / ".began"
    data.mkdir()
    (data / "x").touch()
    removing = f"""
import os, shutil, sys
if os.path.exists({str(began)!r}): shutil.rmtree({str(data)!r}, ignore_errors=True)
open({str(began)!r}, "a").close()
if not {results} and not os.path.exists({str(tmp_path / ".again")!r}): sys.exit("no result")
"""
    search(tmp_path, script=removing + TRIAL)
    path = tmp_path / "search.yaml"
    path.write_text(path.read_text().replace("parallel: 2", "parallel: 1\ninputs: {train: data}"))
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == (0 if results else 1), out + err
    assert "Trial 3 could not be created" in err
    assert "no file or folder" in err
    assert results or re.search(
        r"Command \"trial.py\" `syrtos logs search-\w+-00\d-\w+` shows its output", err
    ), err
    finished = [line.split()[2] for line in out.splitlines() if "Completed" in line]
    assert len(finished) == 2 * results
    assert ("ended before all trials were begun" if results else "failed. Trial 3") in err

    began.unlink()
    (tmp_path / ".again").touch()
    data.mkdir()
    (data / "x").touch()
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert "goes on with the trials that have finished" in err
    after = [line.split()[2] for line in out.splitlines() if "Completed" in line]
    assert (code, len(after)) == (0, 3 if results else 2), out + err
    assert {*finished} <= {*after}


@pytest.mark.slow
def test_a_metric_that_no_trial_prints(tmp_path: Path) -> None:
    search(tmp_path, jobs=2, script=TRIAL.replace("val_accuracy", "accuracy"))
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == 1
    assert "No training job printed the metric val_accuracy (printed: loss, accuracy)" in err


def test_a_mistake_is_explained_before_anything_runs(tmp_path: Path) -> None:
    search(tmp_path)
    (tmp_path / "trial.py").unlink()
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == 2
    assert "no script" in err
    (tmp_path / "search.yaml").write_text(SEARCH.replace("random", "annealing") % (0, 3))
    code, out, err = done(command(tmp_path, "tune", "search.yaml"))
    assert code == 2
    assert "`strategy` is random, grid, bayesian, hyperband" in err
    assert "Traceback" not in err
