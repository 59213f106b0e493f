"""The program of a process that trains by Keras's own data parallelism, for `syrtos verify --of keras`.

Keras 3.16 wraps a model in torch's `DistributedDataParallel` where `torch.distributed` has begun.
Run as ``python -m syrtos.keras.torch.keras_ddp FOLDER RANK SIZE WORDS``: WORDS are those of
`Program.words`. The process ends after the first batch of the first `fit`. Of one process it keeps
the weights and logs; of several rank 0 compares its own with them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import keras
import numpy as np
from packaging.version import Version
from safetensors.numpy import load_file, save_file

from syrtos.comm.arrays import Array
from syrtos.errors import ConfigurationError
from syrtos.keras.split.comparison import Row, bound_of, compare_values, precision_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model

# What the one process leaves for the others, and what these leave for the command.
KEPT, COMPARED = "one-process.safetensors", "compared.json"


class FirstBatch(keras.callbacks.Callback):
    """Ends the process after the first batch."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        super().__init__()
        self._folder, self._rank, self._size = folder, rank, size
        self._before: dict[str, Array] = {}

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if self._size == 1:
            self._before = {f"before {name}": value for name, value in self._weights().items()}

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> NoReturn:
        found = self._weights()
        found |= {f"log {name}": np.asarray(value) for name, value in (logs or {}).items()}
        if self._size == 1:
            save_file(found | self._before, self._folder / KEPT)
        elif self._rank == 0:
            self._compare(found)
        if self._size > 1:
            import torch

            torch.distributed.barrier()
        # The rest of the script is of no interest, and may write files.
        os._exit(0)

    def _weights(self) -> dict[str, Array]:
        variables: Sequence[Any] = cast("Model", self.model).variables
        return {v.path: np.asarray(keras.ops.convert_to_numpy(v)) for v in variables}

    def _compare(self, found: dict[str, Array]) -> None:
        one, model = load_file(self._folder / KEPT), cast("Model", self.model)
        rows: list[Row] = []
        for name, value in found.items():
            is_log = name.startswith("log ")
            before = None if is_log else one.get(f"before {name}")
            kind = "log" if is_log else "variable"
            rows.append(compare_values(kind, name.removeprefix("log "), one[name], value, before))
        line = {
            "model": model.name,
            "step": "train_step",
            "bound": bound_of(precision_of(model)),
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        (self._folder / COMPARED).write_text(json.dumps(line))


def _rows_of(tree: object, rank: int, size: int) -> object:
    """Returns a rank's rows of a batch, as even a part as can be."""
    import torch

    return keras.tree.map_structure(
        lambda leaf: torch.tensor_split(leaf, size)[rank] if torch.is_tensor(leaf) else leaf, tree
    )


def _wrap_fit(
    original: Callable[..., object], folder: Path, rank: int, size: int
) -> Callable[..., object]:
    """Wraps `fit`: each rank takes its rows of a batch, and the process ends after the first."""

    @functools.wraps(original)
    def fit(self: keras.Model, *args: object, **kwargs: object) -> object:
        given = inspect.signature(original).bind(self, *args, **kwargs)
        given.arguments["callbacks"] = [FirstBatch(folder, rank, size)]
        step = self.train_step
        # Keras keeps no record of it: a function is no layer and no variable.
        object.__setattr__(self, "train_step", lambda data: step(_rows_of(data, rank, size)))
        return original(*given.args, **given.kwargs)

    return fit


def _refuse_second_group(*_: object, **__: object) -> NoReturn:
    raise ConfigurationError(
        "`syrtos verify --of keras` starts `torch.distributed` itself. Take"
        " `init_process_group` out of the script for it."
    )


def main(folder: str, rank: str, size: str, *words: str) -> None:
    """Runs the script.

    Raises:
        ConfigurationError: this Keras has no data parallelism of its own on torch.
    """
    if keras.backend.backend() != "torch" or Version(keras.__version__) < Version("3.16.0.dev0"):
        raise ConfigurationError(
            "`syrtos verify --of keras` needs Keras 3.16 and `KERAS_BACKEND=torch`: earlier ones"
            f" have no data parallelism of their own there. Received: Keras {keras.__version__} on"
            f" {keras.backend.backend()}."
        )
    # Only now: where another backend was chosen it may be missing.
    import torch

    if int(size) > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=int(size)
        )
    torch.distributed.init_process_group = _refuse_second_group
    # Where the script sets none, the two runs must begin alike.
    keras.utils.set_random_seed(0)
    keras.Model.fit = _wrap_fit(keras.Model.fit, Path(folder), int(rank), int(size))
    is_module = words[0] == "-m"
    sys.argv = list(words[is_module:])
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ConfigurationError as error:
        sys.exit(f"syrtos: {error}")
