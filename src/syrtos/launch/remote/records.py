"""Ledgers of workers on hosts that share no run directory: agents send them after a generation.

Without them a report would count the workers of the launcher's host alone.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.launch.plan import LaunchPlan
from syrtos.launch.terminal import output
from syrtos.run_dir import RunDir
from syrtos.settings import options_from

# Bytes that are read at a time: packed, they pass even a slow link before the launcher takes the
# host for lost.
_PIECE = 1 << 20
_KINDS = {"ledger": RunDir.ledger, "usage": RunDir.usage}
# seconds for all ledgers: a report may lack some, but the next generation must not wait for them
_LONGEST_WAIT = 30.0


def pieces(run_dir: Path, ranks: Collection[int]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields the files of ``ranks`` in packed pieces.

    Each piece comes with the facts by which `MissingRecords.take` knows its place.
    """
    for rank in ranks:
        for kind, path_of in _KINDS.items():
            path = path_of(RunDir(run_dir), rank)
            if not path.is_file():
                continue
            with path.open("rb") as file:
                first, last = True, False
                while not last:
                    data = file.read(_PIECE)
                    last = len(data) < _PIECE
                    yield (
                        zlib.compress(data, 1),
                        {"rank": rank, "file": kind, "first": first, "last": last},
                    )
                    first = False


def forget(run_dir: Path, ranks: Collection[int]) -> None:
    """Removes the files that an earlier run has left on this host.

    They must not be taken for the files of this run.
    """
    for rank in ranks:
        for path_of in _KINDS.values():
            path_of(RunDir(run_dir), rank).unlink(missing_ok=True)


class MissingRecords:
    """The launcher's side: the files of one generation that are not in its run directory."""

    def __init__(self, plan: LaunchPlan) -> None:
        """Begins to look for the ledgers of a plan's workers; other processes write none."""
        self._run_dir = options_from(plan.environment).run_dir
        self._ranks: Mapping[str, list[int]] = {
            host: [rank for group in plan.groups if group.host == host for rank in group.ranks]
            for host in (plan.hosts if plan.reports and self._run_dir else ())
            if host
        }
        self._awaited: dict[str, threading.Event] = {}

    def missing(self, host: str) -> list[int]:
        """Returns a host's ranks whose ledgers are not here, and expects those from its agent."""
        run_dir = Path(self._run_dir)
        found = [
            rank for rank in self._ranks.get(host, ()) if not RunDir(run_dir).ledger(rank).exists()
        ]
        if found:
            self._awaited[host] = threading.Event()
        return found

    def take(self, host: str, message: Mapping[str, Any]) -> None:
        """Writes a piece down; a file that is complete gets its name."""
        rank, kind = message["rank"], message["file"]
        if kind not in _KINDS or rank not in self._ranks.get(host, ()):
            return
        path = _KINDS[kind](RunDir(Path(self._run_dir)), rank)
        # A report that is made meanwhile reads no half of a file.
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb" if message["first"] else "ab") as file:
                file.write(zlib.decompress(message["data"]))
            if message["last"]:
                partial.replace(path)
        except (OSError, zlib.error) as error:
            output.say(
                f"the record of rank {rank} can't be kept in {path}: {error}. Reports will lack it."
            )

    def all_are_here(self, host: str) -> None:
        """Notes that nothing more comes from a host."""
        if host in self._awaited:
            self._awaited[host].set()

    def wait(self) -> None:
        """Waits until all files that were missing are here, or for some seconds."""
        deadline = time.monotonic() + _LONGEST_WAIT
        for event in self._awaited.values():
            event.wait(max(deadline - time.monotonic(), 0.0))
