"""Losses and means of Keras 3 as one process would compute them. A share's loss counts by its samples, so that plain means are right as they are."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from syrtos.keras.patching import Method, Patch
from syrtos.keras.tensorflow import patching as common
from syrtos.keras.tensorflow.step import current_step

_LOSS = "keras.src.losses.loss"
_METRICS = "keras.src.metrics.reduction_metrics"
_REPLICAS = "The original divides by replicas, also in a loop without `strategy.run`, in which nothing is summed."
_VALUE = "A number without a weight is a value of the whole batch, e.g. a loss that a custom `train_step` tracks."


def _reduce_values(original: Method) -> Method:
    def reduce_values(values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size") -> Any:
        step = current_step()
        if step is None or not values.shape.rank:
            return original(values, sample_weight, reduction)
        if reduction == "sum":
            return original(values, sample_weight, reduction) / tf.cast(step.fraction(), values.dtype)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = tf.cast(sample_weight, values.dtype)
            total = tf.cast(common.total_over_workers(step, weights), values.dtype)
            return tf.math.divide_no_nan(tf.reduce_sum(values), total * tf.cast(step.fraction(), values.dtype))
        return original(values, sample_weight, reduction)

    return reduce_values


def _apply_mask(original: Method) -> Method:
    """A masked mean divides by the unmasked elements of the global batch, not of the share."""

    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: str | None) -> Any:
        result = original(sample_weight, mask, dtype, reduction)
        if mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return result
        return common.masked_globally(result, mask)

    return apply_mask


PATCHES = [
    Patch(_LOSS, "reduce_values", _reduce_values, "Sums and means by weight are made those of the global batch."),
    Patch(_LOSS, "apply_mask", _apply_mask, "A masked mean divides by the unmasked elements of the global batch."),
    Patch(_LOSS, "scale_loss_for_distribution", common.only_in_strategy_run, _REPLICAS),
    Patch(_LOSS, "unscale_loss_for_distribution", common.only_in_strategy_run, _REPLICAS),
    Patch(f"{_METRICS}:Mean", "update_state", common.counting_share, _VALUE),
    Patch(f"{_METRICS}:Sum", "update_state", common.counting_share, _VALUE),
]
