"""Each rule of the doctor: a script in which it must find something, at that line, and a near one in which it must not."""

from __future__ import annotations

import importlib
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from syrtos.doctor import diagnosis, program, public_names
from syrtos.doctor.finding import Finding, Severity
from syrtos.doctor.rules import names, needs

KERAS = "import keras\nimport numpy as np\nimport tensorflow as tf\nmodel = keras.Sequential([keras.layers.Dense(1)])\n"
PLAIN = KERAS + "model.compile('sgd', 'mse')\nmodel.fit(x, y, batch_size=32)\n"
HOROVOD = KERAS + "import horovod.keras as hvd\nhvd.init()\n"
CALLBACKS = "callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]"
MINE = "x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]\n"
WRAPPED = (
    HOROVOD + MINE + "opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))\n"
)
TRAINED = WRAPPED + f"model.compile(opt, 'mse')\nmodel.fit(x, y, batch_size=32, {CALLBACKS})\n"
LOOP = KERAS + "opt = keras.optimizers.SGD(0.1)\n"
TAPE = "with tf.GradientTape() as tape:\n    loss = f(x)\nopt.apply_gradients(zip(tape.gradient(loss, v), v))\n"
SYRTOS = "import syrtos\nsyrtos.init()\n"
UNSERVED = "tf.estimator.DNNClassifier([8], columns)\n"

