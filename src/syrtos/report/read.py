"""Reads the record of a run: each generation's ledgers, the curves of rank 0, and machine samples.

A record may be incomplete: the run may go on, have been killed, or be written by an older version.
The reader says what is missing, and reads the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from syrtos.errors import ConfigurationError
from syrtos.json_files import parse_line, read_object
from syrtos.observe.clock import KINDS
from syrtos.report.ledger_lines import (
    is_sound_epoch,
    is_sound_line,
    is_sound_point,
    is_sound_sample,
    launcher_facts,
    without_odd_members,
)
from syrtos.report.summary import EVALUATION, TRAINING
from syrtos.run_dir import RunDir

Floats = npt.NDArray[np.float64]
# lines that become columns at once: as dictionaries they take five times the memory
_PART = 50_000


@dataclasses.dataclass(frozen=True)
class LedgerLines:
    """The lines of a ledger as columns, with one row for each line.

    Attributes:
        phase: the kind of part of the run.
        start: s from the start of the process.
        wall: s that passed.
        steps: training steps, or batches, in the line; 0 outside of steps.
        samples: samples of this worker.
        seconds: (rows, kinds) s by kind, see `KINDS`.
        own_square: the squared norm of this worker's gradient; 0 where it was not measured.
        mean_square: the squared norm of the mean over all workers.
    """

    phase: npt.NDArray[np.str_]
    start: Floats
    wall: Floats
    steps: Floats
    samples: Floats
    seconds: Floats
    own_square: Floats
    mean_square: Floats

    def of(self, kind: str) -> Floats:
        """Returns the seconds of one kind, by row."""
        return self.seconds[:, KINDS.index(kind)]  # type: ignore[arg-type]

    @functools.cached_property
    def trains(self) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are training steps."""
        return np.isin(self.phase, TRAINING) & (self.steps > 0)

    @functools.cached_property
    def in_training(self) -> npt.NDArray[np.bool_]:
        """A mask of the rows of `fit`, without evaluations, and of loops of the script's own."""
        return np.isin(self.phase, ("fit", *TRAINING))

    @functools.cached_property
    def evaluates(self) -> npt.NDArray[np.bool_]:
        """A mask of the rows of `evaluate`, `predict` or validation."""
        return np.isin(self.phase, EVALUATION)

    @property
    def steps_made(self) -> int:
        """The number of training steps of all rows."""
        return int(self.steps[self.trains].sum())

    @property
    def end(self) -> float:
        """The seconds from the start of the process to the end of the last line."""
        return float(self.wall.sum())


@dataclasses.dataclass(frozen=True)
class WorkerRecord:
    """The record of one worker of a generation.

    Attributes:
        rank: its number.
        facts: what it has noted about the run.
        lines: its ledger.
        offset: s from the start of the run to that of its process, by the clock of the machine that
            launched the run.
    """

    rank: int
    facts: Mapping[str, Any]
    lines: LedgerLines
    offset: float

    @property
    def host(self) -> str:
        """The name of its machine; empty if an older version has written none."""
        return str(self.facts.get("host", ""))


@dataclasses.dataclass(frozen=True)
class Generation:
    """The record of the workers of one generation.

    Attributes:
        folder: the folder of its ledgers and logs.
        ranks: the workers whose ledgers were found, in order.
        began: s since the epoch; 0 if unknown.
        is_recorded: whether its launcher could write down when it began.
        offset: s from the start of the run.
        seconds: s from its start to its end, or to its last line.
        outcome: how it ended, in words; empty if it goes on or its end is not known.
        epochs: rank 0's lines about epochs.
        curve: rank 0's lines within epochs.
        usage: samples of machines and processes, in order.
    """

    folder: Path
    ranks: Sequence[WorkerRecord]
    began: float
    is_recorded: bool
    offset: float
    seconds: float
    outcome: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    curve: Sequence[Mapping[str, Any]]
    usage: Sequence[Mapping[str, Any]]

    @property
    def first(self) -> WorkerRecord | None:
        """The worker with the lowest rank."""
        return self.ranks[0] if self.ranks else None

    @property
    def trained_before(self) -> int:
        """The number of training steps from a snapshot, which this generation did not make."""
        return int(self.first.facts.get("trained", 0)) if self.first else 0

    @property
    def steps_trained(self) -> int:
        """The number of training steps that this generation has made."""
        return self.first.lines.steps_made if self.first else 0


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The whole record of a run.

    Attributes:
        folder: its run directory.
        request: the request as `run.json` has it; empty if that is not there.
        generations: the generations of its workers, in order.
        missing: what could not be read, in sentences.
        goes_on: whether it has no end yet.
    """

    folder: Path
    request: Mapping[str, Any]
    generations: Sequence[Generation]
    missing: Sequence[str]
    goes_on: bool

    @property
    def facts(self) -> Mapping[str, Any]:
        """Rank 0's facts of the last generation that has trained, or else of the last."""
        first = self.last_trained.first or next(
            (each.first for each in reversed(self.generations) if each.first), None
        )
        return first.facts if first else {}

    @property
    def last_trained(self) -> Generation:
        """The last generation that has trained, or else the last."""
        return next(
            (each for each in reversed(self.generations) if each.steps_trained),
            self.generations[-1],
        )

    def step_kept(self, number: int) -> int | None:
        """Returns the run's step up to which the work of the generation with this index was kept.

        None if no generation after it has trained, so that all of it was.
        """
        return min(
            (each.trained_before for each in self.generations[number + 1 :] if each.steps_trained),
            default=None,
        )

    @property
    def seconds(self) -> float:
        """The seconds of all generations together."""
        return sum(each.seconds for each in self.generations)


