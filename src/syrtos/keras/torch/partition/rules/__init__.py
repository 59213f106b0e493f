"""Rules of operations of torch, by kind; importing this package registers all of them."""

from syrtos.keras.torch.partition.rules import (
    draws,
    elementwise,
    layers,
    lookups,
    normalization,
    products,
    reductions,
    shapes,
)

__all__ = [
    "draws",
    "elementwise",
    "layers",
    "lookups",
    "normalization",
    "products",
    "reductions",
    "shapes",
]
