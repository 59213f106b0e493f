"""A record of a job as the tests of the store and of its copies keep it."""

from __future__ import annotations

from typing import Any

from syrtos_jobs.requests import states
from syrtos_jobs.store.job_store import Record


def record(name: str, created: float = 1.5, **facts: Any) -> Record:
    usual: dict[str, Any] = {
        "request": {"TrainingJobName": name},
        "tags": {},
        "state": states.initial_state(created),
        "modified": created,
        "slots": 1,
        "spot": False,
        "access_key": f"KEY{name}",
    }
    return Record(name=name, created=created, **(usual | facts))
