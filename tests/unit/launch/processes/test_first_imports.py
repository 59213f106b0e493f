"""What a script's text says of its imports, and of the variables that it sets before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.launch.processes.first_imports import FirstImports, first_imports
from syrtos.launch.program import Program

NOTHING = FirstImports((), (), {})


def found(
    folder: Path, text: str, env: dict[str, str] | None = None, **program: object
) -> FirstImports:
    (folder / "train.py").write_text(text)
    return first_imports(Program(str(folder / "train.py"), **program), env or {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "frameworks"),
    [
        ("import keras", ("keras",)),
        ("import tensorflow as tf", ("tensorflow",)),
        ("import tensorflow as tf\nmodel = tf.keras.Model()", ("tensorflow", "keras")),
        ("from tensorflow import keras", ("tensorflow", "keras")),
        ("from tensorflow.keras.layers import Dense", ("tensorflow", "keras")),
        ("import tf_keras", ("tf_keras",)),
        ("import horovod.tensorflow.keras as hvd", ("tensorflow", "keras")),
        ("import horovod.torch as hvd", ("torch",)),
        ("import torch\nimport keras", ("torch", "keras")),
        ("try:\n    import keras\nexcept ImportError:\n    pass", ("keras",)),
        ("def main():\n    import keras", ("keras",)),
    ],
)
def test_frameworks(tmp_path: Path, text: str, frameworks: tuple[str, ...]) -> None:
    imports = found(tmp_path, text)
    assert imports.frameworks == frameworks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(1)",
        "import numpy",
        "if False:\n    pass",
        "import kerasx",
        "from . import keras",
        "def",
    ],
)
def test_nothing_to_import(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == NOTHING


def test_libraries_that_take_long(tmp_path: Path) -> None:
    imports = found(
        tmp_path,
        "import keras, wandb\nfrom sklearn.datasets import load_digits\nimport pandas as pd",
    )
    assert imports.libraries == ("sklearn.datasets", "pandas")


def test_the_keras_of_tensorflow_may_be_the_old_one(tmp_path: Path) -> None:
    text = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tensorflow as tf\ntf.keras.Model()"
    imports = found(tmp_path, text)
    assert imports.frameworks == ("tensorflow", "tf_keras")
    assert imports.variables == {"TF_USE_LEGACY_KERAS": "1"}


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", {"KERAS_BACKEND": "jax"}),
        ("environ['XLA_FLAGS'] = '--x'", {"XLA_FLAGS": "--x"}),
        ("os.environ.setdefault('KERAS_BACKEND', 'jax')", {"KERAS_BACKEND": "torch"}),
        ("os.environ.setdefault('CUDA_VISIBLE_DEVICES', '')", {"CUDA_VISIBLE_DEVICES": ""}),
        ("os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')", {"TF_CPP_MIN_LOG_LEVEL": "2"}),
        ("os.environ['WANDB_MODE'] = 'offline'", {}),
        ("os.environ['UNKNOWN'] = 'x'", {"UNKNOWN": "x"}),
        ("os.environ['MKL_NUM_THREADS'] = '1'", {"MKL_NUM_THREADS": "1"}),
        ("os.environ['WANDB_NAME'] = f'{os.getpid()}'", {}),
        ("del os.environ['WANDB_MODE']", {}),
        ("os.environ.get('KERAS_BACKEND'); os.environ['HOME']; dict(os.environ)", {}),
    ],
)
def test_variables(tmp_path: Path, line: str, variables: dict[str, str]) -> None:
    imports = found(
        tmp_path,
        f"import os\nfrom os import environ\n{line}\nimport keras",
        {"KERAS_BACKEND": "torch"},
    )
    assert imports.variables == variables


@pytest.mark.parametrize(
    "text",
    [
        "import os, sys\nos.environ['KERAS_BACKEND'] = sys.argv[1]\nimport keras",
        "import os, sys\nos.environ[sys.argv[1]] = 'jax'\nimport keras",
        "import os\nif True:\n    os.environ['KERAS_BACKEND'] = 'jax'\nimport keras",
        "import os\nos.environ.update(KERAS_BACKEND='jax')\nimport keras",
        "import os\nos.environ.pop('TF_XLA_FLAGS')\nimport keras",
        "import os\ndel os.environ['TF_XLA_FLAGS']\nimport keras",
        "import os\nos.putenv('KERAS_BACKEND', 'jax')\nimport keras",
        "from dotenv import load_dotenv\nload_dotenv()\nimport keras",
        "import os\nimport tensorflow\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras",
        "import os\ndef f():\n    os.environ['XLA_FLAGS'] += '--x'\nimport keras",
    ],
)
def test_what_can_not_be_known_is_left_to_the_workers(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == NOTHING


def test_files_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "__init__.py").write_text(
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport model"
    )
    (tmp_path / "model.py").write_text("import settings\nimport keras")
    assert found(tmp_path, "import settings") == FirstImports(
        ("keras",), (), {"KERAS_BACKEND": "jax"}
    )


def test_a_process_that_is_watched_from_its_start_is_not_forked(tmp_path: Path) -> None:
    assert found(tmp_path, "import keras", {"COVERAGE_PROCESS_START": "/x"}) == NOTHING
    assert found(tmp_path, "import keras", flags=("-O",)) == NOTHING
    assert found(tmp_path, "import keras", is_module=True) == NOTHING
