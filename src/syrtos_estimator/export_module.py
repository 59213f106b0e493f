"""The module `tensorflow.estimator.export`."""

from __future__ import annotations

from syrtos_estimator import names

__getattr__ = names.module_getattr(lambda: names.namespace().export)
