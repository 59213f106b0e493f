"""Slurm: inside an allocation, nodes are reached by `srun`; elsewhere, a batch job is submitted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from syrtos.engines.engine import Engine, EngineRequest, ReachableHosts, Submitted, check_values
from syrtos.engines.reservation import NodeRequest, Requester, Reservation
from syrtos.engines.slurm import allocation, batch, controller, reserved_allocation
from syrtos.engines.slurm.submitted_job import SubmittedJob
from syrtos.errors import LaunchError
from syrtos.settings import environment

_SCRIPT = "slurm.sh"


class Slurm(Engine):
    """Runs in jobs of Slurm 22.05 and later."""

    name = "slurm"
    settings = batch.SETTINGS

    def reach(self, wanted: EngineRequest) -> AbstractContextManager[ReachableHosts] | None:
        found = allocation.hosts_of(environment(), wanted.workers)
        if found is None:
            return None
        here = allocation.is_one_node_here(found)
        return contextlib.nullcontext(ReachableHosts(found, "" if here else allocation.SRUN))

    def files(self, wanted: EngineRequest) -> dict[str, str]:
        return {_SCRIPT: batch.script(wanted)}

    def submit(self, wanted: EngineRequest) -> dict[str, str]:
        wanted.run_dir.mkdir(parents=True, exist_ok=True)
        path = wanted.run_dir / _SCRIPT
        path.write_text(self.files(wanted)[_SCRIPT])
        done = controller.run_command(["sbatch", "--parsable", str(path)], wanted.folder)
        if done.returncode:
            said = (
                done.stderr.strip()
                .removeprefix("sbatch: error: ")
                .replace("\nsbatch: error: ", " ")
            )
            raise LaunchError(f"Slurm refuses the job: {said} ({path} is what was submitted.)")
        job = done.stdout.strip().partition(";")[0]
        return {"job": job, "run_dir": str(wanted.run_dir), "array": wanted.values.get("array", "")}

    def check_jobs(self, values: Mapping[str, str]) -> None:
        check_values(values, reserved_allocation.SETTINGS, "slurm")
        if shutil.which("salloc") is None:
            raise controller.missing_command("salloc")

    def reserve(
        self, wanted: NodeRequest, requester: Requester
    ) -> AbstractContextManager[Reservation]:
        return reserved_allocation.reserve_allocation(wanted, requester)

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        return SubmittedJob(facts["job"], Path(facts["run_dir"]), is_array=bool(facts.get("array")))


ENGINE = Slurm()
