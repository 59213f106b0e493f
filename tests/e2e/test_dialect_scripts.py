"""Scripts of old APIs under `syrtos run`: what they may expect, and what wrong ones are told."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import registry

import forking
from named_checks import CheckedRun
from syrtos.report.summary import summarize

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).parent / "scripts" / "dialect_checks.py")


SERVERS = str(Path(__file__).parent / "scripts" / "server_checks.py")
KERAS_2 = str(Path(__file__).parent / "scripts" / "keras2_checks.py")
ESTIMATOR = str(Path(__file__).parent / "scripts" / "estimator_checks.py")
DOCUMENTS = str(Path(__file__).parent / "scripts" / "documents.py")


CHECKS_OF_SERVERS = (
    "every_sample_once",
    "adapted",
    "callbacks",
    "set_between",
    "tables",
    "another_strategy",
)
PACE, TOGETHER = ("--ps", "2"), ("--ps", "1", "--staleness", "0")


@dataclasses.dataclass(frozen=True)
class Group:
    """Checks that one world runs.

    Attributes:
        script: that has them as functions.
        names: of the checks, in order.
        flags: of `syrtos run`.
        env: variables of the run.
    """

    script: str
    names: Sequence[str]
    flags: Sequence[str] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)


LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
GROUPS = {
    "horovod": Group(
        SCRIPT,
        ("before_init", "basics", "initialized_twice", "explained", "errors_of_tensorflow", "in_graphs", "one_evaluates", "draws_apart", "uneven"),
    ),
    "horovod, late": Group(SCRIPT, ("late",)),
    "horovod, seeded": Group(SCRIPT, ("seeded",)),
    "horovod, models": Group(SCRIPT, ("synchronized_batchnorm", "local_variables", "keras_2_spellings", "loads", "diverged")),
    "horovod of Keras 2": Group(KERAS_2, ("unshaped", "table_among_weights", "corrects_momentum", "computes", "computes_elsewhere", "accumulates"), env=LEGACY),
    # what of it is the same under Keras 3
    "horovod of Keras 2 on Keras 3": Group(KERAS_2, ("unshaped", "corrects_momentum", "computes", "computes_elsewhere")),
    "estimator": Group(
        ESTIMATOR,
        (
            "predicts", "predicts_from_a_folder_of_its_own",
            "exports", "listens", "stops_at_nan", "ends_with_data", "keras_model", "unnamed_layers", "own_optimizer", "sum_of_losses",
            "computes_what_one_process_computes", "step_is_an_assignment", "refuses_training_of_keras", "roles", "draws_by_given_seeds",
            "draws_and_statistics_are_of_the_batch", "many_metrics", "sparse_features",
            "exchanges_in_several_conditions", "conditions_of_tensorflow_1",
        ),
    ),
    "servers": Group(SERVERS, ("horovod", "strategy_and_fit", "data_of_unknown_length", *CHECKS_OF_SERVERS), PACE),
    "servers, together": Group(SERVERS, ("horovod", "together_only", *CHECKS_OF_SERVERS), TOGETHER),
    "no servers": Group(SERVERS, ("no_servers",)),
    "servers of Keras 2": Group(SERVERS, ("strategy_and_fit", "data_of_unknown_length", *CHECKS_OF_SERVERS, "unfit_optimizers"), PACE, LEGACY),
    "servers of Keras 2, together": Group(SERVERS, (*CHECKS_OF_SERVERS, "unfit_optimizers"), TOGETHER, LEGACY),
}  # fmt: skip
GROUPS |= {
    "documents, SMDDP": Group(DOCUMENTS, ("plain_fit", "mirrored_fit", "estimator_of_keras")),
    "documents, Horovod": Group(DOCUMENTS, ("horovod_fit", "horovod_records", "horovod_loop")),
    "documents, GPUs": Group(
        DOCUMENTS, ("multi_gpu_model", "steps_of_a_strategy", "distributed_data_into_fit")
    ),
    "documents, hosts": Group(DOCUMENTS, ("workers_of_tf_config", "no_tpu")),
}
QUICK = ("horovod", "horovod, models")
LONG = (
    "horovod of Keras 2 on Keras 3",
    "servers of Keras 2",
    "servers, together",
    "servers of Keras 2, together",
)


def run(
    folder: Path, checks: str, *flags: str, script: str = SCRIPT
) -> subprocess.CompletedProcess[str]:
    return forking.run(forking.syrtos_run(folder / "run", 2, script, checks, folder, flags=flags))


@pytest.fixture(scope="module")
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], CheckedRun]:
    """The run of a group, which is made once, with the checks that are asked for."""

    @functools.cache
    def run_group(name: str) -> CheckedRun:
        group, folder = GROUPS[name], tmp_path_factory.mktemp("group")
        names = registry.chosen(request, "test_scripts_of_old_apis", group=name)
        words = forking.syrtos_run(
            folder / "run", 2, group.script, ",".join(names), folder, flags=group.flags
        )
        return CheckedRun(forking.run(words, group.env), names)

    return run_group


def _marks(group: str) -> Sequence[pytest.MarkDecorator]:
    return () if group in QUICK else (pytest.mark.long,) if group in LONG else (pytest.mark.slow,)


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(group, name, marks=_marks(group))
        for group in GROUPS
        for name in GROUPS[group].names
    ],
)
def test_scripts_of_old_apis(checked: Callable[[str], CheckedRun], group: str, name: str) -> None:
    checked(group).check(name)


@pytest.mark.needs("tensorflow")
def test_two_dialects_that_both_reduce_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "mixed")
    assert done.returncode == 1
    assert "both would reduce the gradients" in done.stderr


@pytest.mark.needs("tensorflow")
def test_flags_for_scripts_without_workers_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "basics", "--scale-lr", "linear")
    assert done.returncode == 1
    assert "--scale-lr can't be obeyed" in done.stderr


@pytest.mark.slow
def test_a_run_that_died_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    first = run(tmp_path, "resumes")
    assert first.returncode == 1
    assert "a worker dies" in first.stderr
    second = run(tmp_path, "resumes")
    assert second.returncode == 0, second.stderr[-4000:]
    assert "begins at 4" in second.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "accuracy"),
    [
        ("horovod_fit", 0.85),
        pytest.param("horovod_loop", 0.85, marks=pytest.mark.long),
        pytest.param("smddp_loop", 0.85, marks=pytest.mark.long),
        pytest.param("mirrored", 0.8, marks=pytest.mark.long),
        pytest.param("multi_worker_mirrored", 0.8, marks=pytest.mark.long),
        pytest.param("multi_gpu", 0.8, marks=pytest.mark.long),
        pytest.param("parameter_server", 0.8, marks=pytest.mark.long),
        ("estimator", 0.85),
    ],
)
def test_the_examples(tmp_path: Path, name: str, accuracy: float) -> None:
    flags = ["--ps", "1"] if name == "parameter_server" else []
    script = str(ROOT / "examples" / "dialects" / f"{name}.py")
    done = forking.run(forking.syrtos_run(tmp_path, 2, script, flags=flags))
    assert done.returncode == 0, done.stderr[-4000:]
    assert float(done.stdout.split("test accuracy: ")[-1].split()[0]) > accuracy
    summary = summarize(tmp_path)
    assert summary.workers == 2
    assert summary.steps >= 50
    assert summary.shares["compute"] > 0
    assert summary.training_seconds > 0


@pytest.mark.needs("tensorflow")
def test_a_strategy_in_a_world_of_one(tmp_path: Path) -> None:
    script = tmp_path / "mirrored.py"
    script.write_text(
        "import keras, numpy as np, tensorflow as tf\n"
        "with tf.distribute.MirroredStrategy().scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('adam', 'mse')\n"
        "model.fit(np.ones((6, 2)), np.ones(6), verbose=0)\n"
        "print('updates', int(model.optimizer.iterations))\n"
    )
    done = forking.run(forking.syrtos_run(tmp_path / "run", 1, script))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "updates 1" in done.stdout


@pytest.mark.slow
def test_a_horovod_script_alone(tmp_path: Path) -> None:
    """One worker, as Horovod's scripts run under plain Python where it is installed."""
    script = str(ROOT / "examples" / "dialects" / "horovod_loop.py")
    alone = subprocess.run(
        [sys.executable, "-m", "syrtos", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
    )
    assert alone.returncode == 0, alone.stderr[-4000:]
    assert "test accuracy: 0." in alone.stdout
    plain = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=200, check=False
    )
    assert "No module named 'horovod'" in plain.stderr


