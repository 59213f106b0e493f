"""The systems that train a Keras model on several workers: what each asks of a script, and how it is started."""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

BIN = Path(sys.executable).parent
Edit = tuple[str, str]

# Each process takes its rows of the data, and of a batch.
SHARE = """
x, y = x[rank::size], y[rank::size]
model.fit("""
ONCE: Edit = ("model.save_weights(", "if rank == 0:\n    model.save_weights(")
RANKS = """
keras.distribution.initialize()
import os
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
keras.utils.set_random_seed(1)
"""
ACCELERATE = """
accelerator = Accelerator(cpu=True)
pairs = TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
loader = DataLoader(pairs, batch_size=BATCH // accelerator.num_processes)
model(torch.as_tensor(x[:1]))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
net, optimizer, loader = accelerator.prepare(model, optimizer, loader)
clock = Clock()
for epoch in range(EPOCHS):
    for a, b in loader:
        optimizer.zero_grad()
        loss_value = model.compute_loss(a, b, net(a, training=True))
        accelerator.backward(loss_value)
        optimizer.step()
        clock.on_train_batch_end(0)
if accelerator.is_main_process:
    model.save_weights("""


@dataclasses.dataclass(frozen=True)
class System:
    """A way to train a script on several workers.

    Attributes:
        name: as in the table.
        backend: that of Keras.
        edit: returns the script as this system wants it.
        commands: returns, for a script and a number of workers, the commands that are started at
            once, each with the variables of its environment beside those that all have.
        next_keras: whether it needs Keras 3.16, which is in an environment of its own.
    """

    name: str
    backend: str
    edit: Callable[[str], str]
    commands: Callable[[Path, int, Path], Sequence[tuple[list[str], Mapping[str, str]]]]
    next_keras: bool = False


def _unchanged(text: str) -> str:
    return text


def _edited(text: str, *edits: Edit) -> str:
    for old, new in edits:
        if old not in text:
            raise ValueError(f"The script has no {old!r}.")
        text = text.replace(old, new, 1)
    return text


def _batch(text: str) -> int:
    return int(text.partition("batch_size=")[2].partition(",")[0])


def _shared(text: str) -> str:
    """Returns the script for systems whose processes read their own part of the data."""
    batch = _batch(text)
    return _edited(
        text,
        ("keras.utils.set_random_seed(1)\n", RANKS.lstrip("\n")),
        ("\nmodel.fit(", SHARE),
        (f"batch_size={batch}", f"batch_size={batch} // size"),
        ONCE,
    )


def _jax(text: str) -> str:
    ranks = RANKS.replace(
        'os.environ["RANK"]', 'os.environ["KERAS_DISTRIBUTION_PROCESS_ID"]'
    ).replace('os.environ["WORLD_SIZE"]', 'os.environ["KERAS_DISTRIBUTION_NUM_PROCESSES"]')
    data_parallel = "keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))\n"
    # Keras gathers an array for NumPy from all processes: each of them has to save.
    all_save = (
        "name = 'after.weights.h5' if rank == 0 else 'other.weights.h5'\nmodel.save_weights(name"
    )
    shared = _shared(text).replace(ONCE[1] + '"after.weights.h5"', all_save)
    return shared.replace(RANKS.lstrip("\n"), ranks.lstrip("\n") + data_parallel)


def _ray(text: str) -> str:
    body = "".join(f"    {line}\n" if line else "\n" for line in _shared(text).splitlines())
    return (
        "import os\nimport ray\nfrom ray.train import ScalingConfig\nfrom ray.train.torch import TorchTrainer\n"
        'HERE = os.getcwd()\n\n\ndef train():\n    import os\n    import sys\n    os.chdir(HERE)\n    sys.path.insert(0, os.environ["PYTHONPATH"])\n'
        + body
        + "\n\nTorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()\n"
    )


def _accelerate(text: str) -> str:
    head, _, rest = text.partition("\nmodel.fit(")
    epochs = rest.partition("epochs=")[2].partition(",")[0]
    loop = ACCELERATE.replace("BATCH", str(_batch(rest))).replace("EPOCHS", epochs)
    imports = "import torch\nfrom accelerate import Accelerator\nfrom torch.utils.data import DataLoader, TensorDataset\n"
    head = head.replace("import keras\n", f"import keras\n{imports}", 1)
    return head + loop + rest.partition("\nmodel.save_weights(")[2]


def _syrtos(script: Path, workers: int, python: Path) -> list[tuple[list[str], Mapping[str, str]]]:
    return [([str(BIN / "syrtos"), "run", "-n", str(workers), "--run-dir", "run", str(script)], {})]


def _plain(script: Path, workers: int, python: Path) -> list[tuple[list[str], Mapping[str, str]]]:
    return [([str(python), str(script)], {})]


def _torchrun(
    script: Path, workers: int, python: Path
) -> list[tuple[list[str], Mapping[str, str]]]:
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", str(workers)]
    return [
        ([*torchrun, "--master-port", str(_free_port()), "--max-restarts", "3", str(script)], {})
    ]


def _processes(
    script: Path, workers: int, python: Path
) -> list[tuple[list[str], Mapping[str, str]]]:
    port = _free_port()
    return [
        (
            [str(python), str(script)],
            {
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"127.0.0.1:{port}",
                "KERAS_DISTRIBUTION_NUM_PROCESSES": str(workers),
                "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
            },
        )
        for rank in range(workers)
    ]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


PLAIN = {
    backend: System("one process", backend, _unchanged, _plain)
    for backend in ("tensorflow", "jax", "torch")
}
SYSTEMS = [
    *(System("syrtos", backend, _unchanged, _syrtos) for backend in PLAIN),
    System("torchrun, Keras 3.16's DDP", "torch", _shared, _torchrun, next_keras=True),
    System("Ray Train, Keras 3.16's DDP", "torch", _ray, _plain, next_keras=True),
    System("Accelerate, a loop of torch", "torch", _accelerate, _torchrun, next_keras=True),
    System("keras.distribution.DataParallel", "jax", _jax, _processes),
]
