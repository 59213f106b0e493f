"""The core without the packages beside it: it trains, and does not have their commands."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
SCRIPT = """
import keras
import numpy as np
import syrtos

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0)
print("trained by", syrtos.size())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what is installed here, but of syrtos with its core alone, not installed."""
    folder = tmp_path_factory.mktemp("core") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if "syrtos" not in found.name:
            (site / found.name).symlink_to(found)
    for library in (Path(sys.prefix) / "lib").glob("[!p]*"):  # of the mpich wheel
        (folder / "lib" / library.name).symlink_to(library)
    (site / "syrtos").symlink_to(SRC / "syrtos")
    return folder / "bin" / "python"


def syrtos(python: Path, *words: str, cwd: Path) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python, "-m", "syrtos", *words]
    ended = subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_a_script_trains(python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, text = syrtos(python, "run", "-n", "2", "--oversubscribe", "train.py", cwd=tmp_path)
    assert code == 0, text
    assert "trained by 2" in text


def test_commands_of_other_packages_are_not_there(python: Path, tmp_path: Path) -> None:
    code, text = syrtos(python, "-h", cwd=tmp_path)
    assert code == 0, text
    assert "run a training script" in text
    assert "submit" not in text
    code, text = syrtos(python, "submit", "train.py", cwd=tmp_path)
    assert code == 2
    assert text.startswith("syrtos: there is no command submit")


REFUSED = {
    ("logs", "a-job"): "There is no folder 'a-job'",
    ("run", "--on", "ray", "train.py"): "`--on ray`: there is no such engine",
    ("doctor", "--fix", "train.py"): "No package that is installed has an entry point `keras3`",
    ("tune", "lr", "train.py"): "there is no command tune",
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[0])
def test_what_another_package_does_is_refused_in_a_sentence(
    python: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, text = syrtos(python, *words, cwd=tmp_path)
    assert code == 2, text
    assert text.startswith(f"syrtos: {REFUSED[words]}"), text


def test_names_of_other_packages_are_refused_in_a_sentence(python: Path, tmp_path: Path) -> None:
    for statement in (
        "import syrtos.ray",
        "import syrtos; syrtos.ray",
        "import syrtos; syrtos.Estimator",
    ):
        ended = subprocess.run(
            [python, "-c", statement], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        last = ended.stderr.splitlines()[-1]
        assert "No package that is installed has an entry point" in last
