"""The strategy, optimizers and helpers for scripts that are explicit about distribution.

Under `syrtos run` a plain script needs none of this. No other package of syrtos imports Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syrtos.keras.explicit import DistributedOptimizer, broadcast_variables
    from syrtos.keras.tensorflow.explicit import DistributedGradientTape
    from syrtos.keras.tensorflow.strategy import Strategy

__all__ = ["DistributedGradientTape", "DistributedOptimizer", "Strategy", "broadcast_variables"]

_HOMES = {
    "DistributedOptimizer": "explicit",
    "broadcast_variables": "explicit",
    "DistributedGradientTape": "tensorflow.explicit",
    "Strategy": "tensorflow.strategy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'syrtos.keras' has no attribute {name!r}")
    home = f"syrtos.keras.{_HOMES[name]}"
    if ".tensorflow." in home:
        importlib.import_module("syrtos.keras.activate").check_tensorflow(f"syrtos.keras.{name}")
    found = getattr(importlib.import_module(home), name)
    if name == "Strategy":
        found.adapt_keras = importlib.import_module("syrtos.keras.activate").for_strategy
    return found
