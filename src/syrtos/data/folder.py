"""A folder with one folder for each class: its files are the records."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from syrtos.data.files import File
from syrtos.data.plan import Indices
from syrtos.data.sources import BadRecord, Source, fingerprint_of
from syrtos.errors import DataError

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


class Folder(Source):
    """A folder of classes, whose records are pairs of a file's bytes and its class's number.

    Attributes:
        classes: the names of the classes.
        labels: the number of each record's class, shape (records,), int64.
    """

    def __init__(self, files: Sequence[File], suffixes: Sequence[str]) -> None:
        """Raises DataError if no file has one of ``suffixes``."""
        self._files = [file for file in files if file.name.lower().endswith(tuple(suffixes))]
        if not self._files:
            raise DataError(
                f"The folder has no files that end with {', '.join(suffixes)}. Expected one folder"
                " for each class, with files in it."
            )
        names = [_class_of(file) for file in self._files]
        # in alphabetical order, as in Keras (`image_dataset_from_directory`)
        self.classes = sorted(set(names))
        self.labels = np.asarray([self.classes.index(name) for name in names], np.int64)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def nbytes(self) -> int:
        """Bytes of all records together; see `Source.nbytes`."""
        return sum(file.size for file in self._files)

    @property
    def fingerprint(self) -> str:
        """A hash of the files' names, with their classes, and sizes."""
        # not by whole paths: the folder may be another one on each host
        facts = [
            ([_class_of(file), file.name.rpartition("/")[2]], file.size) for file in self._files
        ]
        return fingerprint_of(facts)

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Name, records and bytes of each class."""
        sizes = np.asarray([file.size for file in self._files])
        return [
            (name, int((self.labels == k).sum()), int(sizes[self.labels == k].sum()))
            for k, name in enumerate(self.classes)
        ]

    def place(self, index: int) -> tuple[str, int]:
        """Returns the file of a record, and 0: a record is a whole file."""
        return self._files[index].name, 0

    def read(self, indices: Indices) -> list[tuple[bytes, np.int64]]:
        """Returns pairs of a file's bytes and its class's number; see `Source.read`."""
        found = []
        for index in indices.tolist():
            file = self._files[index]
            try:
                found.append((file.read(0, file.size), self.labels[index]))
            except DataError as error:
                raise BadRecord(index, file.name, 0, str(error)) from error
        return found

    def prefetch(self, indices: Indices) -> None:
        """Begins to fetch files; see `Source.prefetch`."""
        for index in indices.tolist():
            self._files[index].prefetch([(0, self._files[index].size)])


def _class_of(file: File) -> str:
    """Returns the name of the folder that a file lies in."""
    return (file.name if "/" in file.name else os.path.abspath(file.name)).rsplit("/", 2)[-2]