# rule, script in which its last line is at fault, near script that is well
CASES = {
    "opened for writing": ("file-on-every-rank", PLAIN + "open('a.txt', 'w')\n", PLAIN + "open('a.txt')\n"),
    "a path opened": ("file-on-every-rank", PLAIN + "from pathlib import Path\nPath('a').open('a')\n", PLAIN + "album.open('wax.txt')\n"),
    "an archive": ("file-on-every-rank", PLAIN + "import tarfile\ntarfile.open('a', 'w:gz')\n", PLAIN + "import tarfile\ntarfile.open('a', 'r:xz')\n"),
    "opened on one rank": ("file-on-every-rank", PLAIN + "open('a', mode='a')\n", PLAIN + SYRTOS + "if syrtos.rank() == 0:\n    open('a', 'a')\n"),
    "left before": (
        "file-on-every-rank",
        PLAIN + SYRTOS + "def f():\n    return np.save('a', x)\n",
        PLAIN + SYRTOS + "def f():\n    if syrtos.rank():\n        return\n    np.save('a', x)\n",
    ),
    "called on one rank": (
        "file-on-every-rank",
        PLAIN + "def f():\n    np.save('a', x)\n",
        PLAIN + SYRTOS + "def f():\n    np.save('a', x)\nif syrtos.rank() == 0:\n    f()\n",
    ),
    "temporary": ("file-on-every-rank", PLAIN + "np.savez(p, x)\n", PLAIN + "import tempfile\np = tempfile.mkdtemp() + '/a'\nnp.savez(p, x)\n"),
    "named by rank": ("file-on-every-rank", PLAIN + "frame.to_csv('a.csv')\n", PLAIN + SYRTOS + "frame.to_csv(f'{syrtos.rank()}.csv')\n"),
    "text, not a file": ("file-on-every-rank", PLAIN + "plt.savefig('a.png')\n", PLAIN + "text = frame.to_csv()\n"),
    "of Keras": ("file-on-every-rank", PLAIN + "tf.io.write_file('a.txt', text)\n", PLAIN + "model.save('a.keras')\nkeras.utils.plot_model(model, 'a.png')\n"),
    "removed": (
        "file-on-every-rank",
        PLAIN + "import shutil\nshutil.rmtree('a')\n",
        PLAIN + "import shutil\nshutil.rmtree('a', ignore_errors=True)\n",
    ),
    "removed in try": (
        "file-on-every-rank",
        PLAIN + "import os\nos.remove('a')\n",
        PLAIN + "import os\ntry:\n    os.remove('a')\nexcept OSError:\n    pass\n",
    ),
    "unpacked": ("file-on-every-rank", PLAIN + "archive.extractall('a')\n", PLAIN + "keras.utils.get_file('a', url, extract=True)\n"),
    "command": (
        "file-on-every-rank",
        PLAIN + "import os\nos.system('rm -rf a')\n",
        PLAIN + "import os\nos.system('nvidia-smi')\n",
    ),
    "folder": (
        "file-on-every-rank",
        TRAINED + "import os\nos.makedirs('a' * hvd.size())\nif hvd.rank() == 3: pass\n",
        TRAINED + "import os\nos.makedirs('a', exist_ok=True)\n",
    ),
    "picture": ("file-on-every-rank", PLAIN + "keras.utils.array_to_img(x).save('a.png')\n", PLAIN + "model.save('a.keras')\n"),
    "clock": ("unseeded-shuffle", PLAIN + "import random, time\nrandom.seed(time.time())\n", PLAIN + "import random\nrandom.seed(1)\n"),
    "system's numbers": ("unseeded-shuffle", PLAIN + "import os\nos.urandom(8)\n", PLAIN + "import random\nrandom.random()\n"),
    "seeded by rank": (
        "unseeded-shuffle",
        PLAIN + SYRTOS + "data.shuffle(9, seed=syrtos.rank())\n",
        PLAIN + SYRTOS + "data.shuffle(9, seed=1)\n",
    ),
    "seeded by rank in a loop of its own": (
        "unseeded-shuffle",
        PLAIN + SYRTOS + "data.shuffle(9, seed=syrtos.rank())\n",
        LOOP + SYRTOS + "data.shuffle(9, seed=syrtos.rank())\n" + TAPE,
    ),
    "same batches": (
        "same-batches",
        HOROVOD + "data = data.shuffle(9, seed=1)\n",
        HOROVOD + "data = data.shard(hvd.size(), hvd.rank()).shuffle(9, seed=1)\n",
    ),
    "same seed": (
        "same-batches",
        HOROVOD + "keras.utils.set_random_seed(1)\n",
        HOROVOD + "keras.utils.set_random_seed(1 + hvd.rank())\n",
    ),
    "uneven": ("batch-not-divisible", PLAIN + "model.fit(x, y, batch_size=3)\n", PLAIN + "model.fit(x, y, batch_size=34)\n"),
    "uneven data set": (
        "batch-not-divisible",
        PLAIN + "data = data.batch(1)\n",
        PLAIN + "data = data.batch(64)\n",
    ),
    "unscaled": (
        "lr-not-scaled",
        HOROVOD + MINE + f"model.fit(x, y, {CALLBACKS})\nopt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))\n",
        TRAINED,
    ),
    "scaled twice": (
        "lr-not-scaled",
        TRAINED + "lr = 0.1 * hvd.size()\nother = keras.optimizers.SGD(lr * hvd.size())\n",
        TRAINED + "lr = 0.1 * hvd.size()\nother = keras.optimizers.SGD(lr)\n",
    ),
    "warm-up to an unscaled rate": (
        "lr-not-scaled",
        TRAINED + "hvd.callbacks.LearningRateWarmupCallback(0.1, 5)\n",
        TRAINED + "hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), 5)\n",
    ),
    "all steps": (
        "steps-times-workers",
        HOROVOD + "model.fit(data, steps_per_epoch=500)\n",
        HOROVOD + "model.fit(data, steps_per_epoch=500 // hvd.size())\n",
    ),
    "all data": ("steps-times-workers", HOROVOD + "model.fit(x, y)\n", HOROVOD + MINE + "model.fit(x, y)\n"),
    "not wrapped": (
        "not-wrapped",
        HOROVOD + "model.fit(x, y)\nopt = keras.optimizers.SGD(0.1 * hvd.size())\n",
        TRAINED,
    ),
    "no broadcast": (
        "missing-broadcast",
        HOROVOD + MINE + "model.fit(x, y)\nopt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))\n",
        TRAINED,
    ),
    "wrapped twice": ("wrapped-twice", TRAINED + "opt = hvd.DistributedOptimizer(opt)\n", WRAPPED + "hvd.DistributedOptimizer(keras.optimizers.SGD(rate))\n"),
    "wrapped in branches": (
        "wrapped-twice",
        WRAPPED + "if a:\n    opt = hvd.DistributedOptimizer(opt)\n    opt = hvd.DistributedOptimizer(opt)\n",
        HOROVOD + MINE + "if a:\n    opt = hvd.DistributedOptimizer(opt)\nelse:\n    opt = hvd.DistributedOptimizer(opt)\n",
    ),
    "old callback": (
        "dead-api",
        TRAINED + "hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=5)\n",
        TRAINED + "hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=5)\n",
    ),
    "other framework": ("dead-api", "import keras\nimport horovod.spark\n", "import keras\nimport horovod.keras\n"),
    "one rank's sum": (
        "rank-0-only",
        TRAINED + "if hvd.rank() == 0: hvd.allreduce(x)\n",
        TRAINED + "total = hvd.allreduce(x)\nif hvd.rank() == 0: print(total)\n",
    ),
    "one rank's evaluation": (
        "rank-0-only",
        PLAIN + SYRTOS + "if syrtos.rank() == 0: model.evaluate(x, y)\n",
        PLAIN + SYRTOS + "loss = model.evaluate(x, y)\nif syrtos.rank() == 0: print(loss)\n",
    ),
    "own loop": (
        "custom-loop-not-split",
        LOOP + "with tf.GradientTape() as tape: opt.apply_gradients(zip(tape.gradient(loss, v), v))\n",
        LOOP + "class M(keras.Model):\n    def train_step(self, data):\n" + "".join(f"        {line}\n" for line in TAPE.splitlines()),
    ),
    "own loop on a strategy": (
        "custom-loop-not-split",
        LOOP + "def step():\n    with tf.GradientTape() as tape: opt.apply_gradients(g)\n",
        LOOP + TAPE + "strategy = tf.distribute.MirroredStrategy()\nstrategy.run(step)\n",
    ),
    "own loop in a graph": (
        "custom-loop-not-split",
        LOOP + "def step():\n    with tf.GradientTape() as tape: opt.apply_gradients(g)\n",
        LOOP + "@tf.function\ndef step():\n    with tf.GradientTape() as tape: opt.apply_gradients(g)\n",
    ),
    "own loop in a graph by a call": (
        "custom-loop-not-split",
        LOOP + "tf.function(other)\ndef step():\n    with tf.GradientTape() as tape: opt.apply_gradients(g)\n",
        LOOP + "def step():\n    with tf.GradientTape() as tape: opt.apply_gradients(g)\nfast = tf.function(step)\n",
    ),
    "saliency": (
        "custom-loop-not-split",
        LOOP + "with tf.GradientTape() as tape: opt.apply_gradients(g)\n",
        KERAS + "with tf.GradientTape() as tape: pass\ntape.gradient(a, b)\n",
    ),
    "compiled": (
        "jit-compile",
        LOOP + "strategy.run(step)\n@tf.function(jit_compile=True)\ndef step():\n    opt.apply_gradients(g)\n",
        LOOP + "@tf.function(jit_compile=True)\ndef step():\n    opt.apply_gradients(g)\n",
    ),
    "servers": (
        "parameter-servers",
        PLAIN + "tf.distribute.ParameterServerStrategy(resolver)\n",
        PLAIN + "tf.distribute.MirroredStrategy()\n",
    ),
    "terminal": ("terminal", PLAIN + "name = input('?')\n", PLAIN + "input = keras.Input((1,))\ninput('?')\n"),
    "tracker": (
        "tracker-on-every-rank",
        PLAIN + "import wandb\nwandb.init()\n",
        PLAIN + "import wandb, syrtos\nif syrtos.rank() == 0: wandb.init()\n",
    ),
    "port": ("port-on-every-rank", PLAIN + "import uvicorn\nuvicorn.run(app)\n", PLAIN + "import uvicorn, syrtos\nif syrtos.rank() == 0: uvicorn.run(app)\n"),
    "TPU": (
        "tpu",
        PLAIN + "tf.distribute.TPUStrategy()\n",
        PLAIN + "try:\n    tf.distribute.TPUStrategy()\nexcept ValueError:\n    pass\n",
    ),
    "devices": (
        "devices",
        TRAINED + "tf.config.set_visible_devices(gpus[hvd.rank()], 'GPU')\n",
        TRAINED + "tf.config.set_visible_devices(gpus[hvd.local_rank()], 'GPU')\n",
    ),
    "input": ("slow-input", PLAIN + "tf.data.Dataset.from_generator(f, s)\n", PLAIN + "tf.data.Dataset.from_tensor_slices(x)\n"),
    "gone": ("dead-api", "import keras\nfrom keras.layers.core import Dense\n", "import keras\nfrom keras.layers import Dense\n"),
    "misspelt": ("dead-api", "import keras\nkeras.layers.Densse(1)\n", "import keras\nkeras.layers.Dense(1)\n"),
    "misspelt of NumPy": ("dead-api", KERAS + "np.random.randnn(1)\n", KERAS + "np.random.randn(1)\nnp.ndarray.copyy\nnp.frobnicate\n"),
    "gone from NumPy": ("dead-api", KERAS + "np.float(1)\n", KERAS + "np.float64(1)\n"),
    "package": (
        "missing-package",
        "import keras, os\nfrom no_such_package.parts import name\n",
        "import keras, os\ntry:\n    import no_such_package\nexcept ImportError:\n    no_such_package = None\n"
        "from contextlib import suppress\nwith suppress(ImportError):\n    import no_such_package\n",
    ),
    "package for types": (
        "missing-package",
        "import no_such_package\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import no_such_package\n",
    ),
    "package in a place of its own": ("missing-package", "import no_such_package\n", "import sys\nsys.path.append('..')\nimport no_such_package\n"),
    "package that a dialect serves": ("missing-package", "import no_such_package\n", "import horovod.keras as hvd\n"),
    "misspelt variable": ("undefined-name", "count = 1\nprint(coutn)\n", "count = 1\nprint(count)\n"),
    "variable of a function": ("undefined-name", "def f():\n    y = 1\nprint(y)\n", "def f():\n    global y\n    y = 1\nf()\nprint(y)\n"),
    "variable of an earlier round": (
        "undefined-name",
        "print(last)\n",
        "for i in range(3):\n    if i:\n        print(last)\n    last = i\n",
    ),
    "variable that is deleted": ("undefined-name", "print(y)\n", "def f():\n    def g():\n        return y\n    y = 1\n    g()\n    del y\n"),
    "variable made by others": ("undefined-name", "print(made)\n", "globals()['made'] = 1\nprint(made)\n"),
    "variable that a star may bring": ("undefined-name", "print(made)\n", "from helper import *\nprint(made)\n"),
    "variable of another Python": ("undefined-name", "xrange(3)\n", "import sys\nif sys.version_info < (3,):\n    xrange(3)\n"),
    "type in quotes": ("undefined-name", "def f(): return g()\n", "def f(x: 'Gone') -> 'Gone':\n    y: Gone = x\n    return y\n"),
    "tried": (
        "dead-api",
        "import keras\nfrom keras.utils import multi_gpu\n",
        "import keras\ntry:\n    from keras.utils import multi_gpu\nexcept ImportError:\n    multi_gpu = None\n",
    ),
    "asked for its version": (
        "dead-api",
        "import tensorflow as tf\ntf.keras.utils.gone\n",
        "import tensorflow as tf\nif tf.__version__ < '2':\n    tf.keras.utils.gone\n",
    ),
    "TensorFlow 1": ("tf1-session", "import tensorflow as tf\ntf.placeholder(tf.float32)\n", "import tensorflow as tf\ntf.compat.v1.placeholder(tf.float32)\n"),
    "session": (
        "tf1-session",
        "import tensorflow as tf\ntf.compat.v1.train.AdamOptimizer().minimize(loss)\ntf.compat.v1.Session()\n",
        "import tensorflow as tf\ntf.compat.v1.Session()\n",
    ),
    "method": ("dead-api", PLAIN + "model.fit_generator(g)\n", PLAIN + "def fit_generator(): pass\nmodel.fit_generator(g)\n"),
    "method that a dialect serves": ("dead-api", PLAIN + "model.fit_generator(g)\n", PLAIN + "multi_gpu_model(model).fit_generator(g)\n"),
    "argument": ("dead-api", PLAIN + "keras.optimizers.SGD(lr=0.1)\n", PLAIN + "keras.optimizers.SGD(learning_rate=0.1)\n"),
    "argument of Keras 1": (
        "dead-api",
        PLAIN + "keras.layers.Conv2D(1, 2, border_mode='same')\n",
        PLAIN + "keras.layers.Embedding(3, output_dim=4)\n",
    ),
    "checkpoint": (
        "dead-api",
        PLAIN + "keras.callbacks.ModelCheckpoint('a/{epoch}')\n",
        PLAIN + "keras.callbacks.ModelCheckpoint('a/{epoch}.keras')\n",
    ),
    "weights": ("dead-api", PLAIN + "model.save_weights('a.h5')\n", PLAIN + "model.save_weights('a.weights.h5')\n"),
    "saved": ("dead-api", PLAIN + "model.save('a')\n", PLAIN + "model.save('a.keras')\n"),
    "decay": ("dead-api", PLAIN + "keras.optimizers.SGD(0.1, decay=0.1)\n", PLAIN + "keras.optimizers.SGD(0.1, decay=0)\n"),
    "estimator": ("dead-api", "import tensorflow as tf\n" + UNSERVED, "import tensorflow as tf\ntf.estimator.Estimator(f)\n"),
    "log": (
        "dead-api",
        KERAS + "model.compile('sgd', 'mse', metrics=['accuracy'])\nhistory = model.fit(x, y).history\nhistory['acc']\n",
        KERAS + "model.compile('sgd', 'mse', metrics=['acc'])\nhistory = model.fit(x, y).history\nhistory['acc']\n",
    ),
    "monitored": (
        "dead-api",
        KERAS + "model.compile('sgd', 'mse', metrics=['accuracy'])\nkeras.callbacks.EarlyStopping(monitor='val_acc')\n",
        KERAS + "model.compile('sgd', 'mse', metrics=['accuracy'])\nkeras.callbacks.EarlyStopping(monitor='val_accuracy')\n",
    ),
}  # fmt: skip


