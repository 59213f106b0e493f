"""What a user expects of a run with Keras on torch alone: see `backend_behaviours`."""

from __future__ import annotations

import time
import traceback
from typing import Any

import keras
import numpy as np
import pytest
import torch
from backend_behaviours import COMM, FOLDER, data, equal_everywhere, main, model, used, written

import syrtos
import syrtos.keras
from syrtos.errors import ConfigurationError


def loader(samples: int = 107, **options: Any) -> Any:
    rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, data(samples)))
    return torch.utils.data.DataLoader(rows, batch_size=16, **options)


def everything() -> None:
    """Uneven and single rows, validation, weights, predictions, methods for one batch."""
    built = model(keras.layers.Dense(32, "relu"))
    written("everything", built, used(built))


def data_loaders() -> None:
    """Shuffled, in processes of their own, and by epochs; a Dropout without a seed between two shuffles does not part the workers."""
    built = model(keras.layers.Dense(8, "relu"))
    history = built.fit(
        loader(shuffle=True, num_workers=2), epochs=3, validation_data=loader(33), verbose=0
    ).history
    written("data_loaders", built, history)
    dropped = model(keras.layers.Dropout(0.5))
    dropped.fit(loader(shuffle=True), epochs=3, verbose=0)
    assert equal_everywhere(dropped.get_weights()[0])


class Doubling(keras.optimizers.SGD):
    """Changes gradients in place, in a way that torch does not count."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        for gradient in grads:
            gradient.data.mul_(2.0)
        return super().apply(grads, trainable_variables)


def noted(sent: list[bool]) -> Any:
    """Makes COMM note of each exchange that it makes beside this worker whether `backward` goes on; what it was before."""
    submit = COMM.background.submit

    def noting(exchange: Any) -> Any:
        sent.append(any(frame.name == "backward" for frame in traceback.extract_stack()))
        return submit(exchange)

    COMM.background.submit = noting
    return submit


def early_gradients() -> None:
    """Buckets are sent during `backward`, unless the script may still change them; a variable without a gradient holds nobody up."""
    sent: list[bool] = []
    submit = noted(sent)
    weights = []
    for optimizer in (keras.optimizers.SGD(0.02), Doubling(0.01)):
        keras.utils.set_random_seed(3)
        built = model(keras.layers.Dense(32, "relu"), keras.layers.Dense(32, "relu"))
        built.compile(optimizer, "mse")
        built.fit(*data(), batch_size=16, epochs=1, verbose=0)
        weights.append(np.concatenate([weight.ravel() for weight in built.get_weights()]))
        assert equal_everywhere(weights[-1])
        assert sent
        assert all(sent)
        assert len(sent) % 7 == 0, "as many buckets in each of 7 steps"
        early = len(sent)
    assert len(sent) == early, "those of an optimizer of the script's own are sent by it"
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-6)
    COMM.background.submit = submit
    unused = OneOfTwo()
    unused.compile("sgd", "mse")
    unused.fit(*data(), batch_size=16, epochs=1, verbose=0)
    assert equal_everywhere(unused.last.get_weights()[0])


class Failing(torch.autograd.Function):
    """Its gradient is an error."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("in the middle of backward")


class FailsLate(keras.layers.Layer):
    """Fails in `backward`, when the gradients of the layers behind it have been made."""

    def call(self, inputs: Any) -> Any:
        return Failing.apply(inputs)


def errors_in_backward() -> None:
    """A script that catches one may save, and train again: what travels still arrives before that."""
    built = model(
        keras.layers.Dense(32),
        FailsLate(),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dense(32, "relu"),
    )
    with pytest.raises(RuntimeError, match="in the middle of backward"):
        built.fit(*data(), batch_size=16, verbose=0)
    if COMM.rank == 1:
        time.sleep(0.5)
    built.save_weights(FOLDER / "saved.weights.h5")
    again = model(keras.layers.Dense(32, "relu"))
    again.fit(*data(), batch_size=16, verbose=0)
    assert equal_everywhere(again.get_weights()[0])


def frozen_parameters() -> None:
    """Of a torch module: they have no gradient, and are left out."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    net[0].requires_grad_(requires_grad=False)
    built = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.TorchModuleWrapper(net), keras.layers.Dense(1)]
    )
    built.compile("sgd", "mse")
    built.fit(*data(), batch_size=16, verbose=0)
    assert equal_everywhere(built.get_weights()[-2])


class OneOfTwo(keras.Model):
    """Has a layer that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.last = (keras.layers.Dense(n) for n in (32, 32, 1))

    def call(self, inputs: Any) -> Any:
        self.unused(inputs)
        return self.last(self.used(inputs))


