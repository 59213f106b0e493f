"""The module `tensorflow.estimator`, also for `from tensorflow.estimator import Estimator`."""

from __future__ import annotations

from syrtos_estimator import names

__getattr__ = names.module_getattr(names.namespace)