def found(
    folder: Path,
    text: str,
    rule: str,
    workers: int = 2,
    batch: str = "global",
    scaled: bool = False,
) -> list[Finding]:
    script = folder / "train.py"
    script.write_text(text)
    loaded = program.load(script, workers, batch, scaled)
    return [finding for finding in diagnosis.findings(loaded) if finding.rule == rule]


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", CASES)
def test_a_rule_finds_its_line_and_leaves_a_near_script_alone(tmp_path: Path, name: str) -> None:
    rule, wrong, right = CASES[name]
    findings = found(tmp_path, wrong, rule)
    faulty = [number for number, line in enumerate(wrong.splitlines(), 1) if "pass" not in line]
    assert faulty[-1] in {finding.line for finding in findings}, findings
    assert all(
        finding.says and finding.fix and not finding.says.endswith(".") for finding in findings
    )
    assert not found(tmp_path, right, rule)


def test_every_rule_has_a_case() -> None:
    """Words in the files of rules which look like names of them are all in the table."""
    table = {rule for rule, _, _ in CASES.values()}
    folder = resources.files("syrtos.doctor.rules")
    text = "".join(file.read_text() for file in folder.iterdir() if file.name.endswith(".py"))
    assert {word for word in table if f'"{word}"' not in text} == set()
    told = {f.rule for case in CASES.values() for f in diagnosis.findings(_parsed(case[1]))}
    assert told == table


