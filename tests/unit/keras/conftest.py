"""These tests work with Keras on TensorFlow, each file also where it is run alone."""

import syrtos.keras.tensorflow  # noqa: F401 - chooses the backend
