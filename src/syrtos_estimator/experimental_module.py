"""The module `tensorflow.estimator.experimental`."""

from __future__ import annotations

from syrtos_estimator import names

__getattr__ = names.module_getattr(lambda: names.namespace().experimental)
