"""The module `tensorflow.keras.estimator`."""

from __future__ import annotations

from syrtos_estimator import names

__getattr__ = names.module_getattr(names.keras_namespace)