def load(run_dir: Path, goes_on: bool = False) -> RunRecord:
    """Reads a run, which may go on.

    Raises:
        ConfigurationError: the folder is not there, or has no ledgers.
    """
    if not run_dir.is_dir():
        raise ConfigurationError(
            f"There is no folder {run_dir}. Name the run directory that `syrtos run` printed."
        )
    missing: list[str] = []
    files = RunDir(run_dir)
    asked = _json(files.request_file, missing)
    request = without_odd_members(asked)
    if odd := ", ".join(asked.keys() - request.keys()):
        missing.append(f"{files.request_file} is damaged, and read without: {odd}.")
    found: list[Generation] = []
    began = 0.0
    for folder in files.generations():
        generation = _generation(folder, began, sum(each.seconds for each in found), missing)
        began = began or generation.began
        found.append(generation)
    if not any(each.ranks for each in found):
        raise ConfigurationError(
            f"{run_dir} holds no ledger of a worker (ledger/rank-0.jsonl): it is not the run"
            " directory of a run, or the run ended before its workers had started. Name the folder"
            " that `syrtos run` printed; logs are in its folder `logs`."
        )
    if request:
        missing += _describe_absent_workers(request, found[-1], run_dir)
    missing += _cut_off(found[-1])
    if not goes_on and not found[-1].outcome:
        missing.append(
            "How the run ended was not written down: its launcher was killed, or is one of another"
            " version."
        )
    return RunRecord(run_dir, request, found, missing, goes_on)


def _cut_off(last: Generation) -> list[str]:
    """Returns sentences about ledgers that are cut off, of a run that has finished."""
    if last.outcome.get("end") != "FINISHED":
        return []
    found = []
    for rank in last.ranks:
        path = RunDir(last.folder).ledger(rank.rank)
        # No worker of a run that has finished was killed in the middle of a line.
        if _last_byte(path) != b"\n":
            found.append(f"{path} ends in the middle of a line: what followed is not there.")
    # Workers that train together have made the same steps.
    counts = {rank.lines.steps_made for rank in last.ranks}
    if len(counts) > 1 and last.ranks[0].facts.get("training") != "asynchronous":
        words = " and ".join(map(str, sorted(counts)))
        found.append(
            f"The ledgers of the workers have different numbers of training steps ({words}): parts"
            " of one may be lost."
        )
    return found


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(file.seek(0, 2) - 1, 0))
        return file.read()


_NAMED = 8  # ranks that a sentence names


def _describe_absent_workers(
    request: Mapping[str, Any], last: Generation, run_dir: Path
) -> list[str]:
    """Returns a sentence about workers without a ledger here."""
    # Workers on other hosts may write to their own disks.
    expected = request.get("resized") or request.get("workers")
    expected = expected if isinstance(expected, int) else 0
    there = {each.rank for each in last.ranks}
    if not last.ranks or request.get("elastic"):
        return []
    # a number that is damaged may be huge
    absent = list(itertools.islice((n for n in range(expected) if n not in there), _NAMED + 1))
    if not absent:
        return []
    ranks = ", ".join(map(str, absent[:_NAMED])) + ", ..." * (len(absent) > _NAMED)
    return [
        f"The ledgers of rank{'s' * (len(absent) > 1)} {ranks} are not in {run_dir}. Workers on"
        " other hosts write them to the same path there: copy their `ledger` folders here, or use"
        " a run directory that all hosts share."
    ]


