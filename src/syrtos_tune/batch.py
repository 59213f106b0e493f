"""The search for a batch size, trial by trial."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from syrtos.launch.outcome import End
from syrtos.launch.plan import Machine
from syrtos.launch.spec import Spec
from syrtos.observe import memory as machine_memory
from syrtos.observe.memory import MachineMemory
from syrtos.settings import TuneTrial
from syrtos_tune import memory, runner
from syrtos_tune.ends import out_of_memory
from syrtos_tune.memory import TrialMemory, size
from syrtos_tune.runner import FinishedTrial, TrialError
from syrtos_tune.search import BatchRecommendation, BatchTrial, conclude, doubtful, following

# The most doubtful winners that are tried once more.
_AGAIN = 2
# Seconds between two looks at the machine's memory while a trial runs.
_LOOK = 0.1


@dataclasses.dataclass
class BatchSearch:
    """The tried batch sizes, in order, and the conclusions from them.

    Attributes:
        tried: each batch size that was tried.
        own: the script's own global batch; 0 if none of it fits into memory.
        workers: the number of workers that train.
        machine: the memory of this machine, or of the container, in bytes.
        usable: the part of it, in bytes, that a trial might have used when the search began.
        optimizer: the name of the script's optimizer.
        rate: its learning rate, if that is a number that can be read.
        rows: the rows that an epoch of the script trains on; 0 if unknown.
        found: the result; None if nothing fits, or the search was stopped.
        stopped: the error of the trial in which the search was stopped, after others had finished.
    """

    tried: list[BatchTrial]
    own: int
    workers: int
    machine: int
    usable: int
    optimizer: str = ""
    rate: float | None = None
    rows: int = 0
    found: BatchRecommendation | None = None
    stopped: TrialError | None = None


def search(
    spec: Spec,
    machine: Machine,
    run_dir: Path,
    steps: int,
    most: int | None,
    say: Callable[[str], None] = lambda text: None,
) -> BatchSearch:
    """Tries batch sizes, beginning with the script's own.

    Args:
        spec: the script, and its workers.
        machine: this machine.
        run_dir: the folder in which each trial gets a folder.
        steps: the number of steps that are measured in a trial.
        most: no larger global batch is tried.
        say: gets a line for each trial.

    Raises:
        TrialError: the script fails with its own batch, for another reason than memory, or is
            stopped in its first trial.
    """
    trying = _Trying(spec, machine, run_dir, steps, say)
    try:
        trying.all(most)
    except TrialError as error:
        if not trying.result.tried:
            raise
        trying.result.found, trying.result.stopped = None, error
    return trying.result


class _Trying:
    def __init__(
        self, spec: Spec, machine: Machine, run_dir: Path, steps: int, say: Callable[[str], None]
    ) -> None:
        self._spec, self._machine, self._run_dir, self._steps, self._say = (
            spec,
            machine,
            run_dir,
            steps,
            say,
        )
        has = machine_memory.now()
        self.result = BatchSearch([], 0, spec.workers, has.total, memory.usable(has))

    def all(self, most: int | None) -> None:
        """Tries batches until enough is known, and tries a winner that may be an outlier again."""
        result = self.result
        self.try_batch(0)
        ceiling = min((limit for limit in (most, result.rows) if limit), default=None)
        while (
            batch := following(result.tried, result.own, self._spec.workers, ceiling)
        ) is not None:
            self.try_batch(batch)
        result.found = conclude(result.tried, most, result.own, result.rows)
        for _ in range(_AGAIN):
            if result.found and (batch := doubtful(result.tried, result.found)):
                self._repeat(batch)
                result.found = conclude(result.tried, most, result.own, result.rows)

    def _repeat(self, batch: int) -> None:
        self._say(f"batch {batch:,} once more: its speed stands out, or its steps differ much")
        again = self._run_trial(batch, "-again")
        self._say(in_words(again))
        self.result.tried = [
            one.merge_with(again) if one.batch == batch else one for one in self.result.tried
        ]

    def try_batch(self, batch: int) -> None:
        """Tries a batch of this size; 0: the script's own."""
        tried = self._forecast_failure(batch) or self._run_trial(batch)
        self.result.tried.append(tried)
        self._say(in_words(tried))

    def _forecast_failure(self, batch: int) -> BatchTrial | None:
        """Returns a failure for a batch that would need more memory than there is; None for others.

        The forecast is made from the memory that the tried batches have needed.
        """
        points = [
            TrialMemory(one.batch, sum(one.before), sum(one.peak))
            for one in self.result.tried
            if not one.failed
        ]
        if not points or not batch:
            return None
        needs, has = memory.forecast(points, batch), machine_memory.now()
        # A batch that is smaller than one that fitted fits too.
        if needs <= memory.usable(has) or batch <= max(point.batch for point in points):
            return None
        return BatchTrial(
            batch, failed=f"would need about {size(needs)}; {_available(has)}", for_memory=True
        )

    def _run_trial(self, batch: int, more: str = "") -> BatchTrial:
        trial = TuneTrial(kind="batch", steps=self._steps, batch=batch)
        ran = runner.run(
            self._spec,
            self._machine,
            trial,
            self._run_dir / f"batch-{batch or 'own'}{more}",
            _guard(),
        )
        self.result.own, self.result.rows = self.result.own or ran.own, self.result.rows or ran.rows
        if not self._has_failed(ran):
            runner.check_has_trained(ran)
            return self._read_trial(ran.found)
        why, for_memory = self._reason(ran)
        # A script that fails with its own batch, or a person's stop, ends the search.
        if not for_memory and (ran.outcome.end is End.STOPPED or not self.result.tried):
            runner.check_has_trained(ran)
        return BatchTrial(batch or ran.own, failed=why, for_memory=for_memory)

    def _has_failed(self, ran: FinishedTrial) -> bool:
        return ran.outcome.end is not End.FINISHED and not ran.found

    def _reason(self, ran: FinishedTrial) -> tuple[str, bool]:
        if ran.outcome.end is End.REPLACED:
            return f"was ended: {ran.outcome.why}", True
        # Where the address space is limited, libraries end in any way for want of memory.
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        found = out_of_memory(ran.outcome, ran.log, limited)
        return found or f"failed: {ran.outcome.sentence().rstrip('.')}", bool(found)

    def _read_trial(self, found: Any) -> BatchTrial:
        self.result.optimizer, self.result.rate = found["optimizer"], found["rate"]
        before, peak, device = (
            tuple(worker[name] for worker in found["workers"])
            for name in ("before", "peak", "device")
        )
        return BatchTrial(
            found["batch"], tuple(found["seconds"]), before, peak, device, found["note"]
        )