@pytest.mark.needs("tensorflow")
def test_horovod_run_calls_a_function_on_new_workers(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import horovod, syrtos.errors\n"
        "def train(a, b):\n"
        "    import horovod.tensorflow as hvd\n"
        "    hvd.init()\n"
        "    return [hvd.rank(), hvd.size(), a + b]\n"
        "if __name__ == '__main__':\n"
        "    print(horovod.run(train, args=(1,), kwargs={'b': 2}, hosts='localhost:2', use_mpi=True, verbose=2))\n"
        "    for wrong in ({'hosts': 'elsewhere:2'}, {'min_np': 1}, {'num_proc': 3, 'hosts': 'localhost:2'}):\n"
        "        try:\n"
        "            horovod.run(train, args=(1, 2), **wrong)\n"
        "        except syrtos.errors.ConfigurationError:\n"
        "            pass\n"
        "        else:\n"
        "            print('not refused', wrong)\n"
    )
    command = [sys.executable, "-m", "syrtos", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.stdout == "[[0, 2, 3], [1, 2, 3]]\n", done.stderr[-3000:]


@pytest.mark.slow
def test_a_script_of_tensorflow_1_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(
        "import tensorflow as tf\n"
        "import tensorflow.compat.v1 as tf1\n"
        "assert tf1 is tf.compat.v1 and tf1.estimator.Estimator is tf.estimator.Estimator\n"
        "assert tf1.layers.dense and not hasattr(tf, 'ConfigProto') and not hasattr(tf, 'nonsense')\n"
        "for call in (lambda: tf.train.AdamOptimizer(0.1), lambda: tf.layers.dense, lambda: tf.contrib.slim):\n"
        "    try:\n"
        "        call()\n"
        "    except AttributeError as error:\n"
        "        print(error)\n"
        "tf.Session()\n"
    )
    command = [sys.executable, "-m", "syrtos", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    for name in ("tf.train.AdamOptimizer", "tf.layers", "tf.contrib"):
        assert f"`{name}` belongs to TensorFlow 1" in done.stdout, done.stderr[-3000:]
    assert "GoneError: `tf.Session` belongs to TensorFlow 1" in done.stderr
    assert "model.fit" in done.stderr


def test_an_installed_original_is_served_elsewhere_only(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("original = True\n")
    script = tmp_path / "which.py"
    script.write_text(
        "import horovod\nprint('original' if hasattr(horovod, 'original') else 'served')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [
        str(BIN / "syrtos"),
        "run",
        "-n",
        "1",
        "--run-dir",
        str(tmp_path / "run"),
        str(script),
    ]
    ours = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=env
    )
    plain = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=env,
    )
    assert ours.stdout.startswith("served")
    assert plain.stdout.startswith("original")


def test_the_hook_costs_little() -> None:
    code = (
        "import syrtos.launch.worker.import_hook, time; t = time.process_time(); "
        "import syrtos.dialects; syrtos.dialects.install(); print(time.process_time() - t)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert float(done.stdout) < 0.05


@pytest.mark.needs("tensorflow")
def test_estimators_by_import_statements_and_no_tpus(tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text(
        "import importlib\n"
        "import tensorflow as tf\n"
        "from tensorflow.estimator import Estimator, TrainSpec\n"
        "import tensorflow.compat.v1.estimator as of_v1\n"
        "from tensorflow.estimator.export import ServingInputReceiver\n"
        "assert Estimator is tf.estimator.Estimator is of_v1.Estimator and TrainSpec is tf.estimator.TrainSpec\n"
        "assert ServingInputReceiver is tf.estimator.export.ServingInputReceiver\n"
        "assert importlib.import_module('tensorflow.estimator.experimental')\n"
        "try:\n"
        "    tf.distribute.cluster_resolver.TPUClusterResolver(tpu='')\n"
        "except ValueError as error:\n"
        "    assert 'KERAS_BACKEND=jax' in str(error)\n"
        "    print(tf.distribute.MirroredStrategy().num_replicas_in_sync)\n"
    )
    done = forking.run(forking.syrtos_run(tmp_path / "run", 2, script))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "2"


@pytest.mark.needs("tensorflow")
@pytest.mark.needs("tf_keras")
def test_graphs_of_keras_2_are_refused_with_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "graphs.py"
    script.write_text(
        "import tensorflow as tf\n"
        "tf.compat.v1.disable_eager_execution()\n"
        "import tf_keras\n"
        "model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])\n"
        "model.compile('sgd', 'mse')\n"
    )
    done = forking.run(
        forking.syrtos_run(tmp_path / "run", 2, script), {"TF_USE_LEGACY_KERAS": "1"}
    )
    assert done.returncode != 0
    assert "Remove `tf.compat.v1.disable_eager_execution()`" in done.stderr
