"""Random operations that draw by a counter in a variable: the numbers of TensorFlow's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition import draw_counters
from syrtos.keras.tensorflow.partition.exchanges import NoExchanges
from syrtos.keras.tensorflow.partition.partitioner import GraphRun, Partitioner
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import RowPlacement, Value

pytestmark = pytest.mark.needs("tensorflow")

ROWS = (12, 1, 12, 7)


def drawn_by_kernel(kind: str, dtype: tf.DType, bounds: dict[str, tf.Tensor]) -> Any:
    def draw(rows: tf.Tensor) -> tf.Tensor:
        given = bounds or {"dtype": dtype}
        return getattr(tf.raw_ops, kind)(shape=[rows, 5], seed=4, seed2=-3, **given)

    return tf.function(draw)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, dtype) for kind in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal") for dtype in (tf.float16, tf.float32, tf.float64)),
        ("RandomUniformInt", tf.int32),
        ("RandomUniformInt", tf.int64),
    ],
)  # fmt: skip
def test_a_counter_in_a_variable_draws_what_the_kernel_draws(kind: str, dtype: tf.DType) -> None:
    of_integers = {"minval": tf.constant(-3, dtype), "maxval": tf.constant(50, dtype)}
    bounds = of_integers if dtype.is_integer else {}
    draw = drawn_by_kernel(kind, dtype, bounds)
    graph = draw.get_concrete_function(tf.TensorSpec([], tf.int32)).graph
    (op,) = (op for op in graph.get_operations() if op.type == kind)
    counters = draw_counters.DrawCounters(graph)
    generator = counters.of(op)
    assert generator is not None
    assert counters.of(op) is generator
    for rows in ROWS:
        key, counter = generator.begin()
        found = draw_counters.draw_stateless(
            draw_counters.STATELESS[kind], tf.constant([rows, 5]), key, counter, [*bounds.values()], dtype
        )  # fmt: skip
        generator.advance(counter, rows * 5)
        np.testing.assert_array_equal(found, draw(tf.constant(rows)))


def test_a_copy_of_a_graph_draws_by_the_counter_and_moves_it_on() -> None:
    draw = drawn_by_kernel("RandomUniform", tf.float32, {})
    graph = draw.get_concrete_function(tf.TensorSpec([], tf.int32)).graph
    counters = draw_counters.DrawCounters(graph)
    operations = list(tf_internals_emission.in_topological_order(graph))

    @tf.function
    def copied(rows: tf.Tensor) -> list[tf.Tensor]:
        waiting = [op for op in operations if op.type != "Placeholder"]
        found = {graph.inputs[0].ref(): rows}
        return tf_internals_emission.copy_operations(
            graph, waiting, found, counters.copies_of(waiting)
        )

    for rows in ROWS:
        np.testing.assert_array_equal(copied(tf.constant(rows))[0], draw(tf.constant(rows)))


def test_an_operation_without_seeds_keeps_its_own_counter() -> None:
    def draw() -> tf.Tensor:
        return tf.raw_ops.RandomUniform(shape=[3], dtype=tf.float32)

    made: Any = tf.function(draw).get_concrete_function()
    graph = made.graph
    (op,) = (op for op in graph.get_operations() if op.type == "RandomUniform")
    assert draw_counters.DrawCounters(graph).of(op) is None


@pytest.mark.parametrize(
    ("draw", "kinds"),
    [
        (lambda rows: tf.random.normal([rows], seed=1), []),
        (lambda rows: tf.random.gamma([rows], 1.0, seed=1), ["RandomGamma"]),
        (lambda rows: tf.random.shuffle(tf.range(rows), seed=1), ["RandomShuffle"]),
        (lambda rows: tf.function(tf.random.normal)([rows], seed=1), ["RandomStandardNormal"]),
        (
            lambda rows: tf.cond(
                rows > 1, lambda: tf.random.uniform([rows], seed=1), lambda: tf.zeros([rows])
            ),
            ["RandomUniform"],
        ),
        (
            lambda rows: tf.switch_case(
                rows, [lambda: tf.random.uniform([2], seed=1), lambda: tf.zeros([2])]
            ),
            ["RandomUniform"],
        ),
        (lambda rows: tf.cond(rows > 1, lambda: rows, lambda: -rows), []),
    ],
)
def test_draws_that_keep_their_own_counter_are_named(draw: Any, kinds: list[str]) -> None:
    graph = tf.function(draw).get_concrete_function(tf.TensorSpec([], tf.int32)).graph
    found = draw_counters.DrawCounters(graph).uncounted(graph.get_operations())
    assert found == kinds


def draw_everywhere(x: Any) -> list[Any]:
    """Draws by kernels with a counter of their own: by operations, in calls, a branch and loops."""
    rows: Any = tf.shape(x)[0]
    normal = tf.function(lambda: tf.random.normal([rows, 2], seed=1))
    called = tf.function(lambda: normal() + tf.random.uniform([rows, 2], seed=2))
    branch = tf.cond(
        x[0, 0] > 0, lambda: tf.random.normal([rows], seed=3), lambda: tf.random.uniform([rows], seed=4)
    )  # fmt: skip
    _, loop = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, sums: (i + 1, sums + called()),
        [0, tf.zeros_like(x)],
    )
    return [
        tf.random.gamma([rows], 1.0, seed=5),
        tf.random.poisson([3], 2.0, seed=6),
        tf.random.shuffle(x, seed=7),
        tf.random.categorical(x, 2, seed=8),
        called() + called(),
        branch,
        loop,
    ]


def test_two_branches_of_a_program_draw_by_one_kernel() -> None:
    spec = tf.TensorSpec([None, 2], tf.float32)
    plain = tf.function(draw_everywhere, autograph=False, input_signature=[spec])
    traced: Any = tf.function(draw_everywhere, autograph=False).get_concrete_function(spec)
    graph = traced.graph

    @tf.function(input_signature=[spec], autograph=False)
    def two_branches(x: Any) -> list[tf.Tensor]:
        total = tf.shape(x)[0]
        partitioner = Partitioner(Share(0, total, total), NoExchanges(), Report())
        partitioner.counters, partitioner.shares_draws = counters, True

        def emit(partitioner: Partitioner, given: Value) -> list[tf.Tensor]:
            run = GraphRun(partitioner, graph, [given])
            run.emit_all()
            return partitioner.wholes(run.outputs())

        return tf.cond(
            total > 1,
            lambda: emit(partitioner, Value(x, RowPlacement(0))),
            lambda: emit(partitioner.of_whole_batch(), Value(x)),
        )

    counters = draw_counters.DrawCounters(graph)
    assert counters.uncounted(graph.get_operations())
    rng = np.random.default_rng(0)
    for rows in (*ROWS, 1, 3):
        x = tf.constant(rng.normal(size=(rows, 2)), tf.float32)
        for found, expected in zip(two_branches(x), plain(x), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)  # sums are fused otherwise