class Wrapped(keras.Model):
    """A torch module inside of a Keras model, with buffers that Keras has no variables of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
        )

    def call(self, x: Any) -> Any:
        return self.net(x)


def torch_modules() -> None:
    built = Wrapped()
    built.compile("sgd", "mse")
    if COMM.rank == 0:  # as if one worker had loaded a file
        for buffer in built.buffers():
            buffer.fill_(5)
    built.fit(*data(64), batch_size=16, epochs=2, verbose=0)
    statistics = [buffer for buffer in built.buffers() if buffer.is_floating_point()]
    assert len(statistics) == 2
    assert float(statistics[0].detach().max()) > 1
    assert all(equal_everywhere(buffer.numpy()) for buffer in statistics)
    assert equal_everywhere(built.predict(data(9)[0], verbose=0))


def synchronized_statistics() -> None:
    """With ``--sync-batchnorm`` BatchNormalization's are those of the global batch, and so are its gradients."""
    built = model(keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization())
    built.compile(keras.optimizers.SGD(0.05), "mse")
    written(
        "synchronized_statistics",
        built,
        built.fit(*data(), batch_size=16, epochs=2, verbose=0).history,
    )
    built.save(FOLDER / "synchronized.keras")
    keras.saving.load_model(FOLDER / "synchronized.keras")
    built(data(9)[0], training=True)  # in a loop of the script's own


class Arrays(keras.Sequential):
    """Predicts arrays of NumPy."""

    def predict_step(self, data: Any) -> Any:
        return super().predict_step(data).detach().numpy()


def predicted_arrays() -> None:
    made = Arrays([keras.Input((5,)), keras.layers.Dense(2)])
    made.compile("sgd", "mse")
    x = data(9)[0][:, :5]
    predicted = made.predict(x, batch_size=4, verbose=0)
    np.testing.assert_allclose(predicted, made(x).detach().numpy(), rtol=1e-5)


def compiled_steps() -> None:
    built = model()
    built.compile("sgd", "mse", jit_compile=True)
    built.fit(*data(20), verbose=0)
    assert built.jit_compile is (COMM.size == 1)


def rows_of_each_worker() -> None:
    """``--batch per-worker``: each reads rows of its own, one more than another."""
    x, y = data(80)
    mine = slice(0, 50) if COMM.rank == 0 else slice(50, 80)
    built = model()
    built.fit(x[mine], y[mine], batch_size=8, shuffle=False, epochs=2, verbose=0)
    assert built.optimizer.iterations == 14  # as many as the longest: 7 an epoch
    assert equal_everywhere(built.get_weights()[0])
    assert len(built.predict(x[mine], verbose=0)) == len(x[mine])

    class Own(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(x[k], y[k]) for k in range(24)] if COMM.rank == 0 else [])

    late = model()
    late.fit(
        torch.utils.data.DataLoader(Own(), batch_size=8), verbose=0
    )  # a worker never has a batch
    assert late.optimizer.iterations == 3
    assert equal_everywhere(late.get_weights()[0])


def native_api() -> None:
    total = syrtos.allreduce(torch.arange(3.0, dtype=torch.bfloat16) + COMM.rank)
    assert total.dtype is torch.bfloat16
    assert total.tolist() == [1.0, 3.0, 5.0]
    rows = torch.full((COMM.rank + 1, 2), float(COMM.rank), requires_grad=True)
    everyone = syrtos.allgather(rows)
    assert everyone.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    (gradient,) = torch.autograd.grad((everyone * torch.arange(3.0)[:, None]).sum(), rows)
    assert gradient.tolist() == ([[0.0, 0.0]] if COMM.rank == 0 else [[2.0, 2.0], [4.0, 4.0]])
    assert syrtos.broadcast(torch.tensor([COMM.rank]), root=1).tolist() == [1]
    received, counts = syrtos.alltoall(torch.arange(4) + 10 * COMM.rank)
    assert received.tolist() == [
        2 * COMM.rank,
        2 * COMM.rank + 1,
        10 + 2 * COMM.rank,
        11 + 2 * COMM.rank,
    ]
    assert counts.tolist() == [2, 2]
    assert len(syrtos.reducescatter(torch.ones(5))) in (2, 3)
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(layer.weight, float(COMM.rank))
    syrtos.keras.broadcast_variables(layer.parameters(), root=1)
    assert layer.weight.detach().unique().tolist() == [1.0]


class Sum(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.sum(x) * 0.0)
        return x


def added_sum() -> None:
    """A layer that adds a sum to a loss that is a mean: the first batch shows that its gradients are neither."""
    model(Sum()).fit(*data(20), verbose=0)


def refused() -> None:
    built = model()
    built.fit(*data(20), verbose=0)
    with pytest.raises(RuntimeError, match=r"must match|not broadcastable"):  # as one process says
        built.train_on_batch(np.ones((4, 8), "float32"), np.ones((3, 1), "float32"))
    with pytest.raises(ConfigurationError, match="Keras runs on torch"):
        syrtos.keras.Strategy  # noqa: B018 - its name is looked up


if __name__ == "__main__":
    main(globals())
