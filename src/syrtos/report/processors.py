"""Processors of each machine while a run trains, from the samples that its workers took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from syrtos.report.ledger_lines import is_sound_sample, sound_lines
from syrtos.run_dir import RunDir

# Fewer samples say nothing: a sample is taken each second.
_ENOUGH = 3


class MachineLoad(NamedTuple):
    """A machine of a run.

    Attributes:
        number: its node rank.
        cores: number of its logical processors.
        busy: mean part of them that was busy while the run trained, from 0 to 1; other programs
            count too.
    """

    number: int
    cores: int
    busy: float


def machines(folder: Path) -> list[MachineLoad]:
    """Returns the machines of a generation that were sampled often enough while it trained.

    Args:
        folder: the folder of the generation, which holds ``ledger/``.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    for sample in _while_training(folder):
        found.setdefault(int(sample["number"]), []).append(sample)
    return [
        MachineLoad(
            number,
            int(samples[-1]["cores"]),
            sum(sample["cpu"] for sample in samples) / len(samples) / 100,
        )
        for number, samples in sorted(found.items())
        if len(samples) >= _ENOUGH
    ]


def _while_training(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the machine's part of samples with training steps since the sample before."""
    for path in RunDir(folder).usages():
        before: int | None = None
        for sample in sound_lines(path, [], is_sound_sample):
            trained = int(sample.get("trained", 0))
            machine = sample.get("machine")
            if (
                before is not None
                and trained > before
                and machine
                and machine.get("cores")
                and machine.get("cpu") is not None
            ):
                yield machine
            before = trained
