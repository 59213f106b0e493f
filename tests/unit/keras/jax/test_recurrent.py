"""Recurrent layers on two devices of one process: equal gradients, and no exchange inside of the loop over the time steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from registry import QUICK_XLA

pytest.importorskip("jax")

# Prints programs and gradients of layers, without the patch and with it.
SCRIPT = """
import json, sys
import jax, keras, numpy as np
from keras.src.layers.rnn.gru import GRU
from keras.src.layers.rnn.lstm import LSTM
from keras.src.layers.rnn.rnn import RNN
from syrtos.keras.jax import distribution, recurrent

keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
layers = keras.layers

class OfScript(layers.SimpleRNNCell):
    def call(self, sequence, states, training=False):
        out, states = super().call(sequence, states, training=training)
        return out - keras.ops.mean(out, axis=0), states

class StackedRNNCells(layers.StackedRNNCells):
    def build(self, shape):
        super().build(shape)
        self.more = self.add_weight(shape=(5,), initializer="ones")

    def call(self, inputs, states, training=False):
        out, states = super().call(inputs, states, training=training)
        return out * self.more, states

LAYERS = {
    "lstm": lambda: layers.LSTM(5),
    "gru": lambda: layers.GRU(5),
    "uneven": lambda: layers.LSTM(5),
    "dropout": lambda: layers.GRU(5, dropout=0.3, recurrent_dropout=0.2),
    "stacked": lambda: layers.RNN([layers.LSTMCell(4, dropout=0.2), layers.SimpleRNNCell(5)]),
    "images": lambda: layers.ConvLSTM1D(3, 2),
    "cell of the script": lambda: layers.RNN(OfScript(5)),
    "stack of the script": lambda: layers.RNN(StackedRNNCells([layers.LSTMCell(4), layers.LSTMCell(5)])),
    "softmax of rows": lambda: layers.SimpleRNN(5, activation=layers.Softmax(axis=0)),
    "penalty": lambda: layers.RNN(layers.SimpleRNNCell(5, activity_regularizer="l2"), unroll=True),
    "drawn": lambda: layers.SimpleRNN(5, activation=layers.Dropout(0.5), unroll=True),
}

def compute(name):
    keras.utils.set_random_seed(1)
    layer, rows = LAYERS[name](), 7 if name == "uneven" else 8
    shape = (rows, 6, 7, 2) if name == "images" else (rows, 6, 3)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    layer.build(shape)
    weights = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    def loss(weights, x):
        out, _, penalties = layer.stateless_call(weights, others, x, training=True, return_losses=True)
        return (out ** 2).mean() + sum(penalties)

    mesh = keras.distribution.distribution().device_mesh.backend_mesh
    spec = jax.sharding.PartitionSpec("batch" if rows % 2 == 0 else None)
    x = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
    compiled = jax.jit(jax.grad(loss)).lower(weights, x).compile()
    return compiled.as_text(), [np.asarray(each).tolist() for each in compiled(weights, x)]

plain = {name: compute(name) for name in LAYERS}
for kind in (RNN, GRU, LSTM):
    kind.inner_loop = recurrent.inner_loop(vars(kind)["inner_loop"])
# Shapes of a layer that has no weights yet are found by a trace.
keras.Sequential([layers.LSTM(5)]).build((8, 6, 3))
own = compute("lstm")
with distribution.tracing_step():
    found = {name: [plain[name], compute(name)] for name in LAYERS}
print(json.dumps({**found, "function of the script": [plain["lstm"], own]}))
"""

Computed = tuple[str, list[Any]]


@pytest.fixture(scope="module")
def computed() -> dict[str, tuple[Computed, Computed]]:
    env = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {QUICK_XLA}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def exchanges_in_loops(program: str) -> int:
    """The number of exchanges in computations that are the body of a loop."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", program))
    parts = re.split(r"\n(?=(?:ENTRY )?%?[\w.\-]+ \()", program)
    return sum(
        part.count("all-reduce(") for part in parts if part.lstrip("%").split(" ")[0] in bodies
    )


@pytest.mark.parametrize("layer", ["lstm", "gru", "dropout", "stacked", "images"])
def test_gradients_are_equal_and_exchanged_once(
    computed: dict[str, tuple[Computed, Computed]], layer: str
) -> None:
    (plain, wanted), (patched, found) = computed[layer]
    assert exchanges_in_loops(plain) > 0, "XLA has learnt it: the patch can go"
    assert exchanges_in_loops(patched) == 0
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        "cell of the script",
        "stack of the script",
        "softmax of rows",
        "penalty",
        "drawn",
        "uneven",
        "function of the script",
    ],
)
def test_what_may_mix_rows_or_is_uneven_is_left_to_xla(
    computed: dict[str, tuple[Computed, Computed]], layer: str
) -> None:
    (_, wanted), (_, found) = computed[layer]
    assert found == wanted
