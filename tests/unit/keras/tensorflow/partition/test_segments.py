"""Programs that are cut into segments which XLA compiles compute what they compute as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras  # noqa: F401 - it comes before what patches it
import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.segments import CompiledPrograms

Build = Callable[[tf.Tensor], list[Any]]
ROWS = np.arange(-3.0, 5.0, dtype="float32")


def exchanged(x: tf.Tensor) -> tf.Tensor:
    """Stands for an exchange: Python doubles the numbers."""
    return tf.ensure_shape(tf.numpy_function(lambda a: 2 * a, [x], x.dtype), x.shape)


class Program:
    """A function that computes what ``build`` adds in compiled segments."""

    def __init__(self, build: Build) -> None:
        self.report = Report()
        programs = CompiledPrograms()
        self.function = tf.function(
            lambda x: programs.add(lambda: build(x), self.report), autograph=False
        )
        self._build = build

    def check(self, x: np.ndarray = ROWS) -> None:
        expected = [np.asarray(each) for each in self._build(tf.constant(x))]
        for found, other in zip(self.function(tf.constant(x)), expected, strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-6)

    @property
    def segments(self) -> int:
        graph: Any = self.function.get_concrete_function(tf.TensorSpec([None], tf.float32)).graph
        return sum(map(tf_internals_emission.is_compiled_call, graph.get_operations()))


def test_a_program_is_cut_at_its_exchanges() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        first = tf.sin(x) + 1
        second = exchanged(first) + x
        return [exchanged(second) * tf.reduce_sum(first), tf.cos(x)]

    program = Program(build)
    program.check()
    assert program.segments == 3
    assert program.report.describe_uncompiled().startswith("PyFunc in ")


def test_assignments_and_reads_keep_their_order() -> None:
    state = tf.Variable(tf.constant(1.0))

    def build(x: tf.Tensor) -> list[tf.Tensor]:
        state.assign(2.0)
        before = state.read_value() + 0
        state.assign_add(tf.reduce_sum(exchanged(x)))
        after = state.read_value() * before
        state.assign(after + tf.reduce_sum(exchanged(x * after)))
        return [before, after, state.read_value() + 0]

    program = Program(build)
    program.check()
    assert float(state) == float(build(tf.constant(ROWS))[-1])


def test_what_only_looks_at_numbers_cuts_nothing() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        tf.debugging.assert_less(x, 9.0)
        tf.print("numbers", x, output_stream="file:///dev/null")
        return [tf.exp(x) * 2]

    program = Program(build)
    program.check()
    assert program.segments == 1
    with pytest.raises(tf.errors.InvalidArgumentError):
        program.function(tf.constant(ROWS + 9))


def test_sizes_that_data_decides() -> None:
    def build(x: tf.Tensor) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            kept = tf.boolean_mask(tf.stack([x, 2 * x], 1), x > 0)
            total = tf.reduce_sum(tf.stop_gradient(exchanged(x))) * tf.reduce_mean(kept**2)
        return [kept, tape.gradient(total, x)]

    program = Program(build)
    for shift in (0, 1, 2):
        program.check(ROWS + shift)


def test_lists_of_tensors_of_other_segments() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        array = tf.TensorArray(tf.float32, 3, element_shape=[])
        for i in range(3):
            array = array.write(i, tf.reduce_sum(x) * i)
        factor = tf.reduce_sum(exchanged(x))
        return [array.write(0, factor).stack(), factor + 1]

    Program(build).check()


def test_a_branch_with_exchanges_takes_its_turn_among_them() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        first = exchanged(x)
        branch = tf.cond(tf.reduce_sum(x) > 0, lambda: exchanged(x * 3), lambda: exchanged(x + 1))
        return [first + 1, branch, exchanged(x + 2)]

    program = Program(build)
    program.check()
    graph: Any = program.function.get_concrete_function(tf.TensorSpec([None], tf.float32)).graph
    branch = next(op for op in graph.get_operations() if op.type == "If")
    last = [op for op in graph.get_operations() if op.type == "PyFunc"][-1]
    assert "PyFunc" in _types_before(branch)
    assert "If" in _types_before(last)


def _types_before(op: tf.Operation) -> set[str]:
    found: set[tf.Operation] = set()
    waiting = [op]
    while waiting:
        one = waiting.pop()
        others = {*(tensor.op for tensor in one.inputs), *one.control_inputs} - found
        found |= others
        waiting += others
    return {each.type for each in found}


def test_what_passes_on_what_it_prints() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        return [tf.exp(tf.compat.v1.Print(x, [x])) * 2]

    Program(build).check()


def test_a_loop_with_an_exchange_is_not_compiled() -> None:
    def build(x: tf.Tensor) -> list[tf.Tensor]:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, total + exchanged(x)

        _, total = tf.while_loop(lambda i, _: i < 3, body, (tf.constant(0), tf.zeros_like(x)))
        return [total * 2]

    Program(build).check()


def test_text_and_tables_stay_outside() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.0
    )

    def build(x: tf.Tensor) -> list[tf.Tensor]:
        words = tf.where(x > 0, "a", "b")
        return [table.lookup(words) * tf.tanh(x)]

    Program(build).check()
