"""Random numbers in maps of `tf.data`: of the same distribution, by record and epoch, whatever threads do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.keras.tensorflow import tf_internals_pipelines, tf_internals_random
from syrtos.keras.tensorflow.reproducible import drawn_by_record, is_seed_of_run

COUNT = 400
# What TensorFlow takes for a global seed where an operation has a seed and a script sets no global one.
NO_GLOBAL_SEED = 87654321
GENERATOR = tf.random.Generator.from_seed(1)
SEEDS = keras.random.SeedGenerator(1)
DRAWS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda n: tf.random.uniform([3], 1.0, 2.0),
    "integers": lambda n: tf.random.uniform([3], 5, 9, tf.int32),
    "normal": lambda n: tf.random.normal([3], 4.0),
    "truncated_normal": lambda n: tf.random.truncated_normal([3], 4.0),
    "shuffle": lambda n: tf.random.shuffle(tf.range(50)),
    "categorical": lambda n: tf.random.categorical(tf.constant([[0.0, 1.0, 2.0]]), 3),
    "gamma": lambda n: tf.random.gamma([2], tf.constant([1.0, 5.0]), 3.0),
    "poisson": lambda n: tf.random.poisson([2], tf.constant([1.0, 50.0])),
    "box": lambda n: tf.image.sample_distorted_bounding_box([64, 64, 3], [[[0.0, 0.0, 1.0, 1.0]]], min_object_covered=0.1)[1],
    "flip": lambda n: tf.image.random_flip_left_right(tf.reshape(tf.range(300.0), [10, 10, 3])),
    "contrast": lambda n: tf.image.random_contrast(tf.reshape(tf.range(300.0), [10, 10, 3]), 0.5, 1.5),
    "crop": lambda n: tf.image.random_crop(tf.reshape(tf.range(300.0), [10, 10, 3]), [5, 5, 3]),
    "generator": lambda n: GENERATOR.uniform([3], 1.0, 2.0),
    "generator_normal": lambda n: GENERATOR.normal([3], 4.0),
    "seeds_of_a_generator": lambda n: GENERATOR.make_seeds(1) // 2**32,
    "keras": lambda n: keras.random.normal([3], 4.0, seed=SEEDS),
}  # fmt: skip


@pytest.fixture(autouse=True)
def unseeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As `syrtos run` leaves a script that sets no seed."""
    monkeypatch.setenv(settings.SEED_VARIABLE, "2026")
    world.init()
    tf.random.set_seed(settings.common_seed())
    yield
    tf.random.set_seed(None)  # pyright: ignore[reportArgumentType] - what it is at first


def mapped(function: Callable[..., Any], calls: int | None = tf.data.AUTOTUNE) -> tf.data.Dataset:
    return drawn_by_record(tf.data.Dataset.map)(tf.data.Dataset.range(COUNT), function, calls)


def epoch(dataset: tf.data.Dataset) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(record) for record in dataset])


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_of_the_same_distribution(name: str) -> None:
    theirs, ours = tf.data.Dataset.range(COUNT).map(DRAWS[name]), mapped(DRAWS[name])
    assert ours.element_spec == theirs.element_spec
    assert not tf_internals_pipelines.is_left_to_threads(ours)
    expected, first, second = epoch(theirs), epoch(ours), epoch(ours)
    assert not np.array_equal(first, second)
    assert len(np.unique(first.reshape(COUNT, -1), axis=0)) > 1
    spread = expected.std(axis=0).max()
    np.testing.assert_allclose(first.mean(axis=0), expected.mean(axis=0), atol=spread / 3, rtol=0.1)
    np.testing.assert_allclose(first.std(axis=0), expected.std(axis=0), atol=spread / 3, rtol=0.3)


def test_draws_in_branches_and_functions() -> None:
    """Each has a number of its own."""

    @tf.function
    def inner() -> tf.Tensor:
        return tf.random.uniform([])

    def draw(n: Any) -> Any:
        if n % 2 == 0:  # noqa: SIM108 - autograph
            chosen = tf.random.uniform([])
        else:
            chosen = tf.random.uniform([]) + 1.0
        return tf.stack([tf.random.uniform([]), chosen, inner()])

    found = epoch(mapped(draw))
    assert len(np.unique(found)) == found.size
    assert (found[1::2, 1] > 1).all()


@pytest.mark.parametrize("loop", ["while", "map_fn", "vectorized_map"])
def test_draws_in_loops_are_left_alone(loop: str) -> None:
    """One seed would give the same number in each round."""

    def draw(n: tf.Tensor) -> Any:
        if loop == "map_fn":
            return tf.map_fn(lambda _: tf.random.uniform([]), tf.zeros([4]))
        if loop == "vectorized_map":
            return tf.vectorized_map(lambda _: tf.random.uniform([]), tf.zeros([4]))
        return tf.while_loop(
            lambda i, found: i < 4,
            lambda i, found: (i + 1, tf.concat([found[1:], [tf.random.uniform([])]], 0)),
            (0, tf.zeros([4])),
        )[1]

    dataset = mapped(draw)
    found = epoch(dataset)
    assert len(np.unique(found)) == found.size
    assert tf_internals_pipelines.is_left_to_threads(dataset)


