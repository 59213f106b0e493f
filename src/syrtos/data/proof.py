"""The sample ledger: the records that each worker has trained on.

`verify` checks by it that each record was used once in every epoch.

Each worker appends a JSON line for each step to ``run_dir/data/samples-NAME-rank-R.jsonl``, where
NAME is the data set's. A line holds the hash of the one before it, so no line can be changed or
left out unnoticed. It also holds a sum that tells multisets of records apart
(`plan.sum_of_records`): the sums of all lines of an epoch must add up to the sum of all records. A
run that goes on from a checkpoint begins with a line that says where it begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, TypedDict, cast, final

import numpy as np

from syrtos.data.loader import Position, RecordShare
from syrtos.data.plan import Plan, sum_of_records
from syrtos.errors import DataError

_MODULUS = 1 << 64
_CHUNK = 1 << 20
_MARK_EVERY = 1.0  # seconds


class _PositionFacts(TypedDict):
    """A `Position` in JSON."""

    epoch: int
    place: int


# `from` is a keyword, which no class can have as a field.
_From = TypedDict("_From", {"from": _PositionFacts})


@final
class _Begin(_From):
    """The line of a beginning, with the order of the records."""

    generation: int
    records: int
    seed: int | None
    block: int
    fingerprint: str


@final
class _StepLine(TypedDict):
    """The line of a step: what a worker has read."""

    generation: int
    epoch: int
    places: list[int]
    records: int
    sum: int
    left_out: int
    rank: int
    of: int


@final
class _Reached(TypedDict):
    """The line that says how far training has come."""

    generation: int
    until: _PositionFacts


_Line = _Begin | _StepLine | _Reached


class SampleLedger:
    """The lines of one worker about one training on one data set; threads may share it."""

    def __init__(self, run_dir: str, name: str, rank: int, size: int) -> None:
        self._path = Path(run_dir) / "data" / f"samples-{name}-rank-{rank}.jsonl"
        self._rank, self._size = rank, size
        self._file: IO[str] | None = None
        self._chain = ""
        self._lock = threading.Lock()
        self._marked_at = 0.0

    def begin(self, plan: Plan, position: Position, generation: int) -> None:
        """Notes that training begins, or goes on, at ``position``.

        A new beginning starts a new file.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # a run that goes on continues the chain after the last whole line
            self._chain = _mend(self._path) if position != Position() else ""
            self._file = self._path.open("a" if position != Position() else "w", encoding="utf-8")
        except OSError as error:
            self._give_up(error)
        order: dict[str, object] = {
            "records": plan.records,
            "seed": plan.seed,
            "block": plan.block,
            "fingerprint": plan.fingerprint,
        }
        self._write({"from": dataclasses.asdict(position), "generation": generation, **order})

    def add(self, share: RecordShare) -> None:
        """Notes that this worker has read its share of a step, and is about to train on it.

        After `end` it does nothing.
        """
        plan = share.plan
        self._write(
            {
                "epoch": plan.epoch,
                "places": [plan.place(share.step), plan.place(share.step + 1)],
                "records": len(share.indices),
                "sum": sum_of_records(share.indices),
                "left_out": share.left_out,
            }
        )

    def note_reached(self, position: Position, now: bool = False) -> None:
        """Notes that all records before ``position`` are trained: once a second, or ``now``."""
        # of a run that was killed, such lines show how far it has trained
        if now or time.monotonic() - self._marked_at > _MARK_EVERY:
            self._marked_at = time.monotonic()
            self._write({"until": dataclasses.asdict(position)})

    def end(self, position: Position) -> None:
        """Notes that training has ended at ``position``, and closes the file."""
        # batches after `position` may have been read ahead, and were not used
        self.note_reached(position, now=True)
        with self._lock:
            if self._file:
                self._file.close()  # without a line in its buffer: all were flushed
            self._file = None

    def _write(self, facts: dict[str, object]) -> None:
        """Appends a line, unless training has ended."""
        with self._lock:
            if self._file is None:
                return
            facts = {**facts, "rank": self._rank, "of": self._size}
            self._chain = _link(self._chain, facts)
            try:
                self._file.write(json.dumps({**facts, "chain": self._chain}) + "\n")
                # handed to the system at once: a killed worker must not lose steps that are in a
                # checkpoint
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Writes no more lines: a full disk, for example, is no reason to end the training."""
        file, self._file = self._file, None
        # closing it tries again to write what is left
        with contextlib.suppress(OSError):
            if file:
                file.close()
        print(
            f"syrtos: the record of which samples were trained on ends here, {self._path} can't be"
            f" written: {error.strerror}",
            file=sys.stderr,
        )


def _link(chain: str, facts: dict[str, object]) -> str:
    return hashlib.sha256(f"{chain}{json.dumps(facts)}".encode()).hexdigest()[:32]


def _mend(path: Path) -> str:
    """Cuts off a last line that a killed worker has not finished.

    It returns the hash of the last complete line.
    """
    if not path.exists():
        return ""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        path.write_bytes(whole)
    try:
        return str(json.loads(whole.splitlines()[-1])["chain"]) if whole else ""
    except (ValueError, KeyError, TypeError):
        # it is damaged: the chain breaks here, as `verify` will say
        return ""


def next_generation(run_dir: str, name: str) -> int:
    """Returns the number of times that training on this data set was begun under ``run_dir``."""
    found = [0]
    for path in sorted((Path(run_dir) / "data").glob(f"samples-{name}-rank-*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            found += [
                json.loads(line)["generation"] + 1 for line in lines if line.startswith('{"from"')
            ]
    return max(found)


# -- checking --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The record of one epoch of one data set in the ledgers.

    Attributes:
        data: the name of the data set in this run.
        epoch: the number of the epoch, from 0.
        records: the number of records in the data set.
        done: the number of records that were used, each once, including bad ones that were left
            out.
        left_out: the number of bad records among them.
        steps: the number of global batches.
        workers: the sizes of the worlds that took part, in order.
    """

    data: str
    epoch: int
    records: int
    done: int
    left_out: int
    steps: int
    workers: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Returns whether each record of the data set was used."""
        return self.done == self.records


def verify(run_dir: Path) -> list[Epoch]:
    """Checks the sample ledgers of a run, and returns the record of each epoch.

    Raises:
        DataError: there are no ledgers, a line was changed, or a record was used twice or passed
            over.
    """
    if not run_dir.is_dir():
        raise DataError(
            f"{run_dir} is no folder. Expected the directory of a run (`runs/...`, or what"
            " `--run-dir` named)."
        )
    by_name: dict[str, list[list[_Line]]] = {}
    for path in sorted((run_dir / "data").glob("samples-*-rank-*.jsonl")):
        by_name.setdefault(path.stem.removeprefix("samples-").rpartition("-rank-")[0], []).append(
            _read_chain(path)
        )
    if not by_name:
        raise DataError(
            f"{run_dir} has no sample ledgers: they are written by runs that train on a data set of"
            " `syrtos.data`."
        )
    return [epoch for name, ledgers in by_name.items() for epoch in _epochs(name, ledgers)]


def _read_chain(path: Path) -> list[_Line]:
    """Returns the lines of a file, each with its generation.

    Raises:
        DataError: the chain of hashes breaks.
    """
    chain, generation, lines = "", 0, []
    whole = path.read_bytes().rpartition(b"\n")[0]  # a killed worker has not finished the last line
    for number, text in enumerate(whole.splitlines(), 1):
        line = _parse_line(text)
        facts = {key: value for key, value in line.items() if key != "chain"}
        chain = _link(chain, facts)
        if chain != line.get("chain"):
            raise DataError(
                f"{path}, line {number}: the line, or one before it, is not what was written: the"
                " chain of hashes breaks here."
            )
        generation = line.get("generation", generation)
        # the hash shows that `SampleLedger` has written the line
        lines.append(cast(_Line, {**facts, "generation": generation}))
    return lines


def _parse_line(text: bytes) -> dict[str, Any]:
    """Returns the facts of a line; none if the line is damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _epochs(name: str, ledgers: list[list[_Line]]) -> Iterable[Epoch]:
    lines = [line for ledger in ledgers for line in ledger]
    begins = {line["generation"]: line for line in lines if "from" in line}
    if not begins:  # all workers were killed before they had written a line
        return
    ends = _ends(lines)
    counted = [line for line in lines if "places" in line and not _was_lost(line, begins, ends)]
    first = begins[max(begins)]
    plan = Plan(first["fingerprint"], first["records"], 1, 0, first["seed"], first["block"])
    for epoch in sorted({line["epoch"] for line in counted}):
        yield _epoch(
            name,
            dataclasses.replace(plan, epoch=epoch),
            [line for line in counted if line["epoch"] == epoch],
        )


