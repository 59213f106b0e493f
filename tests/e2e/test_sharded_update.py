"""`--shard-update`: the optimizer's state is divided among the workers, and a script does not see it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import netns
import pytest

import forking

SCRIPT = Path(__file__).parent / "scripts" / "sharded.py"
LARGE = Path(__file__).parent / "scripts" / "large.py"
SYRTOS = Path(sys.executable).with_name("syrtos")
ENV = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
BACKENDS = ["tensorflow", "torch", pytest.param("jax", marks=pytest.mark.long)]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def train(folder: Path, how: str, *flags: str, backend: str, workers: int = 2) -> Any:
    (folder / "files").mkdir(parents=True)
    env = {**ENV, "KERAS_BACKEND": backend}
    command = [SCRIPT, folder / "files", how]
    if workers > 1:
        command = forking.syrtos_run(
            folder / "run", workers, *command, flags=("--timeout", "60", "--oversubscribe", *flags)
        )
    done = forking.run(command, env)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def check_close(found: Any, expected: Any) -> None:
    for name in ("losses", "weights"):
        assert found[name] == pytest.approx(expected[name], rel=2e-5)
    assert [v[:2] for v in found["optimizer"]] == [v[:2] for v in expected["optimizer"]]
    assert [v[2] for v in found["optimizer"]] == pytest.approx(
        [v[2] for v in expected["optimizer"]], rel=1e-4
    )


@pytest.fixture(scope="module", params=BACKENDS)
def alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any]:
    """A backend, and what one process gives."""
    return request.param, train(
        tmp_path_factory.mktemp("alone"), "plain", backend=request.param, workers=1
    )


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_it_trains_saves_and_loads_as_one_process_does(
    tmp_path: Path, alone: tuple[str, Any], workers: int
) -> None:
    backend, expected = alone
    check_close(
        train(tmp_path, "plain", "--shard-update", backend=backend, workers=workers), expected
    )


@pytest.mark.parametrize(
    ("backend", "how", "flags"),
    [
        pytest.param("tensorflow", "plain", (), marks=pytest.mark.long),
        ("tensorflow", "each", ()),
        pytest.param("torch", "plain", (), marks=pytest.mark.long),
        pytest.param("torch", "each", (), marks=pytest.mark.long),
        pytest.param(
            "torch", "each", ("--exchange", "framework"), marks=pytest.mark.long
        ),  # which sums all
    ],
)
def test_between_hosts_each_worker_sums_its_parts(
    tmp_path: Path, backend: str, how: str, flags: tuple[str, ...]
) -> None:
    """As two workers of one host that update all. The gradient of the table in "plain" is rows: then all is summed, for the norm."""
    expected = train(tmp_path / "whole", how, backend=backend)
    folder = tmp_path / "hosts"
    (folder / "files").mkdir(parents=True)
    with netns.two_hosts_or_skip(None) as hosts:
        options = [
            *hosts.flags(1),
            *flags,
            "--shard-update",
            "--timeout",
            "60",
            "--env",
            "KERAS_BACKEND",
            "--run-dir",
            str(folder / "run"),
        ]
        command = [str(SYRTOS), "run", *options, str(SCRIPT), str(folder / "files"), how]
        done = hosts.run(command, env={**ENV, "KERAS_BACKEND": backend})
    assert done.returncode == 0, done.stdout + done.stderr
    check_close(
        json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))),
        expected,
    )


@pytest.mark.long
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_between_hosts_no_more_bytes_are_sent(backend: str) -> None:
    """8 steps of 5M numbers."""
    sent = {}
    with netns.two_hosts_or_skip(None) as hosts:
        for flags in ((), ("--shard-update",)):
            before = hosts.sent_bytes(0)
            options = [
                *hosts.flags(1),
                *flags,
                "--max-restarts",
                "0",
                "--check-every",
                "0",
                "--env",
                "KERAS_BACKEND",
            ]
            done = hosts.run(
                [str(SYRTOS), "run", *options, str(LARGE)], env={**ENV, "KERAS_BACKEND": backend}
            )
            assert done.returncode == 0, done.stderr
            sent[flags] = (hosts.sent_bytes(0) - before) / 1e6
    assert sent[()] > 8 * 20 * 0.9
    assert sent["--shard-update",] < 1.1 * sent[()]


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=pytest.mark.long) for name in ("tensorflow", "torch", "jax")],
)
def test_after_a_kill_the_result_is_the_same(tmp_path: Path, backend: str) -> None:
    whole = train(tmp_path / "whole", "plain", "--shard-update", backend=backend)
    assert train(tmp_path / "killed", "killed", "--shard-update", backend=backend) == whole
    assert (tmp_path / "killed" / "files" / "killed").exists()


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("torch", marks=pytest.mark.long)])
def test_weights_that_a_script_changes_in_place_are_changed_once(
    tmp_path: Path, backend: str
) -> None:
    """On TensorFlow they lie in memory that the workers share."""
    expected = train(tmp_path / "alone", "changed", backend=backend, workers=1)
    check_close(train(tmp_path / "shared", "changed", "--shard-update", backend=backend), expected)


def test_what_a_script_has_split_on_jax_stays_so(tmp_path: Path) -> None:
    """By its layout, which divides the kernel along the axis of a mesh that has no batches."""
    script = tmp_path / "script.py"
    script.write_text(
        "import keras, numpy as np\n"
        "devices = keras.distribution.list_devices()\n"
        "mesh = keras.distribution.DeviceMesh((1, len(devices)), ('batch', 'model'), devices)\n"
        "layouts = keras.distribution.LayoutMap(mesh)\n"
        "layouts['.*wide.*kernel'] = (None, 'model')\n"
        "keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name='batch'))\n"
        "model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(64, name='wide'), keras.layers.Dense(1)])\n"
        "model.compile(keras.optimizers.Adam(0.01), 'mse')\n"
        "model.fit(np.ones((16, 12)), np.ones((16, 1)), batch_size=8, verbose=0)\n"
        "slots = [v for v in model.optimizer.variables if tuple(v.shape) == (12, 64)]\n"
        "print('parts', [part.data.shape for v in slots for part in v.value.addressable_shards])\n"
    )
    done = forking.run(
        forking.syrtos_run(tmp_path / "run", 2, script, flags=("--shard-update",)),
        {**ENV, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parts [(12, 32), (12, 32)]" in done.stdout


@pytest.mark.parametrize(
    ("flags", "env", "says"),
    [
        ("--sync-every 4", {}, "`--shard-update` can't be given with --sync-every"),
        ("--ps 1", {}, "`--shard-update` can't be given with --ps"),
        ("--on-divergence repair", {}, "needs `--check-every 1` with --shard-update"),
        ("", {"TF_USE_LEGACY_KERAS": "1"}, "`--shard-update` does not work with Keras 2"),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(
    tmp_path: Path, flags: str, env: dict[str, str], says: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, keras\nif os.environ.get('TF_USE_LEGACY_KERAS'):\n    import tf_keras\n"
    )
    done = forking.run(
        forking.syrtos_run(tmp_path / "run", 2, script, flags=("--shard-update", *flags.split())),
        {**ENV, **env},
    )
    assert done.returncode != 0
    assert says in done.stdout + done.stderr


BY_VARIABLE = """
import json, keras, numpy as np
keras.utils.set_random_seed(5)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(77, 10)).astype("float32"), rng.normal(size=(77, 4)).astype("float32")
layers = [keras.Input((10,)), keras.layers.Dense(24, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Lamb(0.01), "mse")
losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
print(json.dumps([*losses, *(float(np.abs(v).sum()) for v in model.get_weights())]))
"""


def test_a_worker_without_a_part_of_a_variable_gathers_after_all_sums(tmp_path: Path) -> None:
    """`Lamb` and `Muon` are divided by whole variables: a worker has a part of some sums alone."""
    (tmp_path / "train.py").write_text(BY_VARIABLE)
    flags, env = ("--oversubscribe", "--shard-update"), {**ENV, "KERAS_BACKEND": "tensorflow"}
    plain = [tmp_path / "train.py"]
    found = []
    for command in (plain, forking.syrtos_run(tmp_path / "run", 3, *plain, flags=flags)):
        done = forking.run(command, env)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(next(s for s in done.stdout.splitlines() if s.startswith("["))))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
