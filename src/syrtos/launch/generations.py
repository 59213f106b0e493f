"""A run as generations of workers: when one ends early, the next goes on from the last snapshot.

Workers commit snapshots to memory that outlives them: of this process, or of the agents on several
hosts. A thread copies the newest to the run directory now and then: from there a run goes on whose
launcher, or machine, was lost.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from syrtos.checkpoint import folders, head
from syrtos.launch.outcome import End, Outcome
from syrtos.launch.policy import Attempt, Decision, RestartPolicy, decide
from syrtos.launch.processes import signalling
from syrtos.launch.snapshots import Snapshots
from syrtos.launch.terminal import output
from syrtos.run_dir import RunDir
from syrtos.settings import CALL_PROGRAM, SEED_VARIABLE, SNAPSHOTS_VARIABLE, OtherBatches

# Seconds between two copies of a snapshot to the run directory.
_DURABLE_EVERY = 30.0
# A copy takes at most this part of a core.
_DURABLE_COST = 0.035


Start = Callable[[Path, Callable[[int], Mapping[str, str]]], Outcome]


@dataclasses.dataclass(frozen=True)
class RunEnd:
    """The end of a run.

    Attributes:
        outcome: the outcome of the last generation.
        folder: the last generation's run directory: the run's own for the first, ``generation-N``
            in it for later ones.
        reason: the reason why no further generation was started, if restarts were allowed.
        resumable: how far the snapshot in the run directory is, in words; empty if there is none.
        before: how the generation before the last ended, as a sentence; empty for the first.
    """

    outcome: Outcome
    folder: Path
    reason: str = ""
    resumable: str = ""
    before: str = ""


def run(
    start: Start,
    snapshots: Snapshots,
    run_dir: Path,
    policy: RestartPolicy,
    seed: int,
    resume: bool = False,
    *,
    durable: bool = True,
    any_batches: bool = False,
    gather: Callable[[Callable[[], bool]], None] = lambda over: None,
    came: list[int] | None = None,
    say: Callable[[str], None] = output.say,
) -> RunEnd:
    """Runs generations of workers until one has finished, or the policy ends the run.

    Args:
        start: runs one generation, recorded in a folder. Its second argument gives, for a number of
            workers, the variables that are added to their environment.
        snapshots: memory for what workers commit; it is freed at the end.
        run_dir: the run directory.
        policy: decides whether there is a next generation.
        seed: the workers' common seed, the same in each generation.
        resume: whether the run goes on from a snapshot in ``run_dir``.
        durable: whether snapshots are copied to ``run_dir``, for a later `resume`.
        any_batches: whether training may go on with other batches than those of the snapshot.
        gather: waits until it is known which hosts the next generation has, or until its argument
            says that the run is over.
        came: gets the signals that come when no generation answers them; ``start`` answers those
            that it finds there.
        say: gets a line for each incident.
    """
    first = next_generation(run_dir, resume)
    if not resume:
        forget(run_dir)
    series = _Series(
        start,
        snapshots,
        run_dir,
        policy,
        seed,
        first,
        durable,
        "any" if any_batches else "compared" if resume else "ignored",
        gather,
        say,
        run_dir,
        [] if came is None else came,
    )
    with (
        signalling.answering_signals(series.came.append),
        closing(snapshots),
        _durable(snapshots, series, resume) if durable else nullcontext(),
    ):
        series.run()
        progress = _describe_progress(snapshots)
    if durable:
        # the last snapshot in memory may be none that could be written
        progress = _describe_kept(series.kept)
    if series.outcome.end is End.FINISHED or not durable:
        folders.forget(series.kept)
    before = str(series.attempts[-2].outcome) if len(series.attempts) > 1 else ""
    return RunEnd(series.outcome, series.folder, series.decision.reason, progress, before)


@dataclasses.dataclass
class _Series:
    """The generations of a run, one after the other.

    Attributes:
        batches: the treatment of batches that differ from those of the snapshot.
        came: signals that came when no workers were there to take them.
        attempts: the generations that have ended.
        decision: what the policy made of the last of them.
        folder: the last generation's run directory.
        outcome: the last generation's outcome.
    """

    start: Start
    snapshots: Snapshots
    run_dir: Path
    policy: RestartPolicy
    seed: int
    first: int
    durable: bool
    batches: OtherBatches
    gather: Callable[[Callable[[], bool]], None]
    say: Callable[[str], None]
    folder: Path
    came: list[int] = dataclasses.field(default_factory=list)
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    decision: Decision = dataclasses.field(default_factory=lambda: Decision(False))
    outcome: Outcome = dataclasses.field(default_factory=Outcome)

    @property
    def kept(self) -> Path:
        """The folder of snapshots that outlive the workers."""
        return RunDir(self.run_dir).snapshots

    def run(self) -> None:
        """Runs generations until one has finished or the run is ended.

        The policy ends the run, or a signal that comes between two generations.
        """
        while True:
            self.gather(lambda: bool(self.came))
            # No worker was there to take the signal.
            if self.came:
                self.outcome = dataclasses.replace(
                    self.outcome,
                    end=End.STOPPED,
                    code=128 + signalling.stop_signal(self.came[0]),
                    stopped_by=self.came[0],
                )
                return
            number = self.first + len(self.attempts)
            self.folder = RunDir(self.run_dir).generation(number)
            self.outcome = self.start(self.folder, self._variables)
            self.attempts.append(
                Attempt(self.outcome, _settle(self.snapshots, self.kept if self.durable else None))
            )
            self.decision = decide(self.policy, self.attempts)
            if not self.decision.again:
                return
            progress = _describe_progress(self.snapshots)
            begins = f"goes on from {progress}" if progress else "begins anew"
            self.say(_announcement(self.outcome, number + 1, begins, self.folder))
            _wait(self.decision.wait, self.came)

    def _variables(self, workers: int) -> dict[str, str]:
        """Returns the variables by which so many workers find the memory of snapshots.

        The common seed of the workers is among the variables.
        """
        described = {
            **self.snapshots.facts_for_writers(workers),
            "folder": str(self.kept),
            "batches": self.batches,
        }
        return {SNAPSHOTS_VARIABLE: json.dumps(described), SEED_VARIABLE: str(self.seed)}


def _settle(snapshots: Snapshots, folder: Path | None) -> int:
    """Settles the snapshots after a generation, and returns the number of the one that is kept.

    If memory has none any more, as all hosts were lost, the copy in ``folder`` is loaded.
    """
    return snapshots.settle() or (folders.load(folder, snapshots)[0] if folder else 0)


def _wait(seconds: float, came: Sequence[int]) -> None:
    """Waits ``seconds``, or until a signal has come."""
    deadline = time.monotonic() + seconds
    while not came and time.monotonic() < deadline:
        time.sleep(0.05)


def has_snapshot(run_dir: Path) -> bool:
    """Returns whether a run in this folder could go on from its last snapshot.

    The function that a notebook or script has sent is gone with it.
    """
    program = RunDir(run_dir).request().get("program")
    is_call = isinstance(program, dict) and program.get("name") == CALL_PROGRAM
    return not is_call and bool(folders.numbers(RunDir(run_dir).snapshots))


def is_of_script(run_dir: Path) -> bool:
    """Returns whether the last snapshot is of a state that the script has committed itself."""
    try:
        return bool(_place_in(RunDir(run_dir).snapshots)["commits"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        # there is no snapshot, or it is damaged
        return False


def forget(run_dir: Path) -> None:
    """Removes snapshots and generations of an earlier run in this folder."""
    folders.forget(RunDir(run_dir).snapshots)
    for path in run_dir.glob("generation-[0-9]*"):
        # A folder of that name without a ledger is not of a run.
        if RunDir(path).records.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def next_generation(run_dir: Path, resume: bool) -> int:
    """Returns the number of the generation with which a run in this folder begins, or goes on."""
    return RunDir(run_dir).newest_number() + 1 if resume else 1


@contextmanager
def _durable(snapshots: Snapshots, series: _Series, resume: bool) -> Iterator[None]:
    """Context manager: a thread copies the newest snapshot to the run directory now and then.

    At the end of a run that has not finished the last snapshot is copied. Where a run goes on, the
    context manager begins with loading the snapshot that is there.
    """
    folder, copies = series.kept, _DiskCopies(snapshots, series.kept)
    if resume:
        number, complaints = folders.load(folder, snapshots)
        for complaint in complaints:
            output.say(complaint)
        output.say(
            f"goes on from {_describe_progress(snapshots)}"
            if number
            else f"there is no snapshot in {folder}: training begins anew"
        )
    over = threading.Event()

    def keep() -> None:
        took = 0.0
        while not over.wait(max(_DURABLE_EVERY, took / _DURABLE_COST)):
            began = time.thread_time()
            copies.make("The workers go on, and can be restarted from memory.")
            took = time.thread_time() - began

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if not (series.attempts and series.outcome.end is End.FINISHED):
            copies.make("It is lost with this process.")


class _DiskCopies:
    """The copies of snapshots in a folder; that its disk is full is said once."""

    def __init__(self, snapshots: Snapshots, folder: Path) -> None:
        self._snapshots, self._folder = snapshots, folder
        self._said: set[str] = set()

    def make(self, otherwise: str) -> None:
        """Copies the newest snapshot, or says why not, and what follows: ``otherwise``."""
        try:
            folders.save(self._snapshots, self._folder)
        except (BlockingIOError, ConnectionError):
            # Workers have replaced the snapshot, or a host is lost: the next one will do.
            return
        except OSError as error:
            if otherwise not in self._said:
                self._said.add(otherwise)
                why = error.strerror or error
                output.say(
                    f"the last snapshot could not be written to {self._folder} ({why}). {otherwise}"
                )
            return
        self._said.clear()


def _describe_progress(snapshots: Snapshots) -> str:
    """Returns in words how far training is in the committed snapshot; empty if there is none."""
    number = snapshots.committed_number()
    if not number:
        return ""
    try:
        place = head.first_facts(snapshots.pieces(0, number))["place"]
    except OSError:
        # A host was lost just now; another may have the snapshot.
        return f"snapshot {number}"
    return _describe(place)


def _describe_kept(folder: Path) -> str:
    """Returns in words how far training is in the newest snapshot in a folder.

    The text is empty if there is none that can be read.
    """
    try:
        return _describe(_place_in(folder))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""


def _place_in(folder: Path) -> Mapping[str, Any]:
    """Returns how far training is in the newest snapshot in a folder.

    Raises:
        IndexError: there is none.
        OSError: it can't be read.
        ValueError, KeyError, TypeError: it is damaged.
    """
    with folders.first_part(folder, folders.numbers(folder)[0]).open("rb") as file:
        return head.first_facts(iter(lambda: file.read(1 << 16), b""))["place"]


def _describe(place: Mapping[str, Any]) -> str:
    if place["commits"]:
        return f"commit {place['commits']} of the script"
    if place["ended"]:
        return f"the end of fit {place['fit']}"
    where = "the end of epoch" if place["epoch_ended"] else "in epoch"
    return f"step {place['calls']} ({where} {place['epoch'] + 1}) of fit {place['fit']}"


def _announcement(outcome: Outcome, number: int, begins: str, folder: Path) -> str:
    """Returns the line about an incident; the rest is in the logs."""
    return f"{outcome.sentence()} Generation {number} {begins}. Logs of this one: {RunDir(folder).logs}"
