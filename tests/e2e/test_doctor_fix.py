"""Scripts of old APIs before and after `syrtos doctor --write`: what they were on two workers, they are as one plain process, and on two workers again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forking

BEGIN = """
import json
import keras
import numpy as np
"""
DATA = """
keras.utils.set_random_seed(3)
x = np.random.RandomState(0).rand(192, 6).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 3).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")])
"""
RESULT = """print("RESULT", json.dumps(np.concatenate([np.ravel(w) for w in model.get_weights()]).tolist()))\n"""

HOROVOD_FIT = f"""{BEGIN}import horovod.keras as hvd
hvd.init()
{DATA}mine, labels = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]
rate = 0.05 * hvd.size()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=rate, momentum=0.9))
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(rate, 2),
    hvd.callbacks.LearningRateScheduleCallback(rate, multiplier=lambda epoch: 0.5 ** epoch, start_epoch=2),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("model.keras"))
model.fit(mine, labels, batch_size=16, epochs=4, shuffle=False, callbacks=callbacks, verbose=1 if hvd.rank() == 0 else 0)
if hvd.rank() == 0:
    {RESULT}"""

COUNTED_STEPS = f"""{BEGIN}import tensorflow as tf
import horovod.tensorflow.keras as hvd
hvd.init()
{DATA}mine, labels = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]
data = tf.data.Dataset.from_tensor_slices((mine, labels)).batch(8).repeat()
steps = len(mine) // 8
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
model.fit(data, steps_per_epoch=steps, epochs=2, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
if hvd.rank() == 0:
    {RESULT}"""

HOROVOD_LOOP = f"""{BEGIN}import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
{DATA}data = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).repeat().batch(16)
loss, optimizer = keras.losses.BinaryCrossentropy(), keras.optimizers.Adam(0.01 * hvd.size())

@tf.function
def step(features, labels, first):
    with tf.GradientTape() as tape:
        value = loss(labels, model(features, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return value

for number, (features, labels) in enumerate(data.take(40 // hvd.size())):
    value = step(features, labels, number == 0)
    if number % 10 == 0 and hvd.rank() == 0:
        print("loss", float(value))
if hvd.rank() == 0:
    {RESULT}"""

SMDDP_LOOP = f"""{BEGIN}import tensorflow as tf
import smdistributed.dataparallel.tensorflow as dist
dist.init()
{DATA}data = tf.data.Dataset.from_tensor_slices((x, y)).shard(dist.size(), dist.rank()).batch(16)
optimizer, loss = keras.optimizers.RMSprop(0.005), keras.losses.MeanSquaredError()

@tf.function
def step(features, labels, first):
    with tf.GradientTape() as tape:
        value = loss(labels, model(features))
    tape = dist.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
    if first:
        dist.broadcast_variables(model.variables, root_rank=0)
    return dist.oob_allreduce(value)

for epoch in range(3):
    for number, (features, labels) in enumerate(data):
        value = step(features, labels, epoch == number == 0)
if dist.rank() == 0:
    {RESULT}"""

MULTI_GPU = f"""{BEGIN}{DATA}
from keras.utils import multi_gpu_model

def batches():
    while True:
        for start in range(0, len(x), 32):
            yield x[start:start + 32], y[start:start + 32]

parallel = multi_gpu_model(model, gpus=2)
parallel.compile(optimizer=keras.optimizers.SGD(lr=0.1, decay=0.01), loss="binary_crossentropy")
parallel.fit_generator(batches(), 6, 3, verbose=0)
{RESULT}"""

ESTIMATOR = f"""{BEGIN}{DATA}
import tensorflow as tf

def train_input():
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat()

def test_input():
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(32)

model.compile("adam", "mse")
estimator = tf.keras.estimator.model_to_estimator(keras_model=model, model_dir="trained")
train_spec = tf.estimator.TrainSpec(train_input, max_steps=20)
test_spec = tf.estimator.EvalSpec(test_input, steps=None)
tf.estimator.train_and_evaluate(estimator, train_spec, test_spec)
loss = estimator.evaluate(test_input)["loss"]
print("RESULT", json.dumps([float(loss)]))
"""


def doctor(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("syrtos"), "doctor", *options, script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def result(done: subprocess.CompletedProcess[str]) -> np.ndarray:
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return np.array(json.loads(line.removeprefix("RESULT ")))


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HOROVOD_FIT, id="horovod-fit"),
        pytest.param(COUNTED_STEPS, id="steps-of-a-part", marks=pytest.mark.long),
        pytest.param(HOROVOD_LOOP, id="horovod-loop", marks=pytest.mark.long),
        pytest.param(SMDDP_LOOP, id="smddp-loop", marks=pytest.mark.long),
        pytest.param(MULTI_GPU, id="multi-gpu", marks=pytest.mark.long),
        pytest.param(ESTIMATOR, id="estimator", marks=pytest.mark.slow),
    ],
)
def test_a_converted_script_computes_the_same(tmp_path: Path, text: str) -> None:
    folders = [tmp_path / name for name in ("before", "plain", "workers")]
    for folder in folders:
        folder.mkdir()
    script = tmp_path / "train.py"
    script.write_text(text)
    before = result(forking.run(forking.syrtos_run(tmp_path / "run", 2, script), cwd=folders[0]))
    written = doctor(script, "--write", "-n", "2")
    assert written.returncode == 0, written.stdout + written.stderr
    assert not any(
        word in script.read_text() for word in ("hvd", "dist.", "multi_gpu_model", "estimator")
    )
    plain = result(forking.run([script], cwd=folders[1]))
    workers = result(forking.run(forking.syrtos_run(tmp_path / "again", 2, script), cwd=folders[2]))
    for after in (plain, workers):
        assert np.linalg.norm(after - before) <= 1e-5 * np.linalg.norm(before)
