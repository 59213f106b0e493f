"""The ends of processes of this machine, in their order."""

from __future__ import annotations

import os
import select

from syrtos.launch import events

# Place of `exit_code` among the fields of proc(5)'s `stat` from the third on.
_EXIT_CODE = 52 - 3


class Deaths:
    """A watch over processes, which reports their ends in order: epoll(7) keeps them in a queue."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._ranks: dict[int, int] = {}  # by descriptor (pidfd_open(2))
        self._gone: list[int] = []

    def watch(self, rank: int, pid: int) -> None:
        """Watches the process of ``rank`` from now on; if it has ended, it counts as ending now."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._gone.append(rank)
            return
        self._ranks[descriptor] = rank
        self._poll.register(descriptor, select.EPOLLIN)

    def wait(self, seconds: float) -> list[int]:
        """Waits until processes have ended, at most so many seconds, and returns their ranks."""
        for descriptor, _ in self._poll.poll(0 if self._gone else seconds):
            self._end(descriptor)
        gone, self._gone = self._gone, []
        return gone

    def _end(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        self._gone.append(self._ranks.pop(descriptor))

    def close(self) -> None:
        """Stops watching all processes."""
        for descriptor in self._ranks:
            os.close(descriptor)
        self._poll.close()


def zombie_exit_code(pid: int) -> int | None:
    """Returns the exit code of a process that has ended and that its parent has not asked about.

    It is negative for a signal; None if there is no such process.
    """
    stat = events.stat(pid)
    if not stat or stat[0] != "Z":
        return None
    return os.waitstatus_to_exitcode(int(stat[_EXIT_CODE]))
