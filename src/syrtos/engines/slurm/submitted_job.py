"""A batch job that was submitted: a run, or an array of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from syrtos.engines.engine import STOPPED, RunState, Submitted, growing, read_end
from syrtos.engines.slurm import controller
from syrtos.errors import ConfigurationError

# Seconds between two questions about a job: Slurm's controller serves many.
_EVERY = 3.0
_LOOK = 0.5  # seconds between two looks at the logs of an array
# The end of a job by Slurm's word for its state (squeue(1), "JOB STATE CODES"), with what to do.
_FAILED = {
    "BOOT_FAIL": "its nodes did not start.",
    "DEADLINE": "its deadline has passed.",
    "NODE_FAIL": (
        "a node was lost. The same command with this run directory goes on from the last snapshot."
    ),
    "OUT_OF_MEMORY": "it has used more memory than it asked for: ask for more (`--with mem=16G`).",
    "TIMEOUT": (
        "its time is over: ask for more (`--with time=4:00:00`). The same command with this run"
        " directory goes on from the last snapshot."
    ),
}


class SubmittedJob(Submitted):
    """A batch job, by its number.

    Args:
        number: Slurm's number of the job.
        run_dir: its run directory; that of an array has one for each task, named by the task's
            number.
        is_array: whether it is an array.
    """

    def __init__(self, number: str, run_dir: Path, is_array: bool = False) -> None:
        self._number, self._run_dir, self._is_array = number, run_dir, is_array
        self.name = f"job {number}"
        self._state: RunState | None = None
        self._asked = 0.0  # when it was asked for the state

    def state(self) -> RunState:
        if self._state is None or time.monotonic() - self._asked > _EVERY:
            self._state, self._asked = self._ask_slurm(), time.monotonic()
        return self._state

    def _ask_slurm(self) -> RunState:
        try:
            tasks = controller.tasks_of(self._number)
        except ConfigurationError as error:
            # Slurm's controller does not answer for a moment: the state is the one that is known.
            if known := self._state or self._recorded_end():
                return known
            raise ConfigurationError(
                f"Slurm does not answer, and no end of {self.name} is recorded in {self._run_dir}:"
                f" it may wait, train or have ended. {error}"
            ) from error
        if tasks:
            return combine([self._state_of(task) for task in tasks])
        return self._recorded_end() or RunState(
            "failed",
            f"Slurm knows nothing of job {self._number} any more: {self._log()} is its output.",
        )

    def _recorded_end(self) -> RunState | None:
        """Returns how the run ended, as its launcher has written; None if it has not."""
        folders = (
            [path.parent for path in self._run_dir.glob("*/run.json")]
            if self._is_array
            else [self._run_dir]
        )
        ends = [ended for folder in folders if (ended := read_end(folder))]
        return combine(ends) if ends else None

    def _state_of(self, facts: Mapping[str, str]) -> RunState:
        task = facts.get("ArrayTaskId", "") if self._is_array else ""
        name, run_dir = f"{self._number}_{task}" if task else self._number, self._run_dir / task
        word, reason = facts.get("JobState", ""), facts.get("Reason", "None")
        if word in ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED"):
            return RunState("running")
        if word in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING"):
            return RunState("waiting", controller.why_waiting(name, reason))
        if word == "COMPLETED":
            return RunState("finished", code=0)
        code = int(facts.get("ExitCode", "1:0").partition(":")[0]) or 1
        if word in ("CANCELLED", "PREEMPTED"):
            return RunState("stopped", f"job {name} was cancelled.", code)
        if code == STOPPED:
            return RunState(
                "stopped",
                f"its state is saved: the same command with --run-dir {run_dir} goes on from it.",
                code,
            )
        why = _FAILED.get(word, f"ended with exit code {code}.")
        return RunState(
            "failed", f"job {name}: {why}" if word in _FAILED else f"job {name} {why}", code
        )

    def output(self, follow: bool) -> Iterator[bytes]:
        return (
            self._output_of_tasks(follow) if self._is_array else growing(self._log(), self, follow)
        )

    def _output_of_tasks(self, follow: bool) -> Iterator[bytes]:
        """Yields the lines of all tasks as they come, each with the task's number before it."""
        positions: dict[Path, int] = {}
        over = False
        while not over:
            # what was written before the end is read once more
            over = not follow or self.state().is_over
            for path in sorted(
                self._run_dir.glob(f"slurm-{self._number}_*.log"),
                key=lambda found: (len(found.name), found),
            ):
                yield from _new_lines(path, positions, over)
            if not over:
                time.sleep(_LOOK)

    def _log(self) -> Path:
        return self._run_dir / f"slurm-{self._number}{'_*' if self._is_array else ''}.log"

    def stop(self, at_once: bool = False) -> None:
        # The batch script alone passes the signal on to the launcher, so that agents are there
        # until the state is saved.
        soft = not at_once and self._ask_slurm().phase == "running"
        try:
            controller.cancel(*(["--batch", "--signal=TERM"] if soft else []), self._number)
        finally:
            if soft and self._is_array:
                # tasks that have not begun
                controller.cancel("--state=PENDING", self._number)


def combine(states: list[RunState]) -> RunState:
    """Returns the state of several tasks as one.

    The tasks run as long as one of them does, and fail with the first that has failed.
    """
    for phase in ("running", "waiting", "failed", "stopped"):
        for state in states:
            if state.phase == phase:
                return state
    return states[0]


def _new_lines(path: Path, positions: dict[Path, int], to_the_end: bool) -> Iterator[bytes]:
    """Yields the new lines of a task's log, whole ones unless it is to be read to its end."""
    with path.open("rb") as file:
        file.seek(positions.get(path, 0))
        data = file.read()
    whole = len(data) if to_the_end else data.rfind(b"\n") + 1
    positions[path] = positions.get(path, 0) + whole
    task = path.stem.rpartition("_")[2].encode()
    for line in data[:whole].splitlines():
        yield task + b" | " + line + b"\n"
