"""The runner of trials: it runs a script in processes of their own and returns the measurements.

The output of the workers goes into a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.errors import LaunchError
from syrtos.launch.outcome import End, Outcome
from syrtos.launch.plan import Machine, make_plan
from syrtos.launch.spec import Spec
from syrtos.launch.supervise import supervise
from syrtos.observe import steady
from syrtos.observe.ledger import forget, launching
from syrtos.run_dir import RunDir
from syrtos.settings import TRIAL_VARIABLE, TuneTrial

# as `syrtos_tune.trials.trial` writes them
_BEGAN, _RESULT, _CALLED = "began.json", "trial.json", "called.json"
_OUTPUT = "output.txt"
_LAST = 20_000  # characters of a log in which the reason of an end is looked for


@dataclasses.dataclass(frozen=True)
class FinishedTrial:
    """A trial that has ended.

    Attributes:
        outcome: the way in which it ended.
        folder: its run directory.
        found: the measurements of its workers; empty if it ended before.
        own: the rows of the script's own global batch; 0 if the trial ended before that was known.
        rows: the rows that an epoch trains on; 0 if unknown.
    """

    outcome: Outcome
    folder: Path
    found: Mapping[str, Any]
    own: int
    rows: int

    @property
    def log(self) -> str:
        """The end of the output of its workers."""
        logs = [self.folder / _OUTPUT, *sorted(RunDir(self.folder).logs.glob("rank-*.log"))]
        return "\n".join(
            path.read_text(errors="replace")[-_LAST:] for path in logs if path.is_file()
        )

    @property
    def called_methods(self) -> list[str]:
        """The methods of Keras, other than `fit`, that the script has called."""
        path = self.folder / _CALLED
        return json.loads(path.read_text()) if path.is_file() else []


class TrialError(LaunchError):
    """A trial failed, and no conclusion is possible.

    Attributes:
        ran: the trial.
    """

    def __init__(self, text: str, ran: FinishedTrial) -> None:
        super().__init__(text)
        self.ran = ran


def run(
    spec: Spec,
    machine: Machine,
    trial: TuneTrial,
    folder: Path,
    changed: Callable[[], str] = lambda: "",
) -> FinishedTrial:
    """Runs ``spec`` as ``trial``, recorded in ``folder``, until it ends.

    Args:
        changed: called again and again; a text that is not empty is a reason to end the trial.
    """
    folder.mkdir(parents=True, exist_ok=True)
    forget(folder)
    # What an earlier trial in this folder has written must not count as this one's.
    for name in (_BEGAN, _RESULT, _CALLED):
        (folder / name).unlink(missing_ok=True)
    now = dataclasses.replace(spec, options=dataclasses.replace(spec.options, run_dir=str(folder)))
    env = {**settings.environment(), TRIAL_VARIABLE: trial.to_json()}
    plan = make_plan(now, machine, env)
    with (
        (folder / _OUTPUT).open("w", encoding="utf-8", errors="replace") as output,
        launching(folder, steady.now()) as facts,
    ):
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                outcome = supervise(plan, env, spec.grace, changed=changed)
            except KeyboardInterrupt:
                # Ctrl-C came before `supervise` passes signals on, or after.
                outcome = Outcome(End.STOPPED, 128 + signal.SIGINT)
        facts |= outcome.facts()
    began = _read(folder / _BEGAN)
    return FinishedTrial(
        outcome, folder, _read(folder / _RESULT), began.get("own", 0), began.get("rows", 0)
    )


def check_has_trained(ran: FinishedTrial) -> None:
    """Checks that a trial has come to the end of its measurement.

    Raises:
        TrialError: it has not: the script failed, or never called `fit`.
    """
    if ran.outcome.end is End.FINISHED and ran.found:
        return
    if ran.outcome.end is not End.FINISHED:
        raise TrialError("The script failed in a trial.", ran)
    called = [
        name
        for name in ran.called_methods
        if name != "apply" or "train_on_batch" not in ran.called_methods
    ]
    calls = ", ".join(f"`{name}`{' of an optimizer' * (name == 'apply')}" for name in called)
    what = (
        f"It calls {calls}, and trains in a loop of its own."
        if calls
        else "It calls no method of a Keras model that trains."
    )
    raise TrialError(
        "The script came to its end and never called `fit`, in which `syrtos tune` measures."
        f" {what} Name a script that calls `model.fit`, with the arguments that make it train.",
        ran,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        # The trial ended before it wrote the file, or meanwhile.
        return {}
