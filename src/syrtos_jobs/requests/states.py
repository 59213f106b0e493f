"""The life of a training job: which secondary status may follow which, and what SDKs print of it.

    Starting ─ Pending ─ Starting ─ Downloading ─ Training ─ Uploading ─ Completed
                                        │             │ └─ Interrupted ─ Starting
                                        │             │ └─ Restarting  ─ Starting
                                        └─ Stopping ──┴──── Uploading ─ Stopped, MaxRuntimeExceeded,
                                                                        MaxWaitTimeExceeded
    any ─ Failed

A spot job that gives way is interrupted. A job whose runner or worker died is restarted.

Names and meanings are of SageMaker's API reference, DescribeTrainingJob.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from syrtos.errors import ConfigurationError

# Secondary statuses that end a job, and the status it then has.
FINAL = {
    "Completed": "Completed",
    "Failed": "Failed",
    "Stopped": "Stopped",
    "MaxRuntimeExceeded": "Stopped",
    "MaxWaitTimeExceeded": "Stopped",
}

_ENDS = frozenset({"Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"})
# Those in which a job ends to begin again.
AGAIN = frozenset({"Interrupted", "Restarting"})
# How often it does where its request does not say.
RESTARTS = 3
NEXT: dict[str, frozenset[str]] = {
    "Starting": frozenset({"Pending", "Downloading", "Stopping"}) | AGAIN | _ENDS,
    "Pending": frozenset({"Starting", "Stopping"}) | _ENDS,
    "Downloading": frozenset({"Training", "Stopping"}) | AGAIN | _ENDS,
    "Training": frozenset({"Uploading", "Stopping"}) | AGAIN | _ENDS,
    "Stopping": frozenset({"Uploading", "Stopping"}) | _ENDS,
    "Uploading": frozenset({"Completed"}) | AGAIN | _ENDS,
    "Interrupted": frozenset({"Starting", "Pending", "Stopping"}) | _ENDS,
    "Restarting": frozenset({"Starting", "Pending", "Stopping"}) | _ENDS,
}

MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Pending": "Waiting for workers that are in use by other jobs",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Stopped": "Training job stopped",
    "Failed": "Training job failed",
    "Interrupted": "Training job interrupted: another job needs its workers",
    "Restarting": "The process that ran this job is gone: starting it again from its checkpoints",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job exceeded MaxWaitTimeInSeconds provided",
}


class Transition(TypedDict):
    """An entry of ``SecondaryStatusTransitions``; times are seconds since 1970."""

    Status: str
    StartTime: float
    EndTime: NotRequired[float]
    StatusMessage: str


@dataclasses.dataclass(frozen=True)
class JobState:
    """The status of a job, as Describe gives it.

    Attributes:
        status: ``InProgress``, ``Stopping``, ``Completed``, ``Failed`` or ``Stopped``.
        secondary: the finer status.
        transitions: ``Status``, ``StartTime``, ``EndTime`` (seconds since 1970) and
            ``StatusMessage`` of every secondary status so far.
    """

    status: str
    secondary: str
    transitions: tuple[Transition, ...]

    @property
    def final(self) -> bool:
        """Returns whether the job has ended: no other status can follow."""
        return self.secondary in FINAL

    def with_transition(self, secondary: str, now: float, message: str | None = None) -> JobState:
        """Returns the state after a transition at ``now``.

        Raises:
            ConfigurationError: this state can't be followed by ``secondary``.
        """
        if secondary not in NEXT.get(self.secondary, frozenset()):
            raise ConfigurationError(
                f"A training job that is {self.secondary} can't become {secondary}."
            )
        *before, last = self.transitions
        entry: Transition = {
            "Status": secondary,
            "StartTime": now,
            "StatusMessage": message or MESSAGES[secondary],
        }
        if secondary in FINAL:
            entry["EndTime"] = now
        status = FINAL.get(secondary) or ("Stopping" if self._stops(secondary) else "InProgress")
        return JobState(status, secondary, (*before, {**last, "EndTime": now}, entry))

    def _stops(self, secondary: str) -> bool:
        """Returns whether the job's status is Stopping afterwards."""
        # it lasts while a stopped job uploads
        return secondary == "Stopping" or (self.status == "Stopping" and secondary == "Uploading")


def initial_state(now: float) -> JobState:
    """Returns the state of a new job."""
    first: Transition = {
        "Status": "Starting",
        "StartTime": now,
        "StatusMessage": "Starting the training job",
    }
    return JobState("InProgress", "Starting", (first,))


def restarts(transitions: Sequence[Transition]) -> int:
    """Returns the number of times that a job was started again because processes of it had died."""
    return sum(transition["Status"] == "Restarting" for transition in transitions)


def seconds_in(transitions: Sequence[Transition], statuses: Sequence[str], now: float) -> float:
    """Returns the seconds that a job has been in any of ``statuses``, over all attempts."""
    return sum(
        (t.get("EndTime") or now) - t["StartTime"] for t in transitions if t["Status"] in statuses
    )
