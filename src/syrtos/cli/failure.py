"""The screen at the end of a run that failed."""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from syrtos.json_files import document
from syrtos.launch import limits
from syrtos.launch.outcome import End, Outcome
from syrtos.run_dir import RunDir

_LAST_WORDS = 3
_LOOKED_AT = 20_000  # bytes at the end of a log
_FRAMES = 4
_WORDS_OF_A_CRASH = re.compile(
    r"^F\d{4} |Check failed|^terminate called|^  what\(\): |^Fatal Python"
    r" error|^(free|malloc|double free|corrupted)\b.*[(:]"
)


# How scripts fail whose names Keras and TensorFlow have no more.
_OF_OLD_NAMES = re.compile(
    r"^(ModuleNotFoundError|ImportError|AttributeError|TypeError|ValueError|\S*GoneError):"
    # a library that could not be loaded is no name
    r"(?!.*\.so\b) .*(keras|tensorflow|keyword argument|not recognized)",
    re.MULTILINE,
)


def print_failure(outcome: Outcome, run_dir: Path, has_hosts: bool = False) -> None:
    """Prints the worker that failed first, the reason, and the path of its log.

    Args:
        outcome: how the run ended.
        run_dir: the folder of the worker's generation, where its log is.
        has_hosts: whether workers are started on other hosts.
    """
    reported = outcome.failures or _reported_failures(run_dir)
    if outcome.end is End.STOPPED:
        _say(f"{outcome.stop()}. Run directory: {run_dir}")
    elif outcome.end is End.HUNG:
        _print_hung(outcome, run_dir)
    elif reported and not _is_consequence(outcome):
        _print_worker(reported[0], run_dir, outcome.failed_alike)
        _say_if(_limit_met(outcome, reported[0]["rank"], reported[0]["text"], run_dir))
    elif outcome.end is End.NOT_STARTED:
        _print_not_started(outcome, has_hosts)
    else:
        _print_ended(outcome, run_dir)
        _say_if(_limit_met(outcome, outcome.rank, "", run_dir))


def _is_here(outcome: Outcome, rank: int | None) -> bool:
    """Returns whether a worker was one of this machine's."""
    host = outcome.workers.get(-1 if rank is None else rank, {}).get("host")
    return host in (None, socket.gethostname())


def _limit_met(outcome: Outcome, rank: int | None, text: str, run_dir: Path) -> str:
    """Returns a sentence about the limit of this machine that a worker of it has met; else empty."""
    if not _is_here(outcome, rank):
        return ""
    log = None if rank is None else RunDir(run_dir).log(rank)
    last = ""
    if log is not None and log.is_file():
        last = log.read_bytes()[-_LOOKED_AT:].decode(errors="replace")
    return limits.explain(text or last, outcome.status)


def _is_consequence(outcome: Outcome) -> bool:
    """Returns whether the reported failures follow from the earlier end of another worker."""
    return bool(outcome.failures) and outcome.end in (End.CRASHED, End.LOST)


def _reported_failures(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the failures that workers left in files, the first one first."""
    found = []
    for path in run_dir.glob("logs/rank-*.failure"):
        # a worker that was killed while it wrote leaves half a document
        found.append(document(path))
    kinds = {"rank": int, "text": str, "time": float}
    sound = [
        each
        for each in found
        if all(isinstance(each.get(name), kind) for name, kind in kinds.items())
    ]
    return sorted(sound, key=lambda failure: failure["time"])


def _print_worker(failure: dict[str, Any], run_dir: Path, alike: bool) -> None:
    rank, files = failure["rank"], RunDir(run_dir)
    who = f"rank {rank} on {failure.get('host', 'an unknown host')} failed first"
    outputs = f"Its output is in {files.log(rank)}"
    if alike:
        who, outputs = "all workers failed alike", f"Their outputs are in {files.logs}"
    old = (
        "\n`syrtos doctor SCRIPT` lists names that the installed Keras and TensorFlow do not have,"
        " and what to write instead." * bool(_OF_OLD_NAMES.search(failure["text"]))
    )
    advice = "" if alike else failure.get("if_alone", "")
    text = failure["text"].rstrip() + f"\n\nsyrtos: {advice}" * bool(advice)
    _say(f"{who}:\n\n{text}\n\n{outputs}{old}")


def _print_hung(outcome: Outcome, run_dir: Path) -> None:
    """Prints the workers that others waited for, and where each was.

    If a worker gave up before the launcher did, its report is printed too.
    """
    lines = [str(outcome)]
    for rank in outcome.hung:
        log = RunDir(run_dir).log(rank)
        lines += [*_last_stack(log), f"Its output is in {log}"]
    _say(
        "\n".join([*lines, *(f"\n{failure['text'].rstrip()}" for failure in outcome.failures[:1])])
    )


def _last_stack(log: Path) -> list[str]:
    """Returns the innermost calls of the main thread, as `faulthandler` has last written them.

    A process that is stopped has written none.
    """
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    begins = [number for number, line in enumerate(lines) if line.startswith("Current thread ")]
    frames = (
        [line for line in lines[begins[-1] + 1 :] if line.startswith('  File "')] if begins else []
    )
    return frames[:_FRAMES]


_PERHAPS_MEMORY = (
    " If no person or program sent that signal, the host ran out of memory: look at `dmesg`,"
    " and use fewer workers or a smaller batch."
)


def _print_ended(outcome: Outcome, run_dir: Path) -> None:
    """Prints how the process ended, where no worker could report why."""
    why = ""
    if outcome.status == -signal.SIGKILL:
        kills = outcome.kills if _is_here(outcome, outcome.rank) else ""
        why = f" {kills}" if kills else _PERHAPS_MEMORY
    files = RunDir(run_dir)
    log = files.logs if outcome.rank is None else files.log(outcome.rank)
    lines = [f"{outcome}{why}", *_last_words(log), f"Its output is in {log}"]
    _say("\n".join(lines))


def _last_words(log: Path) -> list[str]:
    """Returns the lines that libraries print before they end a process.

    They are TensorFlow's failed checks, C++'s uncaught exceptions, and messages of the allocator.
    """
    if not log.is_file():
        return []
    lines = log.read_text(errors="replace").splitlines()
    return [f"  {line}" for line in lines if _WORDS_OF_A_CRASH.search(line)][-_LAST_WORDS:]


def _print_not_started(outcome: Outcome, has_hosts: bool) -> None:
    who = "" if outcome.rank is None else f"rank {outcome.rank} "
    why = f": {who}{outcome.why}" if outcome.why else ""
    reachable = (
        "\nEach host of --hosts must be reachable by `ssh NAME true` without a password, and have"
        " this environment at the same path."
    )
    _say(
        f"the workers could not be started, or ended unexpectedly{why} (exit code"
        f" {outcome.code}).{reachable * has_hosts}"
    )


def _say_if(text: str) -> None:
    if text:
        _say(text)


def _say(text: str) -> None:
    print(f"\nsyrtos: {text}", file=sys.stderr)
