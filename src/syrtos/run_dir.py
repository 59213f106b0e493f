"""The names of the files in the folder of a run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from syrtos.json_files import document

REQUEST = "run.json"
# What is in the folder of a generation from its beginning on; others of that name are the user's.
_OF_GENERATIONS = ("ledger", "logs")


@dataclasses.dataclass(frozen=True)
class RunDir:
    """The files of a run, by what they hold.

    The first generation of a run writes logs and ledgers into the folder of the run, each later
    one into a folder in it, which has the same files.

    Attributes:
        path: the folder.
    """

    path: Path

    # -- of the run ----------------------------------------------------------------------------

    @property
    def request_file(self) -> Path:
        """The file of the request, of what the script read, and of how the run ended: a JSON object."""
        return self.path / REQUEST

    def request(self) -> dict[str, Any]:
        """Returns what `request_file` says; empty if it is missing or damaged."""
        return document(self.request_file)

    @property
    def snapshots(self) -> Path:
        """The folder of the copies of snapshots, from which a run goes on."""
        return self.path / "snapshots"

    @property
    def comparisons(self) -> Path:
        """The file of the comparisons of `syrtos verify`, a line for each function, by rank 0."""
        return self.path / "verified.jsonl"

    def generation(self, number: int) -> Path:
        """Returns the folder with the logs and ledgers of a generation, the first of which is 1."""
        return self.path if number == 1 else self.path / f"generation-{number}"

    def generations(self) -> list[Path]:
        """Returns the folders of all generations so far, in order."""
        return [self.generation(number) for number in self._numbers()]

    def _numbers(self) -> list[int]:
        """Returns the numbers of the generations that have a folder, in order; the first has."""
        named = {
            int(found[1]): path
            for path in self.path.glob("generation-*")
            if (found := re.fullmatch(r"generation-([1-9][0-9]*)", path.name))
        }
        later = sorted(
            number
            for number, path in named.items()
            if number > 1 and any((path / name).exists() for name in _OF_GENERATIONS)
        )
        return [1, *later]

    def newest(self) -> RunDir:
        """Returns the files of the generation that began last."""
        return RunDir(self.generations()[-1])

    def newest_number(self) -> int:
        """Returns the number of the generation that began last."""
        return self._numbers()[-1]

    # -- of a generation -----------------------------------------------------------------------

    @property
    def logs(self) -> Path:
        """The folder of what the workers print."""
        return self.path / "logs"

    def log(self, rank: int) -> Path:
        """Returns the file of what a worker prints."""
        return self.logs / f"rank-{rank}.log"

    @property
    def records(self) -> Path:
        """The folder of the ledgers, and of all that is recorded beside them."""
        return self.path / "ledger"

    def ledger(self, rank: int) -> Path:
        """Returns the file of the ledger of ``rank``."""
        return self.records / f"rank-{rank}.jsonl"

    def ledgers(self) -> dict[int, Path]:
        """Returns the files of the ledgers that are there, by rank, in order."""
        found = {
            int(rank): path
            for path in self.records.glob("rank-*.jsonl")
            if (rank := path.stem.removeprefix("rank-")).isdecimal()
        }
        return dict(sorted(found.items()))

    def usage(self, rank: int) -> Path:
        """Returns the file with samples of a worker's process, and of its machine.

        See `syrtos.observe.usage`.
        """
        return self.records / f"usage-{rank}.jsonl"

    def usages(self) -> list[Path]:
        """Returns the files of samples that are there, sorted by name."""
        return sorted(self.records.glob("usage-*.jsonl"))

    @property
    def epochs(self) -> Path:
        """The file of the ends of epochs, which rank 0 records.

        A line has ``epoch``, ``epochs``, ``step``, ``steps_per_epoch``, ``logs``,
        ``learning_rate``; and as each point of a curve ``time``, ``fit`` (its number), ``trained``
        (steps of the process).
        """
        return self.records / "epochs.jsonl"

    @property
    def curve(self) -> Path:
        """The file of points within epochs, which rank 0 records.

        Each point has ``epoch``, ``epochs``, ``batch`` (in the epoch, from 1),
        ``steps_per_epoch``, ``logs`` and ``learning_rate``.
        """
        return self.records / "curve.jsonl"

    @property
    def launcher(self) -> Path:
        """The file of the times at which the launcher began and ended, and the outcome."""
        return self.records / "launcher.json"