def _available(has: MachineMemory) -> str:
    return f"{size(has.available)} of {size(has.total)} are free, and a tenth of that is kept back"


def _guard() -> Callable[[], str]:
    """Returns a function that checks the machine's memory while a trial runs.

    The function returns a sentence once the memory is nearly used up, and an empty text before.
    """
    looks = _due_every(_LOOK)

    def find_shortage() -> str:
        if next(looks) and memory.is_short(has := machine_memory.now()):
            return f"only {size(has.available)} of this machine's memory was left"
        return ""

    return find_shortage


def _due_every(seconds: float) -> Iterator[bool]:
    """Yields True at most once in this many seconds, and False otherwise."""
    last = time.monotonic()
    while True:
        now = time.monotonic()
        last = now if (due := now - last >= seconds) else last
        yield due


def milliseconds(seconds: float) -> str:
    """Returns seconds as a text in milliseconds with three digits."""
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def in_words(tried: BatchTrial) -> str:
    """Returns a line about a trial."""
    if tried.failed:
        return f"batch {tried.batch:,}: {tried.failed}"
    peak = size(max(tried.peak)) + (
        f", {size(max(tried.device))} on the accelerator" if any(tried.device) else ""
    )
    return (
        f"batch {tried.batch:,}: {tried.speed:,.0f} samples/s, {milliseconds(tried.step)} ms a"
        f" step, {peak} a worker"
    )
