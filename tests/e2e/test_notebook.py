"""`notebook_launcher` from real kernels, and from scripts."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kernels
import nbclient
import nbformat
import pytest
import slurm

import syrtos
from syrtos.errors import ConfigurationError

DEFINED = """
import numpy as np, syrtos
from syrtos import notebook_launcher

class Point:
    def __init__(self, x): self.x = x

def helper(values):
    return float(syrtos.allreduce(values).sum()) + offset

def closed(factor):
    def inner(values):
        print("rank", syrtos.rank(), "of", syrtos.size())
        return Point((helper(values * factor), syrtos.rank(), syrtos.size()))
    return inner

def failing():
    if syrtos.rank() == 1:
        raise ValueError("no such luck")
    syrtos.barrier()

offset = 0.5
"""

TRAINING = """
import keras, numpy as np, syrtos
x = np.random.default_rng(1).random((96, 8), "float32")
y = (x.sum(1) > 4).astype("int32")

def build():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2, activation="softmax")])

def train(epochs):
    model = build()
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=epochs)
    return model, history
"""

REFUSED = {
    "`log`, which `helper` uses": (
        "log = open('log.txt', 'w')\ndef helper(): log.write('x')\ndef train(): helper()",
        "an open file (log.txt)",
    ),
    "`lock`": (
        "import threading\nlock = threading.Lock()\ndef train():\n    with lock: pass",
        "a lock",
    ),
    "`numbers`": (
        "numbers = (n for n in range(3))\ndef train(): return list(numbers)",
        "a generator",
    ),
    "`data`": ("data = np.zeros(200_000_000)\ndef train(): return data.sum()", "numpy.save"),
    "args[1]": (
        "import socket\ndef train(*args): pass\nargs = (1, [socket.socket()])",
        "an open connection",
    ),
    "`secret`": (
        "def outer():\n    secret = open('log.txt')\n    return lambda: secret.read()\ntrain = outer()",
        "Open it inside the function",
    ),
}


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[kernels.Kernel]:
    with kernels.kernel(tmp_path) as running:
        yield running


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_function_its_helpers_and_its_closure_run_on_workers(
    kernel: kernels.Kernel, tmp_path: Path
) -> None:
    kernel.right(DEFINED)
    cell = kernel.right(
        "p = notebook_launcher(closed(10), (np.arange(3.),)); (type(p) is Point, p.x)"
    )
    assert cell.value == "(True, (60.5, 0, 2))"
    assert cell.out == "rank 0 of 2\n"
    assert "2 workers on this machine" in cell.err
    assert "run directory: " in cell.err

    cell = kernel.run("notebook_launcher(failing)")
    assert cell.error.startswith("LaunchError: rank 1 on ")
    assert 'Cell In[1], line 18, in failing\n    raise ValueError("no such luck")' in cell.error
    assert "ValueError: no such luck" in cell.error
    assert "/rank-1.log" in cell.error
    assert "no such luck" not in cell.err  # it is told once

    kernel.right("import sys\ndef leaving(): sys.exit(0)")
    assert kernel.run("notebook_launcher(leaving)").error.startswith(
        "LaunchError: rank 0 ended without returning"
    )

    kernel.right("offset = 1000.0")
    assert (
        kernel.right("notebook_launcher(closed(1), [np.arange(3.)], max_restarts=0).x").value
        == "(1006.0, 0, 2)"
    )
    assert len(list((tmp_path / "runs").iterdir())) == 4


@pytest.mark.slow
def test_what_can_not_travel_is_named_before_anything_starts(
    kernel: kernels.Kernel, tmp_path: Path
) -> None:
    kernel.right(DEFINED)
    for name, (code, why) in REFUSED.items():
        kernel.right(f"args = ()\n{code}")
        cell = kernel.run("notebook_launcher(train, args)")
        assert cell.error.startswith("ConfigurationError: "), (name, cell)
        assert name in cell.error
        assert why in cell.error
    kernel.right("def train(): return lambda: 3")
    cell = kernel.run("notebook_launcher(train)")
    assert "can't come back" in cell.error
    assert "has come to its end" in cell.error
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.slow
def test_wrong_calls_say_what_to_do(kernel: kernels.Kernel, tmp_path: Path) -> None:
    kernel.right(DEFINED)
    for call, said in {
        "notebook_launcher(print())": "Received: None",
        "notebook_launcher(failing, 3)": "as in `notebook_launcher(train, (5,))`",
        "notebook_launcher(failing, workers=0)": "`workers` must be 1 or more",
        "notebook_launcher(failing, num_processes=2)": "`num_processes` is called `workers` here",
        "notebook_launcher(failing, hosts='a,b')": "syrtos run --hosts",
        "notebook_launcher(failing, ps=1)": "syrtos run --ps",
        "notebook_launcher(failing, batches='global')": "There is no option `batches`. Did you mean `batch`? Options are: batch, ",
        "notebook_launcher(failing, batch='all')": "batch",
        "notebook_launcher(failing, workers=500)": "or `oversubscribe=True` if that is what you want",
    }.items():
        cell = kernel.run(call)
        assert cell.error.startswith("ConfigurationError: "), cell
        assert said in cell.error
        assert "500 workers" not in cell.err  # it is told once
    kernel.right("%env PMI_SIZE=4")
    assert "has started as one of several workers" in kernel.run("notebook_launcher(failing)").error
    assert not list(tmp_path.glob("runs/*/logs"))


@pytest.mark.slow
def test_the_stop_button_ends_all_workers(kernel: kernels.Kernel, tmp_path: Path) -> None:
    kernel.right(DEFINED)
    kernel.right(
        "import os, time\ndef long(stubborn):\n    open(f'{syrtos.rank()}.pid', 'w').write(str(os.getpid()))\n"
        "    while True:\n        try: time.sleep(60)\n        except KeyboardInterrupt:\n            if not stubborn: raise\n"
    )
    pids = [tmp_path / f"{rank}.pid" for rank in range(2)]
    for stubborn, most in ((False, 5.0), (True, 10.0)):
        found: list[float] = []

        def press(found: list[float] = found) -> None:
            until(lambda: all(pid.exists() and pid.read_text() for pid in pids))
            found.append(time.monotonic())
            kernel.manager.interrupt_kernel()

        thread = threading.Thread(target=press)
        thread.start()
        cell = kernel.run(f"notebook_launcher(long, ({stubborn},))")
        took = time.monotonic() - found[0]
        thread.join()
        assert cell.error.startswith("KeyboardInterrupt"), cell
        assert took < most
        assert not any(lives(int(pid.read_text())) for pid in pids)
        for pid in pids:
            pid.unlink()
    assert kernel.right("notebook_launcher(closed(1), (np.arange(3.),)).x").value == "(6.5, 0, 2)"


@pytest.mark.slow
def test_no_worker_outlives_its_kernel(kernel: kernels.Kernel, tmp_path: Path) -> None:
    kernel.right("import os, time, syrtos")
    kernel.right(
        "def long():\n    open(f'{syrtos.rank()}.pid', 'w').write(str(os.getpid()))\n    time.sleep(600)"
    )
    kernel.client.execute("syrtos.notebook_launcher(long)")
    pids = [tmp_path / f"{rank}.pid" for rank in range(2)]
    until(lambda: all(pid.exists() and pid.read_text() for pid in pids))
    kernel.manager.shutdown_kernel(now=True)
    until(lambda: not any(lives(int(pid.read_text())) for pid in pids), 10.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(name, marks=pytest.mark.long) for name in ("jax", "torch"))],
)
def test_keras_trains_as_in_one_process(tmp_path: Path, backend: str) -> None:
    with kernels.kernel(tmp_path) as running:
        running.right(f"import os; os.environ['KERAS_BACKEND'] = {backend!r}")
        running.right(TRAINING)
        cell = running.right("model, history = syrtos.notebook_launcher(train, (2,))")
        assert "Epoch 2/2" in cell.out
        assert "3/3" in cell.out
        assert "accuracy: " in cell.out
        assert "samples/s" in cell.err
        cell = running.right(
            "alone, one = train(2)\n"
            "same = [float(abs(a - b).max()) for a, b in zip(model.get_weights(), alone.get_weights(), strict=True)]\n"
            "(max(same), keras.backend.backend(), sorted(history.history), abs(history.history['loss'][-1] - one.history['loss'][-1]))"
        )
        apart, used, names, loss = ast.literal_eval(cell.value)
        assert (used, names) == (backend, ["accuracy", "loss"])
        assert apart < 1e-6
        assert loss < 1e-6
        cell = running.run("syrtos.notebook_launcher(lambda: model.predict(x))")
        assert (
            "`model` to the workers: it is a Keras model. Build it inside the function"
            in cell.error
        )


@pytest.mark.slow
def test_what_tensorflow_holds_does_not_travel(kernel: kernels.Kernel) -> None:
    kernel.right("import keras, tensorflow as tf, syrtos")
    for code, what in {
        "data = tf.data.Dataset.range(3)": "a tf.data.Dataset",
        "data = tf.Variable(3.0)": "a TensorFlow variable",
        "data = keras.optimizers.Adam()": "a Keras optimizer",
        "data = {'here': [keras.layers.Dense(3)]}": "a Keras layer",
        "data = tf.distribute.MirroredStrategy()": "a tf.distribute strategy",
    }.items():
        kernel.right(code)
        cell = kernel.run("syrtos.notebook_launcher(lambda: data)")
        assert f"can't take `data` to the workers: it is {what}" in cell.error, cell


@pytest.mark.slow
def test_settings_of_keras_are_those_of_the_notebook(kernel: kernels.Kernel) -> None:
    kernel.right("import keras, syrtos\nkeras.config.set_dtype_policy('mixed_bfloat16')")
    kernel.right(
        "def used():\n    return keras.config.dtype_policy().name, keras.layers.Dense(3).compute_dtype"
    )
    assert (
        kernel.right("syrtos.notebook_launcher(used, workers=1)").value
        == "('mixed_bfloat16', 'bfloat16')"
    )


def test_workers_unpickle_nothing_but_what_a_notebook_sends(tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.write_bytes(pickle.dumps(print))
    command = [sys.executable, "-m", "syrtos", "run", "-n", "1", "-m", "syrtos.notebook.call"]
    for source in (evil, Path("/dev/null")):
        with source.open("rb") as given:
            done = subprocess.run(
                command, cwd=tmp_path, stdin=given, capture_output=True, text=True, timeout=60
            )
        assert done.returncode == 1
        assert "was in the memory of the program that called it, and is gone" in done.stderr


def run_script(
    folder: Path, text: str, within: float = 120, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script of this text in a folder; it must end well."""
    script = folder / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    text = DEFINED + "print('once', notebook_launcher(closed(2), (np.ones(2),)).x)\n"
    assert run_script(tmp_path, text).stdout == "rank 0 of 2\nonce (8.5, 0, 2)\n"