def _generation(folder: Path, run_began: float, offset: float, missing: list[str]) -> Generation:
    files, damaged = RunDir(folder), list[Path]()
    launcher = launcher_facts(files.launcher, damaged)
    missing += [f"{path} is damaged: what can't be read is left out." for path in damaged]
    paths = files.ledgers()
    ranks = [_rank(rank, path, launcher.get("began", 0.0), missing) for rank, path in paths.items()]
    began = launcher.get("began") or min(
        (rank.facts.get("began", 0.0) for rank in ranks), default=0.0
    )
    lasted = launcher.get("ended", 0.0) - began
    seconds = (
        lasted if lasted > 0 else max((rank.offset + rank.lines.end for rank in ranks), default=0.0)
    )
    outcome = launcher.get("outcome") or ({"end": "unknown"} if "ended" in launcher else {})
    return Generation(
        folder=folder,
        ranks=_align_offsets(ranks),
        began=began,
        is_recorded="began" in launcher,
        offset=offset if run_began else 0.0,
        seconds=seconds,
        outcome=outcome,
        epochs=list(lines(files.epochs, missing, is_sound_epoch)),
        curve=list(lines(files.curve, missing, is_sound_point)),
        usage=[line for path in files.usages() for line in lines(path, missing, is_sound_sample)],
    )


def _rank(rank: int, path: Path, began: float, missing: list[str]) -> WorkerRecord:
    facts: dict[str, Any] = {}
    told = _split_facts(lines(path, missing, is_sound_line), facts)
    parts = [_columns(part) for part in iter(lambda: list(itertools.islice(told, _PART)), [])] or [
        _columns([])
    ]
    if "began" not in facts:
        missing.append(
            f"{path} does not begin as this version writes ledgers: when its worker was started is"
            " not known."
        )
    offset = max(facts.get("began", began) - began, 0.0) if began else 0.0
    whole = LedgerLines(
        *(
            np.concatenate([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(LedgerLines)
        )
    )
    start = np.cumsum(whole.wall) - whole.wall
    return WorkerRecord(rank, facts, dataclasses.replace(whole, start=start), offset)


def _split_facts(
    found: Iterator[dict[str, Any]], facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields the lines that account for time; puts those of facts into ``facts``."""
    for line in found:
        if line.get("phase") != "facts":
            yield line
        else:
            facts.update({name: value for name, value in line.items() if name != "phase"})


def _columns(records: Sequence[Mapping[str, Any]]) -> LedgerLines:
    def column(name: str) -> Floats:
        values = (record.get(name) for record in records)
        return np.array(
            [value if isinstance(value, int | float) else 0.0 for value in values], np.float64
        )

    wall = column("wall")
    return LedgerLines(
        phase=np.array([str(record.get("phase", "")) for record in records], np.str_),
        start=np.cumsum(wall) - wall,
        wall=wall,
        steps=column("steps"),
        samples=column("samples"),
        seconds=(
            np.stack([column(kind) for kind in KINDS], axis=1)
            if records
            else np.zeros((0, len(KINDS)))
        ),
        own_square=column("own_square"),
        mean_square=column("mean_square"),
    )


# Seconds by which clocks of hosts may differ before ledgers are aligned by their steps.
_CLOCKS = 0.5


def _align_offsets(ranks: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """Returns the workers with offsets by one clock, that of the first worker's machine.

    Offsets stay as they are for workers that train at their own pace, and for clocks that agree.
    """
    if (
        not ranks
        or ranks[0].facts.get("training") == "asynchronous"
        or "sync_every" in ranks[0].facts
    ):
        return list(ranks)
    # Workers end a step at the same time, whatever the clocks of their machines say.
    ends = [_ends(rank) for rank in ranks]
    found = [ranks[0]]
    for rank, mine in zip(ranks[1:], ends[1:], strict=True):
        common = min(len(mine), len(ends[0]), 50)
        ahead = float(np.median(mine[:common] - ends[0][:common])) if common else 0.0
        elsewhere = rank.facts.get("node") != ranks[0].facts.get("node") and abs(ahead) > _CLOCKS
        found.append(
            dataclasses.replace(rank, offset=max(rank.offset - ahead, 0.0)) if elsewhere else rank
        )
    return found


def _ends(rank: WorkerRecord) -> Floats:
    return (rank.offset + rank.lines.start + rank.lines.wall)[rank.lines.trains]


def lines(
    path: Path,
    missing: list[str],
    is_readable: Callable[[Mapping[str, Any]], bool] = lambda line: True,
) -> Iterator[dict[str, Any]]:
    """Yields the readable lines of a file, and adds a sentence about the others to ``missing``."""
    damaged = 0
    try:
        with path.open("rb") as file:
            for line in file:
                # a worker that was killed may have left half a line
                if not line.endswith(b"\n"):
                    continue
                found = parse_line(line)
                if found is not None and is_readable(found):
                    yield found
                else:
                    damaged += 1
    except FileNotFoundError:
        return
    except OSError as error:
        missing.append(f"{path} can't be read: {error.strerror}.")
    if damaged:
        missing.append(
            f"{damaged:,} line{'s' * (damaged > 1)} of {path} can't be read, and"
            f" {'are' if damaged > 1 else 'is'} left out."
        )


def _json(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        missing.append(f"{path} can't be read: {error.strerror}.")
    except ValueError as error:
        missing.append(f"{error}.")
    return {}
