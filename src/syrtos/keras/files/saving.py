"""Models are saved by one worker, after all have gathered the variables held in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate

from syrtos.keras import backend
from syrtos.keras.patching import Patch

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, P, R


def _gather_around(
    original: Callable[Concatenate[Model, P], R],
) -> Callable[Concatenate[Model, P], R]:
    def save(model: Model, *args: P.args, **kwargs: P.kwargs) -> R:
        with backend.active().gathering_variables(model):
            return original(model, *args, **kwargs)

    return save


_SAVED = "Variables that are split over processes are gathered where they are read, as for files."

# Around those of `patches`, which let one worker write.
PATCHES = [
    Patch("keras:Model", "export", _gather_around, _SAVED),
    Patch("keras.src.saving.saving_lib", "save_model", _gather_around, _SAVED),
    Patch("keras.src.saving.saving_lib", "save_weights_only", _gather_around, _SAVED),
    Patch("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5", _gather_around, _SAVED),
]
