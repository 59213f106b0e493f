"""Types of the steps of Keras's trainer on JAX, for annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax

# The values of a model's variables: those that are trained, the others, those of its optimizer and
# of its metrics. An evaluation has none of the optimizer's.
State = tuple[Sequence[jax.Array], ...]
# Takes a state and a batch; returns logs or outputs, and the state after it.
Step = Callable[[State, object], tuple[object, State]]
# Takes an iterator of batches in the place of a batch.
Steps = Callable[[State, Iterator[object]], tuple[object, State]]
