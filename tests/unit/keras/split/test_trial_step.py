"""What is said of errors of a step that was tried, and the size of the batches that it is tried on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from syrtos.keras.split.trial_step import bytes_of_batch, describe_error


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("{{function_node __wrapped__AddV2_device_/job:x}} Incompatible shapes. [Op:AddV2]", "ValueError: Incompatible shapes. [Op:AddV2]"),
        ("in user code:\n\n    File \"a.py\", line 3, in f\n\n    TypeError: no rows\n", "TypeError: no rows"),
        ("Exception encountered when calling A.call().\n\n\x1b[1mno rows\x1b[0m\n\nArguments received by A.call():", "ValueError: no rows"),
        ("", "ValueError: "),
    ],
)  # fmt: skip
def test_the_cause_is_named(message: str, said: str) -> None:
    assert describe_error(ValueError(message)) == said


def test_the_bytes_of_a_batch_are_those_of_leaves_with_one_shape() -> None:
    dense, ragged = (
        np.zeros((4, 3), np.float32),
        SimpleNamespace(shape=(4, None), dtype=np.dtype(np.int64)),
    )
    assert bytes_of_batch([dense, ragged, None]) == 48
