"""Starts the generations of a run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from syrtos import settings
from syrtos.cli.run_request import digest_of_script
from syrtos.errors import ConfigurationError
from syrtos.launch import limits, lost_workers
from syrtos.launch.membership import Membership
from syrtos.launch.outcome import End, Outcome
from syrtos.launch.plan import LaunchPlan, Machine, make_plan
from syrtos.launch.processes.claims_memory import folder_in_memory
from syrtos.launch.snapshots import Snapshots
from syrtos.launch.spec import Spec
from syrtos.launch.terminal import output
from syrtos.observe import steady
from syrtos.observe.ledger import forget, launching
from syrtos.observe.unrecorded import Unrecorded


@dataclasses.dataclass
class GenerationStarter:
    """Starts the generations of a run, each with the hosts that are there.

    Attributes:
        members: the hosts of the moment.
        machine: the machine that launches.
        snapshots: memory for what workers commit; None where they commit nothing.
        supervised: starts a plan in an environment, and waits for its end.
        began: when the generation that is started next began, s since the epoch; for the first,
            when this process did.
        unrecorded: the files of the run that could not be written.
        new_interpreters: the variable by which workers import their frameworks themselves, once a
            script needed that.
        digest: that of the script, of the generation before; empty before the first.
    """

    members: Membership
    machine: Machine
    snapshots: Snapshots | None
    supervised: Callable[[LaunchPlan, Mapping[str, str]], Outcome]
    began: float
    unrecorded: Unrecorded
    new_interpreters: dict[str, str] = dataclasses.field(default_factory=dict)
    digest: str = ""

    def start(self, folder: Path, variables: Callable[[int], Mapping[str, str]]) -> Outcome:
        """Runs a generation, recorded in ``folder``.

        ``variables`` takes the number of workers, and returns the variables of their environment.
        """
        try:
            spec, without = self.members.begin(
                self.snapshots.committed_number() if self.snapshots else 0
            )
        except ConfigurationError as error:
            return Outcome(End.NOT_STARTED, 1, why=str(error))
        if without:
            output.say(
                f"{', '.join(sorted(without))} can't be reached: their workers run on the other"
                " hosts"
            )
        self._tell_change(spec.program.name)
        outcome = self._run_once(spec, folder, variables(spec.workers), without)
        if outcome.otherwise and outcome.end is not End.STOPPED:
            output.say(
                f"{outcome.otherwise}. The script begins again, and each worker imports its"
                " frameworks by itself."
            )
            # It stays set: the imports guessed from the script's text are wrong in later
            # generations too.
            self.new_interpreters[settings.NEW_INTERPRETERS_VARIABLE] = "first"
            outcome = self._run_once(spec, folder, variables(spec.workers), without)
        self.began = steady.now()
        return outcome

    def _tell_change(self, script: str) -> None:
        """Says that the script is no longer the one with which the run went on so far."""
        before, self.digest = self.digest, digest_of_script(script)
        if before and self.digest != before:
            output.say(
                f"{script} has changed since the run was begun: the workers that start now run it as"
                " it is now, from the last snapshot"
            )

    def _run_once(
        self, spec: Spec, folder: Path, variables: Mapping[str, str], without: frozenset[str]
    ) -> Outcome:
        """Runs the workers of ``spec`` once, ``without`` hosts that are lost."""
        spec = dataclasses.replace(
            spec, options=dataclasses.replace(spec.options, run_dir=str(folder))
        )
        with self.unrecorded.noting(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # An earlier run, or the first try of this generation, may have left its records here.
        forget(folder)
        lost_workers.forget(folder)
        with (
            contextlib.nullcontext({}) if spec.hosts else folder_in_memory() as claims,
            launching(folder, self.began, self.unrecorded) as facts,
        ):
            env = {**settings.environment(), **variables, **claims, **self.new_interpreters}
            kills = limits.kills_for_memory()
            try:
                outcome = self.supervised(make_plan(spec, self.machine, env, without), env)
            except OSError as error:
                # A limit of this machine, e.g. of open files: the run has an end, and may be resumed.
                if not (why := limits.explain(f"{type(error).__name__}: {error}")):
                    raise
                outcome = Outcome(End.NOT_STARTED, 1, why=f"{error}. {why}".rstrip(". "))
            facts |= outcome.facts()
        return dataclasses.replace(outcome, kills=limits.describe_kills(kills))
