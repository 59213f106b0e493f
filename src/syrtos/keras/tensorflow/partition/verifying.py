"""`syrtos verify` on TensorFlow: one process too computes a function's first step, and both are compared.

The step is traced once. The program is run as it is, on the whole batch, and as it is emitted for
each worker's rows, from the same state. What differs is rounding, or a defect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import Array, ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.keras.replica import state
from syrtos.keras.split import comparison, noted_gradients
from syrtos.keras.split.comparison import Row
from syrtos.keras.split.verdicts import Verifying
from syrtos.keras.tensorflow import tf_internals
from syrtos.keras.tensorflow.input import Numbered, TensorShare
from syrtos.keras.tensorflow.partition.batch_rows import BatchRows
from syrtos.keras.tensorflow.partition.partitioner import Partitioner
from syrtos.keras.tensorflow.partition.shadow import ComparedOperations, ShadowPartitioner
from syrtos.keras.tensorflow.partition.step import PartitionedStep, why_whole

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, Variable
    from syrtos.keras.tensorflow.types import BatchStep, GradientLike


@dataclasses.dataclass
class _Outcome:
    """The outputs of a step, its gradients, and its variables after it."""

    outputs: object
    gradients: Sequence[tf.Tensor]
    variables: Sequence[Array]


def verify_step(
    model: Model, session: Session, step: BatchStep, name: str, batch: Numbered | TensorShare
) -> None:
    """Computes a step both ways, without an effect on the model, and notes all differences.

    All workers call this together.

    Args:
        model: whose step it is.
        session: the workers.
        step: computes a whole batch, as one process would.
        name: the name of the step.
        batch: the whole batch, or this worker's rows of it.
    """
    noted, compared, operations = _Noted(), list[Row](), ComparedOperations()

    def partitioner(*given: Any) -> Partitioner:
        if not session.options.verifies_operations:
            return Partitioner(*given)
        made = ShadowPartitioner(*given)
        made.compared = operations
        return made

    partitioned = PartitionedStep(noted.watching(step), session, False, lambda _: None, partitioner)
    runs_eagerly = bool(getattr(model, "run_eagerly", False)) or tf.config.functions_run_eagerly()
    rows = partitioned.rows_of(batch)
    whole = why_whole(rows, runs_eagerly)
    if not whole:
        try:
            compared = list(_compare(model, session.comm, partitioned, noted, name, batch, rows))
        except Exception:
            if not partitioned.failure:
                raise
            whole = partitioned.failure
    bound = comparison.bound_of(comparison.precision_of(model))
    compared += operations.differing(session.comm, bound)
    Verifying.note(
        compared,
        session,
        model.name,
        name,
        bound,
        whole,
        gathered=partitioned.report.describe_whole(),
        operations=len(operations.found),
    )


class _Noted:
    """The gradients that optimizers are given while a step is traced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._gradients: list[tf.Tensor] = []
        self._following: set[int] = set()

    def watching(self, step: BatchStep) -> BatchStep:
        """Wraps a step so that it returns its gradients too."""

        def compute(batch: object) -> object:
            self.names, self._gradients = [], []
            outer = noted_gradients.noting()

            def note(*given: Any) -> None:
                if outer is not None:
                    outer.note(*given)
                self._note(*given)

            with noted_gradients.noting_gradients(note, updates=True):
                outputs = step(batch)
            return outputs, self._gradients

        return compute

    def follows(self, variable: tf.Variable) -> bool:
        """Returns whether a variable follows from gradients, which are compared themselves."""
        # An optimizer may enlarge the rounding of a gradient near zero.
        return id(variable) in self._following

    def _note(
        self, optimizer: Optimizer, grads: Sequence[GradientLike], variables: Sequence[Variable]
    ) -> None:
        graph = tf.compat.v1.get_default_graph()
        for index, gradient in enumerate(grads):
            tensor = None if gradient is None else tf.convert_to_tensor(gradient)
            # Of an update in a branch the graph of the step has no gradients.
            if tensor is None or tensor.graph is not graph:
                continue
            self._gradients.append(tensor)
            known = index < len(variables)
            self.names.append(state.name_of(variables[index]) if known else f"gradient {index + 1}")
        if graph is not None and len(self._gradients):
            following = [*variables, *state.variables_of(optimizer)]
            self._following |= {id(getattr(each, "value", each)) for each in following}


def _compare(
    model: Model,
    comm: Communicator,
    partitioned: PartitionedStep,
    noted: _Noted,
    name: str,
    batch: Numbered | TensorShare,
    rows: BatchRows,
) -> Iterator[Row]:
    """Yields a row for each gradient, number or output, and changed variable."""
    program = partitioned.trace(rows)
    variables = program.concrete.variables
    before = [tf_internals.value_of(variable) for variable in variables]

    def outcome(found: Any) -> _Outcome:
        outputs, gradients = found
        after = [tf_internals.value_of(variable).numpy() for variable in variables]
        for variable, value in zip(variables, before, strict=True):
            tf_internals.set_value(variable, value)
        return _Outcome(outputs, gradients, after)

    one = outcome(program.concrete(*rows.whole_tensors()))
    emitted = tf.function(
        lambda given: partitioned.emit(program, partitioned.rows_of(given)), autograph=False
    )
    together = outcome(emitted(batch))
    for row in _rows(model, noted, name, variables, before, one, together):
        # What one worker alone has computed otherwise is different too.
        worst = comm.allreduce(np.asarray(row.difference, np.float64), ReduceOp.MAX)
        yield dataclasses.replace(row, difference=float(worst))


def _rows(
    model: Model,
    noted: _Noted,
    name: str,
    variables: Sequence[tf.Variable],
    before: Sequence[tf.Tensor],
    one: _Outcome,
    together: _Outcome,
) -> Iterator[Row]:
    given = [[gradient.numpy() for gradient in each.gradients] for each in (one, together)]
    yield from comparison.compare_gradients(noted.names, *given)
    pairs = zip(_numbers(one.outputs), _numbers(together.outputs), strict=True)
    kind = "output" if name == "predict_step" else "log"
    names = comparison.names_of(one.outputs, _numbers(one.outputs))
    for title, (a, b) in zip(names, pairs, strict=True):
        yield comparison.compare_values(kind, title, a.numpy(), b.numpy())
    known = [*state.of_model(model), *state.of_metrics(model)]
    titles = {id(getattr(each, "value", each)): state.name_of(each) for each in known}
    values = zip(variables, before, one.variables, together.variables, strict=True)
    for variable, start, a, b in values:
        is_kept = not _is_number(start) or noted.follows(variable)
        if is_kept or np.array_equal(start.numpy(), a, equal_nan=start.dtype.is_floating):
            continue
        title = titles.get(id(variable)) or state.name_of(variable)
        yield comparison.compare_values("variable", title, a, b, start.numpy())


def _numbers(outputs: object) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(outputs, expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf) and _is_number(leaf)]


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer
