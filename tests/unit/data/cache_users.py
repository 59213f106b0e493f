"""What other processes do with a cache: they import it by name."""

from __future__ import annotations

import os
import time
from pathlib import Path

from syrtos.data.cache import Cache


def slowly(path: Path) -> None:
    with (path.parents[1] / "made").open("a") as file:
        file.write("once\n")
    time.sleep(0.3)
    path.write_bytes(b"x")


def use(folder: Path) -> None:
    Cache(folder).file("piece", "a", slowly)


def die(folder: Path) -> None:
    def make(path: Path) -> None:
        path.write_bytes(b"half")
        os._exit(9)

    Cache(folder).file("piece", "a", make)
