"""One error of two kinds."""

from __future__ import annotations

import pytest
import tensorflow as tf

from syrtos.data.sources import BadRecord
from syrtos.errors import DataError, OutOfStepError, SyrtosError
from syrtos.keras.tensorflow.op_errors import of_tensorflow


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (OutOfStepError("workers differ"), tf.errors.FailedPreconditionError),
        (DataError("no data"), tf.errors.UnknownError),
        (BadRecord(3, "a.csv", 17, "half a line"), tf.errors.UnknownError),
    ],
)
def test_ours_is_theirs_too(error: SyrtosError, theirs: type[tf.errors.OpError]) -> None:
    both = of_tensorflow(error)
    assert isinstance(both, type(error))
    assert isinstance(both, theirs)
    assert str(error) in str(both)
    assert vars(error).items() <= vars(both).items()