@pytest.mark.long
def test_the_example_recognises_digits(tmp_path: Path) -> None:
    notebook = nbformat.read(
        Path(__file__).parents[2] / "examples" / "notebook.ipynb", as_version=4
    )
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    last = notebook.cells[-1].outputs[0].text
    accuracy, loss = re.findall(r"\d\.\d+", last)
    assert float(accuracy) > 0.95
    assert float(loss) < 0.2
    shown = "".join(output.text for output in notebook.cells[-3].outputs)
    assert "Epoch 8/8" in shown
    assert "run directory: " in shown


# -- syrtos.remote -------------------------------------------------------------------------------

REMOTE = """
import os, signal
import numpy as np
import syrtos

class Point:
    def __init__(self, x): self.x = x

offset = 0.5

@syrtos.remote({where}, run_dir="run")
def total(values, factor=1):
    print("rank", syrtos.rank(), "of", syrtos.size(), flush=True)
    return Point((float(syrtos.allreduce(values * factor).sum()) + offset, values * factor))

if __name__ == "__main__":
    found = total(np.ones({count}), factor=2)
    print(type(found).__name__, found.x[0], found.x[1].size)
"""


def called_remotely(folder: Path, where: str, env: dict[str, str] | None = None) -> str:
    """What a script prints that calls such a function."""
    count = 5_000_000  # 40 MB there and back, which is more than one message
    done = run_script(folder, REMOTE.format(where=where, count=count), within=300, env=env)
    assert done.stdout.endswith(f"Point {2 * 2 * count + 0.5} {count}\n"), done.stdout
    assert "syrtos-notebook" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """A command in the place of ssh, by which all hosts are this machine."""
    command = tmp_path / "in-place-of-ssh"
    command.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    command.chmod(0o755)
    return command