def _parsed(text: str) -> program.ScriptProgram:
    from syrtos.doctor.script import parse

    return program.ScriptProgram([parse(Path("train.py"), text)])


def test_options_of_the_run_change_what_is_found(tmp_path: Path) -> None:
    rated = PLAIN + "opt = keras.optimizers.SGD(0.1)\n"
    assert not found(tmp_path, rated, "lr-not-scaled")
    assert found(tmp_path, rated, "lr-not-scaled", batch="per-worker")
    assert not found(tmp_path, rated, "lr-not-scaled", batch="per-worker", scaled=True)
    odd = KERAS + "model.fit(x, y, batch_size=6)\n"
    assert not found(tmp_path, odd, "batch-not-divisible", workers=3)
    (finding,) = found(tmp_path, odd, "batch-not-divisible", workers=4)
    assert "2" in finding.says
    assert "8" in finding.fix
    assert finding.severity is Severity.SLOW
    (finding,) = found(tmp_path, odd.replace("=6", "=64"), "batch-not-divisible", workers=3)
    assert finding.severity is Severity.NOTE
    assert "22" in finding.says
    assert not found(tmp_path, odd, "batch-not-divisible", workers=4, batch="per-worker")


def test_keras_2_itself_keeps_its_names(tmp_path: Path) -> None:
    text = "import tf_keras\nmodel = tf_keras.Sequential()\nmodel.fit_generator(g)\ntf_keras.optimizers.SGD(lr=0.1)\n"
    assert not found(tmp_path, text, "dead-api")
    assert found(tmp_path, text.replace("tf_keras", "keras"), "dead-api")


