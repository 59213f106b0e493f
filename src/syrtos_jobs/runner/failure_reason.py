"""The reason of a job's failure, as Describe gives it and as its log does."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from syrtos.launch.outcome import End, Outcome, error_line
from syrtos.run_dir import RunDir
from syrtos_jobs.observation.logs import LogStream
from syrtos_jobs.requests.request import Job
from syrtos_jobs.runner.job_command import Folders

_LONGEST = 1 << 16  # bytes
_LAST = 10  # lines
# As Python begins such a line, and where its interpreter can't start.
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception)(:|$)|Fatal Python error")


def failure_reason(job: Job, folders: Folders, outcome: Outcome, stream: LogStream) -> str:
    """Returns the failure that the script has written, or the end of its first failing process.

    Args:
        stream: the log of the first instance, whose last line says why where nothing else does.
    """
    for host in range(len(job.hosts)):
        if text := _read_start(folders.failure(host), folders.job):
            return f"AlgorithmError: {text}"
    if outcome.end in (End.LOST, End.NOT_STARTED) and outcome.status is None and outcome.why:
        return f"InternalServerError: rank {outcome.rank} {outcome.why}"
    each = job.distribution.processes
    # a server is on the instance of its number
    slot = None if outcome.rank is None else outcome.rank % (len(job.hosts) * each)
    where = "" if slot is None else f" on algo-{slot // each + 1}"
    command = f'Command "{job.program.entry if job.program else " ".join(job.command)}"'
    told = error_line(outcome.failures[0]["text"]) if outcome.failures else ""
    text = told or (str(outcome) if outcome.status == 0 else _last_words(stream))
    extra = (
        ', ExtraInfo "OutOfMemory: Process killed by SIGKILL (signal 9)"'
        if outcome.code == 137
        else ""
    )
    return (
        f"AlgorithmError: ExecuteUserScriptError:\nExitCode {outcome.code}\nErrorMessage"
        f' "{text}"{where}{extra}\n{command}'
    )


def _read_start(path: Path, job: Path) -> str:
    """Returns the beginning of a file that a script may have written; empty if there is none."""
    # a script may put a link to a file of others there, a pipe, or as much as the disk takes
    try:
        if not path.resolve().is_relative_to(job.resolve()):
            return ""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return file.read(_LONGEST).decode(errors="replace").strip() if is_file else ""
    except (OSError, RuntimeError):
        return ""


def unlogged_failures(outcome: Outcome, run_dir: Path) -> Iterator[str]:
    """Yields the failures that no process could write into its own log."""
    if outcome.end is End.FINISHED:
        return
    for failure in outcome.failures:
        if not RunDir(run_dir).log(failure["rank"]).exists():
            yield failure["text"]
    if not outcome.failures:
        yield from (outcome.said or str(outcome)).splitlines()


def _last_words(stream: LogStream) -> str:
    """Returns the last line of a log, or the last that tells an error in what it ends with."""
    events = [event.text for event in stream.before(stream.size, 100) if event.text.strip()]
    told = (text for text in reversed(events[-_LAST:]) if _ERROR.match(text))
    return next(told, events[-1] if events else "")
