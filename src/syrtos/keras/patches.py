"""Patches of Keras 3 for all backends: lists of callbacks, functions that write or read files."""

from __future__ import annotations

import keras

from syrtos.keras.files import file_patches, write_once
from syrtos.keras.patching import Method, Patch
from syrtos.keras.recovery import resume
from syrtos.keras.trainer import callbacks

_SAVING = (
    ("keras.src.saving.saving_lib", "save_model"),
    ("keras.src.saving.saving_lib", "save_weights_only"),
    ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"),
)


def _saved_model(original: Method) -> Method:
    return write_once.as_saved_model(keras.Model.export)(original)


PATCHES: list[Patch] = [
    Patch(
        "keras.callbacks:CallbackList",
        "__init__",
        callbacks.within,
        "Decisions are taken together, writing is rank 0's.",
    ),
    *file_patches.of_package(
        "keras", _SAVING, "keras.src.utils.file_utils", [resume.saving_position], [resume.finding]
    ),
    Patch(
        "keras:Model",
        "save",
        _saved_model,
        "In a training job a folder for models gets a SavedModel, as scripts for SageMaker expect.",
    ),
    Patch(
        "keras.src.callbacks.backup_and_restore",
        "file_utils",
        write_once.CompleteFiles,
        "Writes the number of the epoch in place; `File` serves loggers too, which append.",
    ),
    Patch(
        "keras.src.callbacks.model_checkpoint",
        "file_utils",
        write_once.CompleteFiles,
        "One worker makes its folder.",
    ),
]
