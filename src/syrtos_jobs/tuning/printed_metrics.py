"""The metrics that a script has printed, for a search whose own metric was not among them."""

from __future__ import annotations

import re

from syrtos_jobs.observation import logs, metrics
from syrtos_jobs.store import runs
from syrtos_jobs.store.home import Home
from syrtos_jobs.tuning.requests import NUMBER

_LAST = 500  # lines
_MOST = 12  # names
_NAMED = re.compile(rf"(?<![\w.-])([A-Za-z_][\w./:-]*?)\s*[:=]\s*{NUMBER}")


def names(home: Home, job: str) -> list[str]:
    """Returns the names before numbers in a job's last output, and the names of Keras's logs."""
    folder = home.job(job)
    logged = [
        name
        for run in runs.folders(folder)
        for epoch in metrics.epochs(run)[-1:]
        for name in epoch.get("logs") or {}
    ]
    lines = [
        event.text
        for stream in logs.of(folder / "logs")
        for event in stream.before(stream.size, _LAST)
    ]
    return list(
        dict.fromkeys([*logged, *(name for line in lines for name in _NAMED.findall(line))])
    )


def sentence(home: Home, metric: str, jobs: list[str]) -> str:
    """Returns a sentence for a failure of a search whose training jobs have no value of the metric.

    It says that no job has printed the metric, and what they have printed; or that the metric's
    last value was none.
    """
    # the last few: all trials run one script
    found = list(dict.fromkeys(name for job in jobs[-3:] for name in names(home, job)))
    if metric in found:
        return (
            f" The last value of {metric} is NaN or infinite, or its regular expression found none."
        )
    told = f"printed: {', '.join(found[:_MOST])}" if found else "they printed no numbers with names"
    return f" No training job printed the metric {metric} ({told})."
