"""Files of a run's record that could not be written, collected for one sentence at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class Unrecorded:
    """The files of a run that could not be written; the run goes on without them."""

    def __init__(self) -> None:
        self._errors: dict[Path, str] = {}

    @contextlib.contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Context manager: notes that its block could not write ``path``, if it fails at that.

        A file that is read before it is written may be damaged, too.
        """
        try:
            yield
        except OSError as error:
            self._errors.setdefault(path, error.strerror or str(error))
        except ValueError as error:
            self._errors.setdefault(path, str(error))

    def sentence(self) -> str:
        """Returns which files are missing and why; empty if none is."""
        if not self._errors:
            return ""
        files = ", ".join(f"{path} ({why})" for path, why in self._errors.items())
        return f"This could not be recorded, and the run went on without: {files}."
