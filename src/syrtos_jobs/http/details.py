"""The facts about one job for the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from syrtos.errors import SyrtosError
from syrtos_jobs.api import cloning
from syrtos_jobs.api.service import Service, describe_job
from syrtos_jobs.http.listing import glimpse, script_of
from syrtos_jobs.observation import logs, metrics
from syrtos_jobs.requests.request import read
from syrtos_jobs.requests.secrecy import redact
from syrtos_jobs.runner.programs import drivers_of
from syrtos_jobs.storage.storage_uris import JobFile
from syrtos_jobs.store import runs
from syrtos_jobs.store.job_store import Record

_ARTIFACTS = ("model", "output")


class Details:
    """Answers about one job."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def answer(self, record: Record) -> dict[str, Any]:
        """Returns the job as Describe gives it, the way it is run, and the results that it left."""
        folder = self._service.home.job(record.name)
        folders = runs.folders(folder)
        epochs = [metrics.epochs(run) for run in folders]
        job = describe_job(record)
        return {
            "job": job,
            "streams": [stream.name for stream in logs.of(folder / "logs")],
            "left": glimpse(record, epochs)["left"],
            "run": self._run(record),
            "clone": cloning.offer(record),
            "artifacts": {kind: self.artifact(job, kind) is not None for kind in _ARTIFACTS},
        }

    def artifact(self, job: Mapping[str, Any], kind: str) -> JobFile | None:
        """Returns the archive of ``model`` or ``output`` that a job has left; None without one."""
        uri = job["ModelArtifacts"]["S3ModelArtifacts"]
        name = f"{kind}.tar.gz"
        # the output is beside the model; either may be missing
        try:
            found = self._service.places.under(uri.removesuffix("model.tar.gz") + name)
        except SyrtosError:
            return None
        return next((source for source in found if source.name == name), None)

    def _run(self, record: Record) -> dict[str, object]:
        """Returns the way in which the job is run.

        The source is its last attempt's record, or its request before there is such a record.
        """
        facts = runs.read(self._service.home.job(record.name)) or self._describe_request(record)
        program = facts.get("program", {})
        return {
            "script": program.get("name") or script_of(record),
            "arguments": program.get("arguments", []),
            "command": shlex.join(facts.get("command", [])),
            "folder": facts.get("folder", ""),
            "source": facts.get("source", ""),
            "workers": facts.get("workers_per_instance"),
            "versions": facts.get("versions", {}),
        }

    def _describe_request(self, record: Record) -> Mapping[str, Any]:
        request = redact(record.request)
        try:
            return runs.describe_program(
                read(
                    request, drivers_of(request, self._service.places), self._service.placement.gpus
                )
            )
        except SyrtosError:
            # files that the request names, such as SDK v3's drivers, are gone
            return {}