def test_modules_beside_a_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from . import inner\n")
    (tmp_path / "parts" / "inner.py").write_text("import numpy as np\n\nnp.save('a', [])\n")
    (tmp_path / "helper.py").write_text("import parts\n\nopen('b', 'w')\n")
    (tmp_path / "broken.py").write_text("def :\n")
    (tmp_path / "unused.py").write_text("open('c', 'w')\n")
    findings = found(tmp_path, "import helper\nimport broken\n", "file-on-every-rank")
    assert {(f.path.name, f.line) for f in findings} == {("helper.py", 3), ("inner.py", 3)}


@pytest.mark.needs("tensorflow")
def test_names_that_have_a_replacement_are_gone() -> None:
    """In the installed Keras and TensorFlow; `keras.backend` is there with few of its names, and the line is for the rest."""
    table = tomllib.loads(resources.files("syrtos.doctor").joinpath("replaced.toml").read_text())[
        "names"
    ]
    assert [path for path in table if public_names.missing_part(path) is None] == ["keras.backend"]
    assert names.instead("tensorflow.keras.utils.np_utils.to_categorical") == "`keras.utils`"


@pytest.mark.needs("tensorflow")
def test_a_misspelt_name_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    text = (
        "import tensorflow as tf\nimport numpy as np\nimport nunpy\ntf.keras.optimizers.Adamm\nnp.zeors\nnp.linalg.nrom\n"
        "learning_rate = 1\nlearning_rat\ntf.reduce_sun\npd.DataFrame\n"
    )
    fixes = [
        finding.fix
        for rule in ("dead-api", "undefined-name", "missing-package")
        for finding in found(tmp_path, text, rule)
    ]
    meant = (
        "tf.keras.optimizers.Adam",
        "numpy.zeros",
        "numpy.linalg.norm",
        "tf.reduce_sum",
        "learning_rate",
        "import pandas as pd",
        "numpy",
    )
    assert [fix.split("`")[1] for fix in fixes] == list(meant)


