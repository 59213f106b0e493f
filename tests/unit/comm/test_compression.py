"""Codecs: what arrives in the end is what was given, but for what each worker still keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syrtos.comm.communicator import Array
from syrtos.comm.compression import Codec, ErrorMemory, codec_of
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import ConfigurationError
from syrtos.settings import Options

CODECS = ["bf16", "fp16", "powersgd:2"]
SHAPES = [(40, 30), (30,), (3, 3, 8, 16)]
WEIGHTS = [3.0, 1.0, 2.0]
STEPS = 20


def codec(name: str) -> Codec:
    found = codec_of(name)
    assert found is not None
    return found


def gradients(rank: int, step: int) -> list[Array]:
    random = np.random.default_rng([rank, step])
    return [random.normal(size=shape).astype(np.float32) for shape in SHAPES]


def train(
    comm: InProcessCommunicator, name: str, weights: list[float]
) -> tuple[list[list[Array]], list[ErrorMemory]]:
    memories = [ErrorMemory(np.zeros(shape, np.float32)) for shape in SHAPES]
    found = []
    for step in range(STEPS):
        means = codec(name).mean(comm, gradients(comm.rank, step), weights[comm.rank], memories)
        found.append([mean.reshape(shape) for mean, shape in zip(means, SHAPES, strict=True)])
    return found, memories


@pytest.mark.parametrize("name", CODECS)
def test_what_was_not_sent_comes_later(together: Any, name: str) -> None:
    workers = together(3, lambda comm: train(comm, name, WEIGHTS))
    shares = np.array(WEIGHTS) / sum(WEIGHTS)
    for index in range(len(SHAPES)):
        given = sum(
            share * gradients(rank, step)[index].astype(np.float64)
            for step in range(STEPS)
            for rank, share in enumerate(shares)
        )
        arrived = sum(means[index].astype(np.float64) for means in workers[0][0])
        kept = sum(
            share * memories[index].residual
            for share, (_, memories) in zip(shares, workers, strict=True)
        )
        # sums of 16-bit numbers are rounded once more, which no worker keeps
        np.testing.assert_allclose(
            arrived + kept, given, atol=0.2 if name == "bf16" else 0.03 if name == "fp16" else 1e-4
        )


@pytest.mark.parametrize("name", CODECS)
def test_all_workers_get_the_same(together: Any, name: str) -> None:
    first, *others = together(3, lambda comm: train(comm, name, WEIGHTS)[0])
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("name", CODECS)
def test_a_worker_without_samples_adds_nothing_and_keeps_what_it_has(
    together: Any, name: str
) -> None:
    def play(comm: InProcessCommunicator) -> tuple[Any, Any]:
        memories = [ErrorMemory(np.zeros(shape, np.float32)) for shape in SHAPES]
        idle = comm.rank == 1
        given = [np.full_like(g, np.nan) if idle else g for g in gradients(0, 0)]
        means = codec(name).mean(comm, given, 0.0 if idle else 2.0, memories)
        return means, memories

    alone = together(1, play)[0][0]
    for rank, (means, memories) in enumerate(together(2, play)):
        assert all(np.array_equal(a, b) for a, b in zip(means, alone, strict=True))
        assert rank == 0 or not any(memory.residual.any() for memory in memories)


@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_finite_is_seen_and_not_kept(together: Any, name: str) -> None:
    def play(comm: InProcessCommunicator) -> tuple[bool, bool]:
        memories = [ErrorMemory(np.zeros(shape, np.float32)) for shape in SHAPES]
        wrong = gradients(comm.rank, 0)
        wrong[0][3, 4] = np.nan
        with np.errstate(invalid="ignore"):
            seen = codec(name).mean(comm, wrong, 1.0, memories)
            after = codec(name).mean(comm, gradients(comm.rank, 1), 1.0, memories)
        return bool(np.isfinite(seen[0]).all()), all(np.isfinite(part).all() for part in after)

    assert together(2, play) == [(False, True)] * 2


def test_what_16_bits_can_t_hold_comes_in_parts_and_infinity_at_once(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> list[list[float]]:
        memory = ErrorMemory(np.zeros(2, np.float32))
        given = [np.array(pair, np.float32) for pair in ((1e5, 1.0), (0.0, np.inf), (0.0, 1.0))]
        with np.errstate(over="ignore", invalid="ignore"):
            return [codec("fp16").mean(comm, [pair], 1.0, [memory])[0].tolist() for pair in given]

    assert together(2, play) == [[[65504.0, 1.0], [34496.0, np.inf], [0.0, 1.0]]] * 2


def test_powersgd_is_exact_where_the_rank_is_enough(together: Any) -> None:
    left, right = np.random.default_rng(1).normal(size=(2, 40, 2)).astype(np.float32)

    def play(comm: InProcessCommunicator) -> Array:
        memories = [ErrorMemory(np.zeros((40, 40), np.float32))]
        return codec("powersgd:2").mean(comm, [left @ right.T], 1.0, memories)[0]

    for mean in together(2, play):
        np.testing.assert_allclose(mean, left @ right.T, atol=1e-4)


@pytest.mark.parametrize(
    "text", ["int8", "topk:0.1", "powersgd", "powersgd:0", "powersgd:x", "bf16:2"]
)
def test_what_is_no_codec_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="`compress` must be none, auto, bf16"):
        Options(compress=text)


@pytest.mark.parametrize("other", [{"servers": 1}, {"exchange": "framework"}])
def test_what_can_t_be_compressed_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="can't be given with"):
        Options(compress="bf16", **other)
