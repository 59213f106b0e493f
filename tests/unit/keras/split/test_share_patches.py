"""Clipping parts of gradients by the norms of the whole, against Keras's own clipping of the whole."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.keras import activate
from syrtos.keras.split import share_patches

WHOLE = [np.linspace(-1, 1, 8, dtype="float32"), np.linspace(0, 3, 6, dtype="float32")]


class TwoWorkers(InProcessCommunicator):
    """This worker, and one whose parts of the gradients are the other halves."""

    def allreduce(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """The sums of squares of both."""
        return np.asarray(array) + np.array(
            [np.square(whole[len(whole) // 2 :]).sum() for whole in WHOLE], "float32"
        )


@pytest.mark.parametrize(
    "clip", [{"clipnorm": 0.5}, {"global_clipnorm": 0.7}, {"global_clipnorm": 100.0}]
)
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "float32")])
def test_parts_are_clipped_by_the_norm_of_the_whole(
    clip: dict[str, Any], dtypes: tuple[str, str]
) -> None:
    world.init()
    activate.variables_only()
    optimizer = keras.optimizers.SGD(**clip)
    expected: Any = optimizer._clip_gradients([tf.constant(whole) for whole in WHOLE])
    parts = [
        tf.cast(whole[: len(whole) // 2], dtype) for whole, dtype in zip(WHOLE, dtypes, strict=True)
    ]
    found = share_patches._clip_in_parts(optimizer, parts, TwoWorkers())
    for part, whole, dtype in zip(found, expected, dtypes, strict=True):
        assert part.dtype == dtype
        tolerance = 1e-2 if "bfloat16" in dtypes else 1e-6
        np.testing.assert_allclose(
            tf.cast(part, "float32"), whole[: len(whole) // 2], rtol=tolerance
        )


def test_a_norm_that_is_not_finite_makes_all_of_them_nan() -> None:
    world.init()
    activate.variables_only()
    optimizer = keras.optimizers.SGD(global_clipnorm=1.0)
    found = share_patches._clip_in_parts(
        optimizer, [tf.constant([np.inf]), tf.constant([1.0])], TwoWorkers()
    )
    assert all(np.isnan(part.numpy()).all() for part in found)
