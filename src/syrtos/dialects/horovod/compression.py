"""The compressions of `hvd.Compression`, in which gradients travel."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """A base class of compressions; both methods are called once for each gradient."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the gradient again."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends gradients as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: object) -> tf.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends gradients as float16."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        # Without a scale: sums are accumulated in float32 and rounded once, so only values beyond
        # 65504 overflow.
        return (
            (tf.cast(tensor, tf.float16), tensor.dtype)
            if tensor.dtype.is_floating
            else (tensor, tensor.dtype)
        )

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, ctx)


class Compression:
    """The compressions that a script can choose."""

    none = NoneCompressor
    fp16 = FP16Compressor
