"""A script's callbacks that each worker runs: what one of them writes, rank 0 writes for all."""

from __future__ import annotations

from syrtos.comm import world
from syrtos.keras import backend
from syrtos.keras.files import temporary

# These, of Keras 3 or Keras 2, write files or to the terminal: rank 0's do it for all, except in
# folders that each worker has made.
_WRITERS = {
    "ModelCheckpoint",
    "BackupAndRestore",
    "OrbaxCheckpoint",
    "CSVLogger",
    "TensorBoard",
    "RemoteMonitor",
    "ProgbarLogger",
}
_SAVERS = {"ModelCheckpoint", "BackupAndRestore"}
# Of these `syrtos verify` runs the ones that write no file of their own: models are saved into its
# run directory.
_WITHOUT_FILES = {"ModelCheckpoint", "ProgbarLogger"}
_PATHS = ("filepath", "backup_dir", "directory", "filename", "log_dir")


def callbacks_of_worker(chosen: list[object]) -> list[object]:
    """Returns the callbacks of a script that this worker runs."""
    if world.current().options.verifies:
        chosen = [
            callback
            for callback in flatten(chosen)
            if not _kinds(callback) & (_WRITERS - _WITHOUT_FILES)
        ]
    if world.sharing().world.rank == 0:
        return chosen
    return [
        callback
        for callback in flatten(chosen)
        if not _writes_for_all(callback) or _saves_together(callback)
    ]


def _saves_together(callback: object) -> bool:
    """Returns whether all workers must run a callback that saves the model.

    They gather it, and one worker writes the file; or the callback lets JAX's processes meet by
    itself.
    """
    kinds, active = _kinds(callback), backend.active()
    return (active.splits_variables() and not _SAVERS.isdisjoint(kinds)) or (
        active.global_program and "OrbaxCheckpoint" in kinds
    )


def _kinds(callback: object) -> set[str]:
    """Returns the names of a callback's class and of those that it is derived from."""
    # Names, as the classes may be those of Keras 3 or of Keras 2.
    return {base.__name__ for base in type(callback).__mro__}


def flatten(chosen: object) -> list[object]:
    """Returns a list of callbacks from what Keras takes: one callback, or lists at any depth."""
    if isinstance(chosen, list | tuple):
        return [callback for part in chosen for callback in flatten(part)]
    return [] if chosen is None else [chosen]


def _writes_for_all(callback: object) -> bool:
    if _WRITERS.isdisjoint(_kinds(callback)):
        return False
    return not any(temporary.is_own(getattr(callback, name, None)) for name in _PATHS)
