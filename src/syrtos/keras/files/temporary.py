"""Folders that only this worker knows, made with `tempfile`: each worker writes its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from syrtos.comm import world
from syrtos.comm.world import Session


class _OwnFolders:
    """The folders that this worker has made."""

    def __init__(self, _session: Session) -> None:
        self.folders: set[Path] = set()


def remembering(mkdtemp: Callable[..., str]) -> Callable[..., str]:
    """Wraps `tempfile.mkdtemp` so that its folders are remembered.

    `TemporaryDirectory` makes its folders by this function too.
    """

    def make(*args: object, **kwargs: object) -> str:
        folder = mkdtemp(*args, **kwargs)
        if world.is_initialized():
            world.part(_OwnFolders).folders.add(Path(os.fsdecode(folder)))
        return folder

    return make


def is_own(path: object) -> bool:
    """Returns whether ``path`` lies in a folder that this worker alone has made."""
    if not isinstance(path, str | os.PathLike):
        return False
    place = Path(os.path.abspath(os.fsdecode(path)))
    made = world.part(_OwnFolders).folders
    return any(folder in made for folder in (place, *place.parents))
