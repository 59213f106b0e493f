"""Patches of Keras 3 for all backends: lists of callbacks, functions that write or read files."""

from __future__ import annotations

import keras

from syrtos.keras.files import write_once
from syrtos.keras.patching import Method, Patch
from syrtos.keras.recovery import resume
from syrtos.keras.trainer import callbacks

_SAVING = "keras.src.saving.saving_lib"
_HDF5 = "keras.src.legacy.saving.legacy_h5_format"
_FILES = "keras.src.utils.file_utils"
_ONCE = (
    "A file is written once for all workers. Behind the methods and the functions of all names: the"
    " path is final, its suffix has been checked."
)
_POSITION = "The position in the data is saved with the model, and found again."


def _stamped_once(original: Method) -> Method:
    return write_once.writing("filepath")(resume.saving_position(original))


def _saved_model(original: Method) -> Method:
    return write_once.as_saved_model(keras.Model.export)(original)


PATCHES: list[Patch] = [
    Patch("keras.callbacks:CallbackList", "__init__", callbacks.within, "Decisions are taken together, writing is rank 0's."),
    Patch(_SAVING, "save_model", _stamped_once, _ONCE),
    Patch(_SAVING, "save_weights_only", _stamped_once, _ONCE),
    Patch(_HDF5, "save_model_to_hdf5", _stamped_once, _ONCE),
    Patch(
        "keras:Model",
        "export",
        write_once.writing("filepath", complete=False),
        "Prints the path that it is given; `tf.saved_model.save` makes the files appear complete.",
    ),
    Patch("keras:Model", "save", _saved_model, "In a training job a folder for models gets a SavedModel, as scripts for SageMaker expect."),
    Patch("keras.saving", "load_model", write_once.reading("filepath"), "Another worker may be about to write the file.", everywhere=True),
    Patch("keras.saving", "load_weights", write_once.reading("filepath"), "Another worker may be about to write the file.", everywhere=True),
    Patch("keras:Model", "load_weights", resume.finding, _POSITION),
    Patch(_SAVING, "load_model", resume.finding, _POSITION),
    Patch(_HDF5, "load_model_from_hdf5", resume.finding, _POSITION),
    Patch(
        "keras.src.callbacks.backup_and_restore",
        "file_utils",
        write_once.CompleteFiles,
        "Writes the number of the epoch in place; `File` serves loggers too, which append.",
    ),
    Patch("keras.src.callbacks.model_checkpoint", "file_utils", write_once.CompleteFiles, "One worker makes its folder."),
    Patch("keras.utils", "save_img", write_once.writing("path"), _ONCE, everywhere=True),
    Patch("keras.utils", "plot_model", write_once.writing("to_file"), _ONCE, everywhere=True),
    Patch(_FILES, "urlretrieve", write_once.writing("filename"), "A download appears complete or not at all."),
    Patch(_FILES, "get_file", write_once.fetching, "One worker of a host fetches a file, and the others wait.", everywhere=True),
]  # fmt: skip
