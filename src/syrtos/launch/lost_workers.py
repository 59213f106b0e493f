"""Records of workers that have died and that the others go on without.

They are files in the run directory, which the parameter servers look at.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_FOLDER = "lost"


def note(run_dir: str, rank: int) -> None:
    """Records the death of ``rank``."""
    path = Path(run_dir, _FOLDER, str(rank))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        print(
            f"syrtos: parameter servers can't learn of rank {rank}'s death: {error}",
            file=sys.stderr,
            flush=True,
        )


def forget(run_dir: Path) -> None:
    """Removes the records of deaths of an earlier run in this folder."""
    shutil.rmtree(run_dir / _FOLDER, ignore_errors=True)


def lost_ranks(run_dir: str) -> set[int]:
    """Returns the ranks of the workers that have died so far."""
    try:
        return {int(name) for name in os.listdir(os.path.join(run_dir, _FOLDER))}
    except OSError:
        # The folder is made when the first worker dies.
        return set()
