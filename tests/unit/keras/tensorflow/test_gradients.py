"""What an optimizer is given: gradients in every form that Keras takes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from syrtos.comm import world
from syrtos.keras.tensorflow.reduction import Reduction

_VALUES: Any = ((1.0, 2.0), (3.0, 4.0))
_INDICES: Any = (0, 2)
FORMS: dict[str, Any] = {
    "array": np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]),
    "list": [[1, 2], [0, 0], [3, 4]],
    "rows": tf.IndexedSlices(_VALUES, _INDICES),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("no_session")
def test_gradients_are_reduced_in_any_form_that_keras_takes(together: Any, form: str) -> None:
    world.init()
    variable = keras.Variable(np.zeros((3, 2), np.float32))

    def run(comm: Any) -> Any:
        (reduced,) = Reduction(comm).apply([FORMS[form]], [variable])
        assert reduced is not None
        return reduced.dtype.name, tf.convert_to_tensor(reduced).numpy().tolist()

    assert together(2, run) == [("float32", [[1, 2], [0, 0], [3, 4]])] * 2
