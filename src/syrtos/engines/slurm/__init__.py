"""Slurm: inside of an allocation its nodes are reached by `srun`; from elsewhere a batch job is submitted."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from syrtos.engines.engine import STOPPED, Engine, Reached, RunState, Submitted, Wanted, check_values, growing, read_end
from syrtos.engines.reservation import Holder, Reservation, WantedNodes
from syrtos.engines.slurm import allocation, batch, controller, held_allocation
from syrtos.errors import LaunchError
from syrtos.settings import environment

_SCRIPT = "slurm.sh"
# Seconds between two questions about a job: Slurm's controller serves many.
_EVERY = 3.0
# The end of a job by Slurm's word for its state (squeue(1), "JOB STATE CODES"), with what to do.
_FAILED = {
    "BOOT_FAIL": "its nodes did not start.",
    "DEADLINE": "its deadline has passed.",
    "NODE_FAIL": "a node was lost. The same command with this run directory goes on from the last snapshot.",
    "OUT_OF_MEMORY": "it has used more memory than it asked for: ask for more (`--with mem=16G`).",
    "TIMEOUT": "its time is over: ask for more (`--with time=4:00:00`). The same command with this run directory goes on from the last snapshot.",
}


class Slurm(Engine):
    """Runs in jobs of Slurm 22.05 and later."""

    name = "slurm"
    settings = batch.SETTINGS

    def reach(self, wanted: Wanted) -> AbstractContextManager[Reached] | None:
        found = allocation.hosts_of(environment(), wanted.workers)
        if found is None:
            return None
        here = allocation.is_one_node_here(found)
        return contextlib.nullcontext(Reached(found, "" if here else allocation.SRUN))

    def files(self, wanted: Wanted) -> dict[str, str]:
        return {_SCRIPT: batch.script(wanted)}

    def submit(self, wanted: Wanted) -> dict[str, str]:
        wanted.run_dir.mkdir(parents=True, exist_ok=True)
        path = wanted.run_dir / _SCRIPT
        path.write_text(self.files(wanted)[_SCRIPT])
        done = controller.run_command(["sbatch", "--parsable", str(path)], wanted.folder)
        if done.returncode:
            said = done.stderr.strip().removeprefix("sbatch: error: ").replace("\nsbatch: error: ", " ")
            raise LaunchError(f"Slurm refuses the job: {said} ({path} is what was submitted.)")
        return {"job": done.stdout.strip().partition(";")[0], "run_dir": str(wanted.run_dir)}

    def check_jobs(self, values: Mapping[str, str]) -> None:
        check_values(values, held_allocation.SETTINGS, "slurm")
        if shutil.which("salloc") is None:
            raise controller.missing_command("salloc")

    def reserve(self, wanted: WantedNodes, holder: Holder) -> AbstractContextManager[Reservation]:
        return held_allocation.hold_allocation(wanted, holder)

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        return _Job(facts["job"], Path(facts["run_dir"]))


class _Job(Submitted):
    """A batch job, by its number."""

    def __init__(self, number: str, run_dir: Path) -> None:
        self._number, self._run_dir = number, run_dir
        self._state = RunState("waiting")
        self._asked: float | None = None

    def state(self) -> RunState:
        if self._asked is None or time.monotonic() - self._asked > _EVERY:
            self._state, self._asked = self._look(), time.monotonic()
        return self._state

    def _look(self) -> RunState:
        facts = controller.facts_of(self._number)
        # Slurm's controller does not answer for a moment: the state is the one that is known.
        if facts is None:
            return self._state
        word, reason = facts.get("JobState", ""), facts.get("Reason", "None")
        if word in ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED"):
            return RunState("running")
        if word in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING"):
            return RunState("waiting", controller.why_waiting(self._number, reason))
        if word == "COMPLETED":
            return RunState("finished", code=0)
        code = int(facts.get("ExitCode", "1:0").partition(":")[0]) or 1
        if word in ("CANCELLED", "PREEMPTED"):
            return RunState("stopped", f"job {self._number} was cancelled.", code)
        if code == STOPPED:
            return RunState(
                "stopped", f"its state is saved: the same command with --run-dir {self._run_dir} goes on from it.", code
            )
        if word in _FAILED:
            return RunState("failed", f"job {self._number}: {_FAILED[word]}", code)
        if word:
            return RunState("failed", f"job {self._number} ended with exit code {code}.", code)
        if ended := read_end(self._run_dir):
            return ended
        return RunState("failed", f"Slurm knows nothing of job {self._number} any more: {self._log()} is its output.")

    def output(self, follow: bool) -> Iterator[bytes]:
        return growing(self._log(), self, follow)

    def _log(self) -> Path:
        return self._run_dir / f"slurm-{self._number}.log"

    def stop(self, at_once: bool = False) -> None:
        # The batch script alone passes the signal on to the launcher, so that agents are there until the state is
        # saved.
        soft = not at_once and self._look().phase == "running"
        controller.run_command(["scancel", *(["--batch", "--signal=TERM"] if soft else []), self._number])


ENGINE = Slurm()
