"""The check whether a trial ended for want of memory.

It is a pure function of the facts that the launcher has.
"""

from __future__ import annotations

import re
import signal

from syrtos.launch.outcome import End, Outcome, signal_name

# Words by which frameworks, NumPy, C++ and XLA report a lack of memory.
_WORDS = re.compile(
    r"MemoryError|ResourceExhausted|RESOURCE_EXHAUSTED|OutOfMemoryError|[Oo]ut of memory|OOM when"
    r" allocating|can't allocate memory|[Cc]annot allocate memory|"
    r"Unable to allocate|Failed to allocate|bad_alloc|CUDA_ERROR_OUT_OF_MEMORY|SharedMemoryError"
)
# Signals by which the kernel ends a process that has no memory any more, or a process ends itself.
_KILLED = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


def out_of_memory(outcome: Outcome, log: str, limited: bool = False) -> str:
    """Returns the reason why a trial ran out of memory; empty if it did not.

    The text is the end of a sentence about the trial.

    Args:
        outcome: the end of the trial.
        log: the last lines of its workers.
        limited: whether the address space of processes is limited (RLIMIT_AS): libraries then end
            in any way.
    """
    for failure in outcome.failures:
        if found := _WORDS.search(failure.get("text", "")):
            return f"ran out of memory ({found[0]})"
    number = -outcome.status if outcome.status is not None and outcome.status < 0 else 0
    if outcome.end is not End.CRASHED or number not in _KILLED:
        return ""
    if number == signal.SIGKILL:
        return "was killed by SIGKILL, as the kernel does when memory ends"
    found = _WORDS.search(log)
    return (
        f"ran out of memory ({found[0] if found else 'RLIMIT_AS'}; {signal_name(number)})"
        if found or limited
        else ""
    )