def _ends(lines: list[_Line]) -> dict[int, _PositionFacts]:
    """Returns the position up to which each generation is known to have trained."""
    found = {line["generation"]: line["from"] for line in lines if "from" in line}
    for line in lines:
        if "until" in line:
            found[line["generation"]] = max(found[line["generation"]], line["until"], key=_as_pair)
    return found


def _was_lost(line: _StepLine, begins: dict[int, _Begin], ends: dict[int, _PositionFacts]) -> bool:
    """Returns whether a step does not count, because what was learnt from it was lost."""
    # a step of an earlier generation is lost if a later generation went on from before it: with the
    # weights; one of the last generation, if it is not known to be trained
    later = [
        begin["from"] for generation, begin in begins.items() if generation > line["generation"]
    ]
    end = min(later, key=_as_pair) if later else ends[line["generation"]]
    return (line["epoch"], line["places"][0]) >= _as_pair(end)


def _as_pair(position: _PositionFacts) -> tuple[int, int]:
    return position["epoch"], position["place"]


def _epoch(name: str, plan: Plan, lines: list[_StepLine]) -> Epoch:
    steps: dict[tuple[int, int], list[_StepLine]] = {}
    for line in lines:
        steps.setdefault((line["places"][0], line["places"][1]), []).append(line)
    # steps must follow each other without a gap, and each must have been read by all ranks of one
    # world
    end, workers = 0, []
    for (start, stop), shares in sorted(steps.items()):
        where = f"Data set {name}, epoch {plan.epoch}, records {start} to {stop} of its order"
        if start != end:
            raise DataError(
                f"{where}: the step before ended at {end}: records are"
                f" {'missing' if start > end else 'used twice'}."
            )
        ranks, size = sorted(line["rank"] for line in shares), shares[0]["of"]
        if ranks != list(range(size)) or sum(line["records"] for line in shares) != stop - start:
            raise DataError(
                f"{where}: ranks {ranks} of {size} have read"
                f" {sum(line['records'] for line in shares)} records in place of {stop - start}."
            )
        end = stop
        if workers[-1:] != [size]:
            workers.append(size)
    if sum(line["sum"] for line in lines) % _MODULUS != _expected_sum(plan, end):
        raise DataError(
            f"Data set {name}, epoch {plan.epoch}: other records were read than the plan has: some"
            " twice, and some not at all."
        )
    left_out = sum(line["left_out"] for line in lines)
    return Epoch(name, plan.epoch, plan.records, end, left_out, len(steps), tuple(workers))


def _expected_sum(plan: Plan, end: int) -> int:
    """Returns the sum of the first ``end`` records of the order."""
    total = 0
    for start in range(0, end, _CHUNK):
        places = np.arange(start, min(start + _CHUNK, end), dtype=np.int64)
        # the sum of all records does not depend on their order, and needs no plan
        total += sum_of_records(places if end == plan.records else plan.records_at(places))
    return total % _MODULUS
