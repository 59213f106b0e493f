"""These tests work with Keras on TensorFlow, each file also where it is run alone; without TensorFlow on torch or JAX."""

import importlib.util

from syrtos.keras import backend

if importlib.util.find_spec("tensorflow"):
    import syrtos.keras.tensorflow  # noqa: F401 - chooses the backend
elif importlib.util.find_spec("torch"):
    from syrtos.keras.torch.variables import Torch

    backend.use(Torch(), unless_chosen=True)
else:
    from syrtos.keras.jax.variables import Jax

    backend.use(Jax(), unless_chosen=True)
