"""The decision after a generation of workers: a pure function of how all so far have ended."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from syrtos.launch.outcome import End, Outcome

# A generation that commits nothing new has failed at the same place as the one before. So many in a
# row are not chance.
_SAME_PLACE = 3
_LONGEST_WAIT = 30.0
# Ends of workers that are no error of the script.
_LOST = (End.CRASHED, End.LOST, End.HUNG)
# Words in errors of networks, disks and services, which may have gone when the next generation
# comes.
_OUTAGE = re.compile(
    r"OSError|IOError|Connect|Timeout|timed out|Unavailable|Exhausted|Aborted|throttl",
    re.IGNORECASE,
)
# Errors after which the next generation would go wrong too, and why.
_FINAL = {
    "DivergenceError": "the replicas had diverged, and so have their snapshots",
    "SnapshotError": "the script does not go with its snapshot",
    "NonFiniteError": "the same batch would give the same gradient again",
}


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """The rules by which workers are started again.

    Attributes:
        restarts: the largest number of restarts.
        asked: whether a person has asked for restarts. Else only workers that were lost are started
            again, and only where there is a snapshot to go on from: an error of the script would
            come again, and a run without a snapshot would be trained twice.
        repair: whether replicas that have diverged go on from the last snapshot: each was taken of
            equal ones (`--on-divergence repair`).
    """

    restarts: int
    asked: bool = True
    repair: bool = False


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The end of one generation of workers.

    Attributes:
        outcome: the end of its workers.
        reached: number of the last snapshot that was committed by then.
    """

    outcome: Outcome
    reached: int


@dataclasses.dataclass(frozen=True)
class Decision:
    """The next action after a generation has ended.

    Attributes:
        again: whether workers are started again.
        reason: the reason why they are not, where restarts were allowed; else empty.
        wait: seconds before they are started.
    """

    again: bool
    reason: str = ""
    wait: float = 0.0


def decide(policy: RestartPolicy, attempts: Sequence[Attempt]) -> Decision:
    """Decides whether workers are started again after the last of ``attempts``.

    The first attempt was no restart.
    """
    last = attempts[-1].outcome
    if last.end is End.REPLACED:
        return Decision(True)
    attempts = [attempt for attempt in attempts if attempt.outcome.end is not End.REPLACED]
    if last.end is End.NOT_STARTED and last.rank is None and policy.restarts:
        # Hosts have been waited for: none, or too few, have come.
        return Decision(False, last.why)
    diverged = policy.repair and last.has_reported("DivergenceError")
    if not policy.restarts or not (diverged or _may_go_well(policy, attempts[-1])):
        return Decision(False)
    if final := next(
        (reason for name, reason in _FINAL.items() if not diverged and last.has_reported(name)), ""
    ):
        return Decision(False, final)
    if len(attempts) > policy.restarts:
        return Decision(False, f"{policy.restarts} restarts were allowed, and have been made")
    stuck = _without_progress(attempts)
    if stuck > 1 and attempts[-1].reached and (error := _repeated_error(attempts)):
        return Decision(
            False,
            f"2 generations have ended by the same error at the same place ({error}), so another"
            " would too",
        )
    if stuck >= _SAME_PLACE:
        where = "at the same place" if attempts[-1].reached else "before any step was committed"
        return Decision(False, f"{stuck} generations have ended {where}, so another would too")
    return Decision(True, wait=min(2.0 ** (stuck - 1), _LONGEST_WAIT) if stuck > 1 else 0.0)


def _may_go_well(policy: RestartPolicy, attempt: Attempt) -> bool:
    """Returns whether the next generation may go better than an attempt with such an end."""
    end, goes_on = attempt.outcome.end, attempt.reached > 0
    if end is End.NOT_STARTED:
        # without a snapshot there is nothing to lose, and workers that can't be started can't be
        # the next time
        return goes_on
    if not policy.asked:
        # a positive code is the script's own, as of `os._exit(3)`: no accident of the machine
        by_script = end is End.LOST and (attempt.outcome.status or 0) > 0
        return end in _LOST and goes_on and not by_script
    return end in (*_LOST, End.FAILED)


def _repeated_error(attempts: Sequence[Attempt]) -> str:
    """Returns the error by which both of the last two attempts ended.

    The text is empty if they ended otherwise, or by an outage.
    """
    first, second = (attempt.outcome.error() for attempt in attempts[-2:])
    return second if second == first and not _OUTAGE.search(second) else ""


def _without_progress(attempts: Sequence[Attempt]) -> int:
    """Returns the number of the last attempts that have come no further than the first of them."""
    last = attempts[-1].reached
    count = 0
    for attempt in reversed(attempts):
        if attempt.reached != last:
            break
        count += 1
    return count