@pytest.mark.parametrize("calls", [None, 1])
def test_what_a_seeded_script_draws_one_by_one_is_tensorflows(calls: int | None) -> None:
    tf.random.set_seed(5)
    theirs = epoch(tf.data.Dataset.range(COUNT).map(DRAWS["uniform"]))
    tf.random.set_seed(5)
    np.testing.assert_array_equal(epoch(mapped(DRAWS["uniform"], calls)), theirs)


def test_an_unseeded_script_draws_anew_in_each_epoch() -> None:
    unseeded = mapped(DRAWS["uniform"], None)
    assert not np.array_equal(epoch(unseeded), epoch(unseeded))
    seeded = mapped(lambda n: tf.random.uniform([], seed=4), None)
    np.testing.assert_array_equal(epoch(seeded), epoch(seeded))


def test_elements_of_several_parts() -> None:
    pairs = tf.data.Dataset.range(4).map(lambda n: (n, {"a": n}))
    found = drawn_by_record(tf.data.Dataset.map)(
        pairs, lambda n, d: (n + d["a"], tf.random.uniform([])), num_parallel_calls=2
    )
    assert [int(n) for n, _ in found] == [0, 2, 4, 6]


@pytest.mark.parametrize("kind", ["operation", "generator"])
def test_one_seed_is_one_stream(kind: str) -> None:
    """As for an image and its mask, in one map or in two."""

    def draw_with(seed: int) -> Callable[[Any], Any]:
        if kind == "operation":
            return lambda n: tf.random.uniform([], seed=seed)
        generator = keras.random.SeedGenerator(seed)
        return lambda n: keras.random.uniform([], seed=generator)

    image, mask, other = (mapped(draw_with(seed)) for seed in (4, 4, 5))
    for found in zip(*(epoch(each) for each in (image, mask, other)), strict=True):
        assert found[0] == found[1] != found[2]
    first, second = draw_with(4), draw_with(4)
    together = epoch(mapped(lambda n: tf.stack([first(n), second(n)])))
    np.testing.assert_array_equal(together[:, 0], together[:, 1])


def test_one_generator_in_two_maps_draws_anew() -> None:
    """As for two views of an image."""
    generator = keras.random.SeedGenerator(4)
    one, other = (mapped(lambda n: keras.random.uniform([], seed=generator)) for _ in range(2))
    assert (epoch(one) != epoch(other)).all()
    assert (epoch(mapped(DRAWS["uniform"])) != epoch(mapped(DRAWS["uniform"]))).all()


def test_functions_of_the_script_keep_their_own_draws() -> None:
    """A `tf.function` that is a graph already draws by record too, and can be called elsewhere later."""

    @tf.function
    def noise(n: tf.Tensor) -> tf.Tensor:
        return tf.random.uniform([]) + 0.0 * tf.cast(n, tf.float32)

    def of(n: tf.Tensor) -> tf.Tensor:
        return noise(n)

    first, second = mapped(of), mapped(noise)
    assert not tf_internals_pipelines.is_left_to_threads(first)
    assert not tf_internals_pipelines.is_left_to_threads(second)
    assert 0 <= float(noise(tf.constant(3, tf.int64))) < 1


def python(n: tf.Tensor) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda value: value, [n], tf.int64), [])


LEFT: dict[str, tuple[Callable[[tf.data.Dataset], tf.data.Dataset], bool]] = {
    "python": (lambda d: d.map(python, tf.data.AUTOTUNE).batch(2).prefetch(1), True),
    "python one by one": (lambda d: d.map(python).batch(2), False),
    "python, then a filter": (lambda d: d.map(python, tf.data.AUTOTUNE).filter(lambda n: n > 2).batch(2), False),
    "a generator one by one": (lambda d: d.map(lambda n: tf.cast(n, tf.float32) + GENERATOR.uniform([])).prefetch(1), False),
    "of files": (lambda d: d.interleave(lambda n: d.map(lambda m: tf.random.uniform([]), 2)), True),
    "no draws": (lambda d: d.map(lambda n: n + 1, 2).interleave(lambda n: d.map(lambda m: m + n, 2), num_parallel_calls=2), False),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_threads(name: str) -> None:
    pipeline, expected = LEFT[name]
    assert tf_internals_pipelines.is_left_to_threads(pipeline(tf.data.Dataset.range(4))) is expected


def test_a_function_may_name_its_argument_as_keras_does(caplog: pytest.LogCaptureFixture) -> None:
    """TensorFlow makes graphs of functions whose arguments it can't name, and warns of it."""
    epoch(mapped(lambda _: tf.random.uniform([3])))
    assert "valid node name" not in caplog.text


def test_a_seed_of_an_operation_means_what_it_means_without_a_global_seed() -> None:
    """The global seed that syrtos sets for a script that sets none does not count beside it; one of the script's does."""
    tf_internals_random.draw_from_given_seeds(is_seed_of_run)
    wanted = tf.raw_ops.RandomUniform(
        shape=[4], dtype=tf.float32, seed=NO_GLOBAL_SEED, seed2=3
    ).numpy()
    tf.random.set_seed(settings.common_seed())
    assert tf.random.uniform([4], seed=3).numpy().tolist() == wanted.tolist()
    tf.random.set_seed(settings.common_seed() + 12345)
    assert tf.random.uniform([4], seed=3).numpy().tolist() != wanted.tolist()


def test_outside_of_a_run_each_global_seed_is_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.SEED_VARIABLE)
    assert not is_seed_of_run(settings.common_seed())
