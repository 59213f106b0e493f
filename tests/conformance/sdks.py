"""AWS's SDKs against a service of this machine, with what a user has: `syrtos serve`, and the variables of `syrtos aws-env`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import environments
import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
SOURCE = SCRIPTS / "source"

_PATIENCE = 240.0  # seconds: a machine may have other tests to run

# Everything that an SDK, a shell and a command line could get wrong on the way to a script.
HYPERPARAMETERS: Mapping[str, Any] = {
    "epochs": 3,
    "batch-size": 64,
    "learning_rate": 0.05,
    "note": 'a b\'s "quoted" $HOME; é',
    "number-as-text": "007",
    "layers": [32, "x y", None],
    "options": {"b": 1, "a": None, "c": [True]},
    "flag": True,
    "nothing": None,
    "empty": "",
    "s": "short",
}


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips tests whose environments are not there."""
    missing = [name for name in names if not environments.ready(name)]
    reason = f"no environment {', '.join(missing)} in {environments.FOLDER.name}: make conformance builds it"
    return pytest.mark.skipif(bool(missing), reason=reason)


@dataclasses.dataclass(frozen=True)
class Ran:
    """How a client's script ended.

    Attributes:
        output: what it printed, errors too.
        answer: what it found out.
    """

    output: str
    answer: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Service:
    """A running service.

    Attributes:
        home: its folder.
        user: the home folder of those who use it.
        variables: all that their programs know of it.
    """

    home: Path
    user: Path
    variables: Mapping[str, str]

    def run(self, environment: str, client: str, /, **facts: Any) -> Ran:
        """Runs one of `scripts` with the Python of an SDK's environment."""
        answer = self.user / "answer.json"
        answer.unlink(missing_ok=True)
        python = environments.FOLDER / environment / "bin" / "python"
        asked = json.dumps({**facts, "answer": str(answer)})
        printed = self.user / "printed.log"
        with printed.open("w") as file:
            command = [python, SCRIPTS / client, asked]
            process = subprocess.Popen(
                command, cwd=self.user, env=dict(self.variables), stdout=file, stderr=file
            )
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output = printed.read_text()
        assert process.returncode == 0, (
            f"{client} ended with {process.returncode}:\n{output}\n{self._logs()}"
        )
        return Ran(output, json.loads(answer.read_text()))

    def _logs(self) -> str:
        """What the youngest job and its runner have said; a client that has failed does not show it."""
        jobs = sorted(self.home.glob("jobs/*"), key=lambda path: path.stat().st_mtime)
        paths = [
            path for job in jobs[-1:] for path in (*job.glob("logs/*.jsonl"), job / "runner.log")
        ]
        paths.append(self.home.parent / "serve.log")
        return "\n".join(f"{path}:\n{path.read_text()[-4000:]}" for path in paths if path.exists())


@contextlib.contextmanager
def serving(
    folder: Path,
    words: Sequence[str] = ("--capacity", "2"),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """A service with two workers, from `syrtos serve` to its end; jobs that a failed test has left end with it.

    Args:
        words: options of `syrtos serve`.
        variables: added to its environment.
    """
    home, user = folder / "syrtos", folder / "user"
    user.mkdir(exist_ok=True)  # where a test is run again
    bare = {"PATH": os.environ["PATH"], "HOME": str(user)}
    own = {**bare, "SYRTOS_HOME": str(home), **(variables or {})}
    said = folder / "serve.log"
    with said.open("w") as file:
        command = [sys.executable, "-m", "syrtos", "serve", "--port", "0", *words]
        process = subprocess.Popen(command, env=own, stderr=file)
    try:
        deadline = time.monotonic() + 120
        while "serving training jobs at http://127.0.0.1:" not in said.read_text():
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        command = [sys.executable, "-m", "syrtos", "aws-env"]
        printed = subprocess.run(
            command, env=own, capture_output=True, text=True, check=True
        ).stdout
        yield Service(home, user, bare | _exported(printed))
    finally:
        _end_jobs(home)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _exported(text: str) -> dict[str, str]:
    """What a shell would know after ``eval``."""
    words = [word for line in text.splitlines() for word in shlex.split(line) if word != "export"]
    return dict(word.split("=", 1) for word in words)


def _end_jobs(home: Path) -> None:
    from syrtos_jobs.client import local
    from syrtos_jobs.store.home import Home

    service = local.service_of(Home(home))
    for record in service.store.active():
        local.stop(service, record.name)


def started_plainly(data: Path, folder: Path, variables: Mapping[str, str]) -> Path:
    """Trains with `syrtos run -n 2` and more environment variables, without any job; the folder that has the model."""
    model = folder / "model"
    model.mkdir()
    arguments = [
        word for name, value in HYPERPARAMETERS.items() for word in (f"--{name}", str(value))
    ]
    command = [
        "run",
        "-n",
        "2",
        "--run-dir",
        str(folder / "run"),
        str(SOURCE / "digits.py"),
        *arguments,
    ]
    places = {"SM_MODEL_DIR": str(model), "SM_CHANNEL_TRAIN": str(data), "SM_CURRENT_HOST": "here"}
    subprocess.run(
        [sys.executable, "-m", "syrtos", *command],
        env={**os.environ, **places, **variables},
        check=True,
        timeout=_PATIENCE,
    )
    return model


def unpacked(archive: str, folder: Path) -> Path:
    """What is in a ``model.tar.gz``."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def same_weights(path: Path, other: Path) -> None:
    """Loads two models, and compares all that they have learnt."""
    import keras
    import numpy as np

    loaded: list[Any] = [keras.saving.load_model(p) for p in (path, other)]
    one, two = (model.get_weights() for model in loaded)
    assert len(one) == len(two) > 0
    for mine, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def steps(description: Mapping[str, Any]) -> list[str]:
    """The secondary statuses of a job, in order; time must not run backwards."""
    transitions = description["SecondaryStatusTransitions"]
    times = [t["StartTime"] for t in transitions]
    assert times == sorted(times)
    assert all(t["EndTime"] == after["StartTime"] for t, after in itertools.pairwise(transitions))
    return [t["Status"] for t in transitions]
