"""`syrtos submit` as a person uses it: a script, a YAML file, Ctrl-C; with namespaces, without, and as a user who is not root."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from syrtos.cli import main
from syrtos_jobs.runner import enter
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Store, columns

TRAIN = """
import argparse, os
import keras, numpy as np
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
keras.utils.set_random_seed(0)
rows = np.loadtxt(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "rows.csv"), delimiter=",", dtype="float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(rows[:, :-1], rows[:, -1], batch_size=32, epochs=epochs, verbose=2)
model.save(os.path.join(os.environ["SM_MODEL_DIR"], "model.keras"))
"""
FACTS = """
import os, socket
import syrtos
syrtos.init()
model = os.environ["SM_MODEL_DIR"]
print("facts", socket.gethostname(), model, syrtos.rank(), syrtos.size(), syrtos.node_rank(), os.environ["SM_CURRENT_HOST"])
open(f"{model}/{syrtos.rank()}", "w").close()
"""


def submit(
    folder: Path, *words: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SYRTOS_HOME": str(folder / "home")}
    command = [*before, sys.executable, "-m", "syrtos", "submit", *words]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def model_of(folder: Path) -> Path:
    """The archive of the one job that has run here."""
    (found,) = folder.glob("runs/*/output/model.tar.gz")
    return found


DIES = """
import os, signal
from collections.abc import Callable
from pathlib import Path
import keras, numpy as np, syrtos
class Dies(keras.callbacks.Callback):
    batches = 0
    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        mark = Path(os.environ["SM_OUTPUT_DATA_DIR"], "died")
        if self.batches == 11 and syrtos.rank() == 1 and "DIE" in os.environ and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((200, 4), "float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, x.sum(1), batch_size=32, epochs=3, verbose=2, callbacks=[Dies()])
model.save_weights(os.path.join(os.environ["SM_MODEL_DIR"], "model.weights.h5"))
"""
VANISHES = """
import os
import syrtos
syrtos.init()
if syrtos.rank() == 1:
    os._exit(0)
syrtos.barrier()
"""


def test_an_instance_that_ends_without_a_word_fails_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(VANISHES)
    ended = submit(tmp_path, "train.py", "--instances", "2")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert " failed. AlgorithmError" in ended.stderr
    assert (
        "ended with exit code 0 before its script had come to its end"
        in ended.stderr + ended.stdout
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(name, marks=pytest.mark.long) for name in ("jax", "torch"))],
)
def test_two_instances_train_to_the_weights_of_two_workers(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    monkeypatch.setenv("KERAS_BACKEND", backend)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "data").mkdir()
    rows = np.random.default_rng(0).random((200, 5))
    np.savetxt(tmp_path / "data" / "rows.csv", rows, delimiter=",")
    done = submit(
        tmp_path, "train.py", "--instances", "2", "--hp", "epochs=2", "--channel", "train=data"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "algo-1 | Epoch 2/2" in done.stdout
    with tarfile.open(model_of(tmp_path)) as archive:
        archive.extractall(tmp_path / "job", filter="data")
    (tmp_path / "plain").mkdir()
    env = {
        **os.environ,
        "SM_CHANNEL_TRAIN": str(tmp_path / "data"),
        "SM_MODEL_DIR": str(tmp_path / "plain"),
    }
    run = [
        sys.executable,
        "-m",
        "syrtos",
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "train.py",
        "--epochs",
        "2",
    ]
    subprocess.run(run, cwd=tmp_path, env=env, check=True, capture_output=True)
    load: Any = keras.models.load_model
    weights = [load(tmp_path / name / "model.keras").get_weights() for name in ("job", "plain")]
    for ours, plain in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-6)


def in_use(path: Path) -> bool:
    """Whether it is the folder of a launcher that runs, e.g. in another test."""
    if not path.is_dir():
        return not path.exists()
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # its launcher has ended just now
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_worker_that_dies_is_started_again_if_the_job_asks_for_retries(tmp_path: Path) -> None:
    """Also where workers are in a user namespace of their own, from which they can't look into the launcher."""
    weights, before = [], {*Path("/dev/shm").glob("syrtos-*")}
    as_user = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    for name, more in (("whole", ()), ("dies", ("--env", "DIE=1", "--max-restarts", "2"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(DIES)
        done = submit(folder, "train.py", "--instances", "2", *more, before=as_user)
        assert done.returncode == 0, done.stdout + done.stderr
        with tarfile.open(model_of(folder)) as archive:
            archive.extractall(folder / "model", filter="data")
        with h5py.File(folder / "model" / "model.weights.h5") as file:
            found: list[Any] = []
            file.visititems(
                lambda _, item, found=found: (
                    found.append(item[()]) if isinstance(item, h5py.Dataset) else None
                )
            )
        weights.append(np.concatenate([np.ravel(one) for one in found]).tobytes())
    assert weights[0] == weights[1]
    assert re.search(
        r"algo-1 \| syrtos: rank 1 .* was ended by SIGKILL .* Generation 2 goes on from step",
        done.stdout,
    )
    home = Home(tmp_path / "dies" / "home")
    ((job,), _) = Store(home.database).find([], [columns.created], 0, 2)
    statuses = [transition["Status"] for transition in job.state.transitions]
    life = ["Starting", "Downloading", "Training"]
    assert statuses == [*life, "Restarting", *life, "Uploading", "Completed"]
    assert not [path for path in {*Path("/dev/shm").glob("syrtos-*")} - before if not in_use(path)]


def test_a_yaml_file_says_what_a_job_is(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "go.py").write_text("import helper, sys; print(helper.WORD, sys.argv[1:])")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("WORD = 'helped'")
    (tmp_path / "job.yaml").write_text(
        textwrap.dedent("""
            entry_point: go.py
            source_dir: src
            dependencies: [lib/helper.py]
            hyperparameters: {text: "it's \\"quoted\\"", "batch-size": 3, flag: true, layers: [1, 2]}
        """)
    )
    done = submit(tmp_path, "job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [
        "--batch-size",
        "3",
        "--flag",
        "True",
        "--layers",
        "[1, 2]",
        "--text",
        'it\'s "quoted"',
    ]
    assert f"algo-1 | helped {expected}" in done.stdout


@pytest.mark.skipif(not enter.can_isolate(), reason="this kernel lets this user make no namespaces")
def test_instances_are_hosts_with_paths_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    done = submit(tmp_path, "facts.py", "--instances", "2")
    assert "algo-1 | facts algo-1 /opt/ml/model 0 2 0 algo-1" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "algo-2 | facts algo-2 /opt/ml/model 1 2 1 algo-2" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (("unshare", "--user", "--map-user=1000", "--map-group=1000"), "facts algo-2 /opt/ml/model 1 2 1 algo-2"),
        (
            ("unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"', "sh"),
            "/instances/algo-2/ml/model 1 2 0 algo-2",
        ),
    ],
    ids=["as a user", "where the kernel refuses"],
)  # fmt: skip
def test_other_users_and_kernels(tmp_path: Path, before: tuple[str, ...], expected: str) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    done = submit(tmp_path, "facts.py", "--instances", "2", before=before)
    assert done.returncode == 0, done.stdout + done.stderr
    assert expected in done.stdout
    with tarfile.open(model_of(tmp_path)) as archive:
        assert sorted(archive.getnames()) == ["0", "1"]


def test_a_hyperparameter_that_the_script_has_dropped_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\n"
        "args, _ = parser.parse_known_args()\nprint('epochs', args.epochs)\n"
    )
    (tmp_path / "job.yaml").write_text(
        "entry_point: train.py\nhyperparameters: {epochs: 3, batch-sise: 8}\n"
    )
    ended = submit(tmp_path, "job.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "hyperparameter `batch-sise` was never read by the script" in ended.stdout + ended.stderr
    assert "`epochs` was never" not in ended.stdout + ended.stderr


def test_ctrl_c_ends_the_job_and_all_its_processes(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)"
    )
    env = {**os.environ, "SYRTOS_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "syrtos", "submit", "loop.py", "--instances", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert time.monotonic() - began < 10 * max(
        1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))
    )
    left = subprocess.run(
        ["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert left.stdout == ""


@pytest.mark.slow
def test_what_keras_2_saved_to_a_folder_is_a_saved_model(tmp_path: Path) -> None:
    """And why a file could not be written is said by whoever is heard first."""
    (tmp_path / "train.py").write_text(
        "import os, keras, numpy as np\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(np.ones((8, 3)), np.ones(8), verbose=0)\n"
        "model.save(os.path.join(os.environ['SM_MODEL_DIR'], '1'))\n"
        "model.save(os.path.join(os.environ['SM_MODEL_DIR'], 'model.bad'))\n"
    )
    done = submit(tmp_path, "train.py", "--instances", "2")
    assert done.returncode == 1
    assert "Invalid filepath extension" in done.stderr
    with tarfile.open(model_of(tmp_path)) as archive:
        assert "1/saved_model.pb" in archive.getnames()


def test_a_model_is_named_only_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("print('saves nothing')")
    done = submit(tmp_path, "idle.py", "--instances", "2")
    assert done.returncode == 0, done.stderr
    assert "Completed, no model: the script wrote nothing to SM_MODEL_DIR" in done.stderr
    assert "model.tar.gz" not in done.stderr


def test_a_failed_job_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('no good')")
    done = submit(tmp_path, "broken.py")
    assert done.returncode == 1
    assert "ValueError: no good" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.py",), "no script nothing.py"),
        (("bad.yaml",), "entry_point"),
        (("ok.py", "--hp", "x"), "NAME=VALUE"),
        (("ok.py", "--instances", "4000"), "1 to 64 instances"),
        (("ok.py", "--instances", "0"), "1 to 64 instances"),
        (("ok.py", "--channel", "a=nowhere"), "Channel a: there is no file or folder"),
        (("ok.py", "--channel", "a=ftp://x"), "ftp://x"),
        (("ok.py", "--no-wait"), "syrtos serve"),
        (("ok.py", "--max-restarts", "0"), "1 to 30 times"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    (tmp_path / "ok.py").write_text("")
    (tmp_path / "bad.yaml").write_text("a: 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYRTOS_HOME", str(tmp_path / "home"))
    # in this process: each command of its own would import for five seconds
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["submit", *words]))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


DOCUMENTS = Path(__file__).parent / "scripts" / "documents.py"


# The checks of the documents, by the job that runs them one after the other.
JOBS = {
    "fits": ("plain_fit", "mirrored_fit", "estimator_of_keras"),
    "Horovod": ("horovod_fit", "horovod_records", "horovod_loop"),
    "strategies": ("multi_gpu_model", "steps_of_a_strategy", "distributed_data_into_fit"),
    "TF_CONFIG": ("workers_of_tf_config", "no_tpu"),
}
LONG_JOBS = ("strategies", "TF_CONFIG")


@pytest.fixture(scope="module")
def run_job(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs one of `JOBS`, when it is first asked for."""

    @functools.cache
    def run(job: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("job")
        (folder / "documents.py").write_text(DOCUMENTS.read_text())
        return submit(
            folder, "documents.py", "--instances", "2", "--hp", f"checks={','.join(JOBS[job])}"
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "name"),
    [
        pytest.param(job, name, marks=[pytest.mark.long] if job in LONG_JOBS else [])
        for job, names in JOBS.items()
        for name in names
    ],
)
def test_what_the_documents_describe_runs_as_a_job(
    run_job: Callable[[str], subprocess.CompletedProcess[str]], job: str, name: str
) -> None:
    done = run_job(job)
    lines = done.stdout.splitlines()
    for instance in ("algo-1", "algo-2"):
        assert f"{instance} | ok {name}" in lines, done.stdout[-3000:] + done.stderr[-3000:]
    if name == JOBS[job][-1]:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