def test_a_missing_package_is_told_by_the_name_that_pip_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "is_installed", lambda name: name in ("keras", "tensorflow"))
    text = "import keras\nimport cv2\nimport urllib2\ndef unused():\n    import yaml\nif a:\n    import PIL\nimport helper\n"
    (tmp_path / "helper.py").write_text("import sklearn.svm\n")
    findings = found(tmp_path, text, "missing-package")
    assert [(f.path.name, f.line, f.severity, f.fix) for f in findings] == [
        ("helper.py", 1, Severity.BREAKS, "`pip install scikit-learn`"),
        ("train.py", 2, Severity.BREAKS, "`pip install opencv-python`"),
        ("train.py", 3, Severity.BREAKS, "import `urllib.request`"),
        ("train.py", 5, Severity.NOTE, "`pip install PyYAML`"),
        ("train.py", 7, Severity.NOTE, "`pip install pillow`"),
    ]


def test_packages_that_functions_need_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import keras\nkeras.callbacks.TensorBoard()\nkeras.utils.plot_model(model)\nkeras.utils.load_img('a')\n"
        "model.save_weights('a.weights.h5')\nkeras.utils.image_dataset_from_directory('a', format='grain')\n"
    )
    monkeypatch.setattr(needs, "is_installed", lambda name: name in ("keras", "tensorflow"))
    told = [(f.line, f.fix) for f in found(tmp_path, text, "missing-package")]
    packages = ("tensorboard", "pydot", "pillow", "h5py")
    assert told == [(line, f"`pip install {name}`") for line, name in enumerate(packages, 2)]
    monkeypatch.setattr(needs, "is_installed", lambda name: True)
    assert not found(tmp_path, text, "missing-package")


