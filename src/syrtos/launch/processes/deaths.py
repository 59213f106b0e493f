"""The ends of processes of this machine, in their order."""

from __future__ import annotations

import os
import select


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