def test_a_function_is_called_on_other_hosts(tmp_path: Path, ssh: Path) -> None:
    said = called_remotely(tmp_path, f'hosts="alpha:1,beta:1", ssh="{ssh}"')
    assert "2 workers on alpha, beta" in said
    assert "standard input" not in said


@pytest.mark.parametrize("place", ["workers=2", 'hosts="alpha:1,beta:1", ssh="{ssh}"'])
def test_a_silent_terminal_shows_how_far_the_workers_are(
    tmp_path: Path, ssh: Path, place: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time, syrtos\n"
        f"@syrtos.remote({place.format(ssh=ssh)})\n"
        "def train():\n    time.sleep(8)\n    return 'returned'\n"
        "print(train())\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, script], os.environ | {"TERM": "xterm"})
    shown = bytearray()
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(terminal, 1 << 16):
            shown += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    text = shown.decode()
    assert "\r\x1b[2Kno training step yet, 2 workers" in text
    # erased before anything else
    assert re.search(r"2 workers\r\x1b\[2K(?!no training)", text)
    assert text.endswith("\r\nreturned\r\n")


def test_a_place_that_does_not_exist_is_refused() -> None:
    refused = {
        "runs functions `on` here, slurm or ray": [
            {"on": "kubernetes"},
        ],
        "Give `on='ray'` or": [{"on": "ray", "hosts": "a:2"}],
        "Did you mean `run_dir`": [{"rundir": "x"}],
        "is the number of slots": [{"hosts": "a:2", "workers": 2}],
        "are those of an engine": [{"values": {"time": 1}}],
        "divides the workers evenly": [{"nodes": 2}, {"on": "slurm", "workers": 3, "nodes": 2}],
    }
    for text, cases in refused.items():
        for arguments in cases:
            with pytest.raises(ConfigurationError, match=text):
                syrtos.remote(**arguments)  # pyright: ignore[reportArgumentType]


def test_arguments_that_have_no_position_are_refused() -> None:
    @syrtos.remote()
    def named(*, epochs: int) -> int:
        return epochs

    with pytest.raises(ConfigurationError, match=r"these of `named` have none: epochs"):
        named(epochs=1)


def test_a_worker_that_dies_on_another_host_is_started_again(tmp_path: Path, ssh: Path) -> None:
    done = run_script(
        tmp_path,
        "import os, pathlib, signal, time, syrtos\n"
        f"@syrtos.remote(hosts='alpha:1,beta:1', ssh='{ssh}', run_dir='run', max_restarts=1)\n"
        "def train(a, b=1, c=2):\n"
        "    mark = pathlib.Path('died')\n"
        "    if syrtos.rank() == 0 and not mark.exists():\n"
        "        mark.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    syrtos.barrier()\n"
        "    return a, b, c\n"
        "print(train(1, c=5))\n",
    )
    assert done.stdout == "(1, 1, 5)\n", done.stderr
    assert "SIGKILL" in done.stderr


@pytest.mark.root
@pytest.mark.slow
def test_a_function_is_called_in_an_allocation_of_slurm(tmp_path: Path) -> None:
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.cluster(nodes=2) as cluster:
        env = {"SLURM_CONF": str(cluster.folder / "slurm.conf")}
        where = 'workers=2, nodes=2, on="slurm"'
        assert "rank 0 of 2" in called_remotely(tmp_path, where, env)
        assert cluster.jobs() == []