def test_a_backend_that_is_there_is_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import keras\n"
    monkeypatch.setattr(needs, "is_installed", lambda name: name != "tensorflow")
    monkeypatch.setattr(
        needs, "propose_backend", lambda absent, command: f"JAX for {absent}: {command}"
    )
    for name, expected in (("", 1), ("tensorflow", 1), ("jax", 0)):
        monkeypatch.setattr(
            needs.settings,
            "environment",
            lambda name=name: {"KERAS_BACKEND": name, "KERAS_HOME": str(tmp_path)},
        )
        assert len(found(tmp_path, text, "absent-backend")) == expected
    monkeypatch.setattr(needs.settings, "environment", lambda: {"KERAS_HOME": str(tmp_path)})
    (finding,) = found(tmp_path, text, "absent-backend", workers=3)
    assert finding.fix == "JAX for tensorflow: syrtos run -n 3 train.py"
    assert not found(
        tmp_path, "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n" + text, "absent-backend"
    )
    monkeypatch.setattr(needs, "is_installed", lambda name: True)
    assert not found(tmp_path, text, "absent-backend")


@pytest.mark.parametrize(
    "module",
    [
        "numpy", "numpy.random", "numpy.linalg", "numpy.fft", "jax", "jax.numpy", "jax.nn", "jax.lax", "jax.random", "torch.nn", "torch.nn.functional",
        "torch.optim", "torch.cuda", "torch.linalg", "torch.utils.data", "torch.nn.init",
    ],
)  # fmt: skip
def test_no_name_that_a_module_has_is_taken_for_a_misspelt_one(module: str) -> None:
    pytest.importorskip(module.partition(".")[0])
    there = [name for name in dir(importlib.import_module(module)) if not name.startswith("_")]
    assert [name for name in there if public_names.missing_part(f"{module}.{name}")] == []


@pytest.mark.needs("tensorflow")
def test_public_names_are_those_of_the_installed_packages() -> None:
    for path in (
        "keras.layers.Dense",
        "tensorflow.keras.optimizers.Adam",
        "tensorflow.io.gfile.GFile",
        "tensorflow.losses.MeanSquaredError",
        "tensorflow.python.x",
    ):
        assert public_names.missing_part(path) is None
    for path in (
        "numpy.frobnicate",
        "numpy.ndarray.copyy",
        "torch.npu",
        "torch.multiprocessing.get_context",
    ):
        assert (
            public_names.missing_part(path) is None
        )  # like no other; of a class; short; from another package
    assert public_names.missing_part("keras.layers.core.Dense") == "keras.layers.core"
    assert public_names.missing_part("tensorflow.Session") == "tensorflow.Session"
    assert public_names.is_of_tensorflow_1("tensorflow.placeholder")
    assert "keras.utils.to_categorical" in public_names.near("keras.utils.np_utils.to_categorical")
