"""The ledger: an account of a worker's time, from start to end of its process, as JSON lines.

A line accounts for the time since the line before, so that the lines of a worker add up to its
lifetime: ``phase``, ``wall`` (seconds) and the seconds of each kind that there are. A step of
`fit`, `evaluate` or `predict`, and an update of a loop of the script's own, is a line of its own,
with ``steps`` and ``samples`` (of this worker).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from syrtos.observe import steady
from syrtos.observe.clock import Clock, ClockPart, Kind, Phase, process_age
from syrtos.observe.gradient_norms import GradientNorms
from syrtos.observe.unrecorded import Unrecorded
from syrtos.run_dir import RunDir

# Seconds outside of steps that are worth a line before the next step.
_WORTH_A_LINE = 0.1
# Seconds between two points of a curve, and between samples of a machine: at least so many, and so
# many parts of the time so far. A record of any length then has some thousand.
_POINT, _POINTS = 0.2, 2000
# The squared norms of a step's gradients in its line: this worker's, and that of the mean over all.
NORMS = ("own_square", "mean_square")


class Ledger:
    """The record of one worker. Until it is opened it counts, and writes nothing.

    Attributes:
        trained: training steps that this process has made.
        fits: calls of `fit` so far.
        told: the facts that `say` was given last, by name.
        host: the name of this machine.
        norms: the norms of the gradients of the step that goes on.
        began_ahead: a moment at the beginning, and the seconds by which this worker's clock was
            ahead of rank 0's then; None: not measured.
        at_step: called before and after each training step with the number of steps that are made,
            and that begin now.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock(process_age())
        self._began = steady.now() - process_age()
        self._file: IO[bytes] | None = None
        self._folder: Path | None = None
        self._next_point = 0.0
        # that after the last step, where it came too soon after another: what it was made at, what
        # gives its facts, and the logs that these read
        self._unrecorded: (
            tuple[
                dict[str, object], Callable[[], Mapping[str, object]], Mapping[str, object] | None
            ]
            | None
        ) = None
        self._sums: dict[str, dict[str, float]] = {}
        self.trained = self.fits = 0
        self.told: dict[str, object] = {}
        self.host = socket.gethostname()
        self.at_step: Callable[[int, int], None] | None = None
        self.norms = GradientNorms()
        self.began_ahead: tuple[float, float] | None = None

    def open(self, run_dir: str, rank: int) -> None:
        """Writes to ``run_dir/ledger`` from now on, beginning with the time counted so far."""
        self.close()
        path = RunDir(Path(run_dir)).ledger(rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a worker that is killed loses no complete line.
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            self._end_record(error)
        self._folder = Path(run_dir) if rank == 0 else None
        # The new file has none of the facts yet.
        self.told = {}
        self._write({"phase": "facts", "began": round(self._began, 3), "host": self.host})

    def script_begins(self) -> None:
        """Notes that the first line of the script is executed next."""
        self.clock.become("rest")
        self.flush()

    # -- parts of a run ------------------------------------------------------------------------

    @contextmanager
    def part(self, phase: Phase, kind: Kind = "rest") -> Iterator[None]:
        """Context manager: counts its block as a part of the run.

        The part is ``fit``, ``test`` (an `evaluate`) or ``predict``.

        Args:
            phase: the kind of part.
            kind: the kind of its time before its first step.
        """
        if phase == "fit":
            self._end_loop()
            self.fits += 1
        part = self.clock.begin(phase, kind)
        try:
            yield
        finally:
            if part is not None:
                self._close(part)

    def begin_step(self, phase: Phase, kind: Kind = "compute", steps: int = 1) -> None:
        """Begins a step, or as many as ``steps`` executed as one.

        A step that was begun and not ended is dropped.
        """
        self.drop_step()
        if self.at_step and phase == "train":
            self.at_step(self.steps_of_run, steps)
        if phase == "train":
            self.norms.begin(self.steps_of_run, steps)
        outer = self.clock.top
        if self.clock.begin(phase, kind, is_step=True):
            # From now on it is the loop around the steps that takes time there.
            outer.kind = "rest"
            if outer.wall > _WORTH_A_LINE:
                self._record(outer)

    def end_step(self, step: int, steps: int = 1) -> None:
        """Writes down the step that ends now.

        Args:
            step: index of the last of the steps executed as one.
            steps: the number of steps executed as one.
        """
        if self.in_step:
            trains = self.clock.top.phase == "train"
            self.trained += steps if trains else 0
            norms = self.norms.take() if trains else None
            self._close(
                self.clock.top,
                step=step,
                steps=steps,
                **(dict(zip(NORMS, norms, strict=True)) if norms else {}),
            )
            if self.at_step and trains:
                self.at_step(self.steps_of_run, 0)

    def drop_step(self) -> None:
        """Drops a step that was begun and found no data: its time goes to the part around it."""
        if self.in_step:
            self.clock.unwind(self.clock.parts[-2])

    def clock_ahead(self, now: float) -> Callable[[float], float]:
        """Returns a function that gives the lead of this worker's clock over rank 0's at a moment.

        The clock is `time.perf_counter`, and the lead is in seconds. ``now`` is the lead at this
        moment.
        """
        at = time.perf_counter()
        if self.began_ahead is None:
            return lambda moment: now
        began, first = self.began_ahead
        # Clocks of hosts drift apart, evenly between the beginning and now.
        return lambda moment: (
            first + (now - first) * min(max((moment - began) / max(at - began, 1e-9), 0.0), 1.0)
        )

    @property
    def steps_of_run(self) -> int:
        """The training steps of the run so far, with those of the generations before."""
        before: object = self.told.get("trained", 0)
        return self.trained + (before if isinstance(before, int) else 0)

    @property
    def in_step(self) -> bool:
        """Returns whether this thread has begun a step and not ended it."""
        return self.clock.top.is_step and self.clock.is_mine

    @property
    def in_script(self) -> bool:
        """Returns whether this thread is in the script's own code, outside of all parts."""
        return len(self.clock.parts) == 1 and self.clock.is_mine

    # -- loops of the script's own -------------------------------------------------------------

    def before_update(self) -> None:
        """Prepares for a possible first update of a loop of the script's own.

        The time until now is no part of the loop.
        """
        part = self.clock.top
        if self.at_step and self.in_script:
            self.at_step(self.steps_of_run, 1)
        if part.phase == "script" and self.in_script:
            self.clock.tick()
            if part.wall > _WORTH_A_LINE:
                self._record(part)

    def note_update(self) -> None:
        """Records an update of the weights by a loop of the script's own.

        Its line has all time since the last update.
        """
        if self.in_script:
            self.clock.tick()
            self.clock.top.phase = "loop"
            self.trained += 1
            self._record(self.clock.top, steps=1)
            if self.at_step:
                self.at_step(self.steps_of_run, 0)

    def _end_loop(self) -> None:
        if self.in_script:
            self.flush()
            self.clock.top.phase = "script"

    # -- times and counts -----------------------------------------------------------------------

    def span(self, kind: Kind) -> AbstractContextManager[None]:
        """Returns a context manager that counts its block as ``kind``."""
        return self.clock.span(kind)

    def become(self, kind: Kind) -> None:
        """Counts time as ``kind`` from now on, until the step or part ends or the next call."""
        self.clock.become(kind)

    def spend(self, kind: Kind, seconds: float, name: str = "") -> None:
        """Attributes ``seconds`` that have just passed to ``kind``; may be called in any thread.

        A profile shows them as ``name``.
        """
        self.clock.spend(kind, seconds, name)

    def note_sum(self) -> None:
        """Notes that a step in a graph has summed gradients; may be called in any thread.

        What comes after the last sum of a step, but for other exchanges, is its update.
        """
        self.clock.mark()

    def updated_since_sum(self) -> None:
        """Attributes the time since the last sum of the current step to the optimizer's update.

        Without a sum nothing is known, and nothing is attributed.
        """
        self.clock.spend_since_mark("update")

    def count(self, samples: float) -> None:
        """Adds ``samples`` of this worker to the step that goes on."""
        self.clock.top.samples += samples

    # -- lines ---------------------------------------------------------------------------------

    def say(self, **facts: object) -> None:
        """Records facts about how something is done in this run, e.g. ``input="planned"``.

        ``trained`` says where the run goes on: the steps before.
        """
        new = {
            name: value
            for name, value in facts.items()
            if name not in self.told or self.told[name] != value
        }
        if new and self._file is not None:
            self.told |= new
            self._write({"phase": "facts", **new})

    def sums(self, about: str) -> dict[str, float]:
        """Returns sums by name that `say_sums` records, to be added to.

        Such sums are the seconds of callbacks, and the numbers of graphs of functions.
        """
        return self._sums.setdefault(about, {})

    def add(self, about: str, name: str, amount: float) -> None:
        """Adds to one of the sums of `sums`."""
        sums = self.sums(about)
        sums[name] = sums.get(name, 0.0) + amount

    def say_sums(self) -> None:
        """Records the sums so far."""
        # other threads add to them
        sums = {about: dict(amounts) for about, amounts in list(self._sums.items())}
        self.say(
            **{
                about: {name: round(amount, 3) for name, amount in each.items()}
                for about, each in sums.items()
            }
        )

    def epoch(self, **facts: object) -> None:
        """Records the end of an epoch, on rank 0.

        The file is short enough to be read again and again.
        """
        self._unrecorded = None
        if self._folder is not None:
            self._append(RunDir(self._folder).epochs, {**self._place_in_training(), **facts})

    def point(
        self, facts: Callable[[], Mapping[str, object]], logs: Mapping[str, object] | None = None
    ) -> None:
        """Records a point of the curves after some steps, on rank 0.

        Args:
            facts: called if a point is recorded: not for each step, but for the last one.
            logs: what it reads. An array among them may not be computed yet.
        """
        if self._folder is None:
            return
        self._unrecorded = self._place_in_training(), facts, logs
        if time.perf_counter() >= self._next_point:
            self._append_point(self._folder)
            self._next_point = time.perf_counter() + pause(steady.now() - self._began)

    def _append_point(self, folder: Path) -> None:
        if self._unrecorded is not None:
            place, facts, _ = self._unrecorded
            self._unrecorded = None
            self._append(RunDir(folder).curve, {**place, **facts()})

    def _place_in_training(self) -> dict[str, object]:
        return {"time": round(steady.now(), 3), "fit": self.fits, "trained": self.trained}

    def _append(self, path: Path, line: Mapping[str, object]) -> None:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:  # as in `_write`
            self._folder = None
            print(
                f"syrtos: the curves of this run end here, their file can't be written: {error}",
                file=sys.stderr,
            )

    def flush(self) -> None:
        """Records the time outside of steps until now."""
        if self.clock.is_mine:
            self.clock.tick()
            for part in self.clock.parts:
                if not part.is_step:
                    self._record(part)

    def close(self) -> None:
        """Records the last step and the remaining time, and closes the file."""
        # An array of JAX whose other workers have gone would be waited for.
        logs = self._unrecorded[2] if self._unrecorded else None
        if self._folder is not None and all(_is_ready(v) for v in dict(logs or {}).values()):
            # after an error its numbers may be lost
            with contextlib.suppress(Exception):
                self._append_point(self._folder)
        if self._file is not None:
            self.say_sums()
            self.clock.unwind(self.clock.parts[0])
            self._record(self.clock.top)
        # else the disk was full just now
        if self._file is not None:
            self._file.close()
            self._file = None

    def _close(self, part: ClockPart, **facts: float) -> None:
        self.clock.end(part)
        self._record(part, **facts)

    def _record(self, part: ClockPart, **facts: float) -> None:
        """Records a part's time since its last line."""
        if self._file is not None and (part.wall or facts):
            line: dict[str, object] = {
                "phase": "script" if part.phase == "loop" and not facts else part.phase,
                **facts,
            }
            if part.phase != "fit" and self._is_in_fit(part):
                line["in_fit"] = True
            if part.samples:
                line["samples"] = part.samples
            line["wall"] = round(part.wall, 6)
            line |= {
                kind: round(seconds, 6) for kind, seconds in part.seconds.items() if seconds >= 5e-7
            }
            self._write(line)
        part.clear()

    def _is_in_fit(self, part: ClockPart) -> bool:
        """Returns whether `fit` is below the part, which is open or was closed just now."""
        around = itertools.takewhile(lambda open_part: open_part is not part, self.clock.parts)
        return any(outer.phase == "fit" for outer in around)

    def _write(self, line: dict[str, object]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            self._end_record(error)

    def _end_record(self, error: OSError) -> None:
        """Writes no more lines: a full disk, for example, is no reason to end the training."""
        self._file = None
        print(
            f"syrtos: the record of this run ends here, its file can't be written: {error}",
            file=sys.stderr,
        )


def _is_ready(value: object) -> bool:
    return bool(getattr(value, "is_ready", lambda: True)())


def pause(elapsed: float) -> float:
    """Returns the seconds until the next point of a curve, ``elapsed`` seconds into the run."""
    return max(_POINT, elapsed / _POINTS)


@contextmanager
def launching(
    run_dir: Path, began: float, unrecorded: Unrecorded | None = None
) -> Iterator[dict[str, object]]:
    """Context manager for the life of all workers of a run: records when it began and ended.

    What is put into the dictionary that it yields is recorded as the outcome.

    Args:
        run_dir: the folder of the generation.
        began: the start in seconds since the epoch.
        unrecorded: gets the file if it can't be written; None: that is an error.
    """
    path = RunDir(run_dir).launcher
    noting = unrecorded.noting if unrecorded else contextlib.nullcontext
    outcome: dict[str, object] = {}
    with noting(path):
        _replace(path, {"began": began})
    try:
        yield outcome
    finally:
        with noting(path):
            _replace(path, {"began": began, "ended": steady.now(), "outcome": outcome})


def _replace(path: Path, facts: Mapping[str, object]) -> None:
    # A reader finds a whole document at any moment.
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(facts))
    partial.replace(path)


def forget(run_dir: Path) -> None:
    """Removes the files of an earlier run in the same folder.

    That run may have had more workers, or failed.
    """
    for pattern in (
        "ledger/*.jsonl",
        "ledger/launcher.*",
        "logs/rank-*.*",
        "data/not-finite-rank-*.jsonl",
    ):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)
