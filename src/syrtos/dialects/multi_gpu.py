"""`keras.utils.multi_gpu_model`, gone since Keras 2.4.

Under `syrtos run` any model trains on all workers.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from syrtos.comm import world
from syrtos.dialects import keras2


class _Symbolic(Protocol):
    """A symbolic tensor of Keras 2 or Keras 3."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The static shape."""
        ...

    @property
    def dtype(self) -> object:
        """The dtype, or its name."""
        ...

    @property
    def name(self) -> str:
        """The layer's name; in Keras 2 with the number of the output."""
        ...


class _Functional(Protocol):
    """A model with inputs and outputs."""

    @property
    def inputs(self) -> Sequence[_Symbolic]:
        """The symbolic inputs."""
        ...

    def __call__(self, inputs: object, /) -> _Symbolic | list[_Symbolic] | tuple[_Symbolic, ...]:
        """Returns the symbolic output or outputs."""
        ...


def install() -> None:
    """Puts the function into the modules that scripts import it from, if these are imported."""
    for name in ("keras", "keras._tf_keras.keras", "tf_keras"):
        package = sys.modules.get(name.partition(".")[0])
        # Without `utils` the package is being imported, and this is called again.
        if hasattr(package, "utils"):
            importlib.import_module(name).utils.multi_gpu_model = multi_gpu_model


def multi_gpu_model(
    model: _Functional,
    gpus: int | Sequence[int] | None = None,
    cpu_merge: bool = True,
    cpu_relocation: bool = False,
) -> _Functional:
    """Returns a model that trains ``model``'s weights on all workers of the run.

    Either of the two may be saved. As in the original, ``layers[-2]`` of a model with one output is
    ``model``.

    Args:
        model: built, with inputs and outputs.
        gpus: number of GPUs, or a list of them.
        cpu_merge: accepted.
        cpu_relocation: accepted; weights stay where they are.

    Raises:
        ValueError: fewer than two GPUs are asked for.
    """
    del cpu_merge, cpu_relocation
    count = len(gpus) if isinstance(gpus, list | tuple) else gpus
    if isinstance(count, int) and count < 2:
        raise ValueError(
            "For multi-gpu usage to be effective, call `multi_gpu_model` with `len(gpus) >= 2`."
            f" Received: `gpus={gpus}`"
        )
    _say(count if isinstance(count, int) else None, world.current().world.size)
    keras2.install()
    keras = keras2.keras()
    inputs = [
        keras.Input(batch_shape=x.shape, dtype=x.dtype, name=x.name.split(":")[0])
        for x in model.inputs
    ]
    outputs = model(inputs if len(inputs) > 1 else inputs[0])
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    names = getattr(model, "output_names", [None] * len(outputs))
    # So that layers of the new model have the names of the outputs, by which `fit` takes losses and
    # metrics.
    merged = [
        keras.layers.Activation("linear", name=n, dtype=out.dtype)(out)
        for n, out in zip(names, outputs, strict=True)
    ]
    return keras.Model(
        inputs if len(inputs) > 1 else inputs[0], merged if len(merged) > 1 else merged[0]
    )


@functools.cache
def _say(asked: int | None, size: int) -> None:
    if world.current().world.rank:
        return
    here = (
        f"on the {size} workers of this run"
        if size > 1
        else "on one worker: start it with `syrtos run -n N`"
    )
    asked_for = f" ({asked} GPUs were asked for)" if asked not in (None, size) else ""
    print(
        f"syrtos: multi_gpu_model trains {here}{asked_for}. Today plain `model.fit` is enough.",
        file=sys.stderr,
    )
