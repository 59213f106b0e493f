"""Recurrent layers on two devices of one process: equal gradients, and no exchange inside of the loop over the time steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax")

# Prints the program and the gradients of a layer with the patch or without.
SCRIPT = """
import json, sys
import jax, keras, numpy as np
from keras.src.layers.rnn.rnn import RNN
from syrtos.keras.jax import recurrent

keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
if sys.argv[1] == "patched":
    RNN.inner_loop = recurrent.inner_loop(RNN.inner_loop)
keras.utils.set_random_seed(1)
layers = keras.layers
class OfScript(layers.SimpleRNNCell):
    def call(self, sequence, states, training=False):
        out, states = super().call(sequence, states, training=training)
        return out - keras.ops.mean(out, axis=0), states
layer = {
    "lstm": lambda: layers.LSTM(5),
    "dropout": lambda: layers.GRU(5, dropout=0.3, recurrent_dropout=0.2),
    "stacked": lambda: layers.RNN([layers.LSTMCell(4, dropout=0.2), layers.SimpleRNNCell(5)]),
    "images": lambda: layers.ConvLSTM1D(3, 2),
    "of the script": lambda: layers.RNN(OfScript(5)),
}[sys.argv[2]]()
rows = int(sys.argv[3])
shape = (rows, 6, 7, 2) if sys.argv[2] == "images" else (rows, 6, 3)
x = np.random.default_rng(0).normal(size=shape).astype("float32")
layer.build(shape)
weights = [v.value for v in layer.trainable_variables]
others = [v.value for v in layer.non_trainable_variables]

def loss(weights, x):
    out, _ = layer.stateless_call(weights, others, x, training=True)
    return (out ** 2).mean()

mesh = keras.distribution.distribution().device_mesh.backend_mesh
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch" if rows % 2 == 0 else None))
compiled = jax.jit(jax.grad(loss)).lower(weights, jax.device_put(x, sharding)).compile()
found = compiled(weights, jax.device_put(x, sharding))
print(json.dumps({"program": compiled.as_text(), "gradients": [np.asarray(each).tolist() for each in found]}))
"""


def run(kind: str, layer: str, rows: int) -> tuple[str, list[list[float]]]:
    env = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", SCRIPT, kind, layer, str(rows)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["program"], found["gradients"]


def exchanges_in_loops(program: str) -> int:
    """The number of exchanges in computations that are the body of a loop."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", program))
    parts = re.split(r"\n(?=(?:ENTRY )?%?[\w.\-]+ \()", program)
    return sum(part.count("all-reduce(") for part in parts if part.lstrip("%").split(" ")[0] in bodies)


@pytest.mark.parametrize("layer", ["lstm", "dropout", "stacked", "images"])
def test_gradients_are_equal_and_exchanged_once(layer: str) -> None:
    plain, wanted = run("plain", layer, 8)
    patched, found = run("patched", layer, 8)
    assert exchanges_in_loops(plain) > 0, "XLA has learnt it: the patch can go"
    assert exchanges_in_loops(patched) == 0
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize(("layer", "rows"), [("of the script", 8), ("lstm", 7)])
def test_what_may_mix_rows_or_is_uneven_is_left_to_xla(layer: str, rows: int) -> None:
    _, wanted = run("plain", layer, rows)
    _, found = run("patched", layer, rows)
    assert found == wanted
