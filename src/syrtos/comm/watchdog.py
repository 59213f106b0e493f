"""A watchdog that waits for other workers: briefly awake, then asleep, never for ever."""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable

from syrtos.errors import StalledError

# Seconds. A wait this short is cheaper awake than asleep; a longer one would take the core from
# other threads. MPI moves data over the network only while it is asked, so naps stay short: with
# 0.2 ms a 1 Gbit/s link is full, at a tenth of a core.
_AWAKE = 200e-6
_NAP = 20e-6
_LONGEST_NAP = 2e-4
# Seconds after which a wait is long, or a third of the timeout: as soon as it is worth two lines to
# the launcher.
_LONG = 1.0
# Seconds between two looks that are a standstill of this process itself.
_STANDSTILL = 2.0


class Watchdog:
    """A watchdog over waits, which leaves the core to others while it waits.

    It counts the time it waited.

    Attributes:
        waited: seconds spent waiting for other workers so far.
        timeout: seconds after which a wait becomes a `StalledError`.
        on_stall: called with the error's text before it is raised, e.g. to ask every worker for its
            stack.
        on_wait: called with the seconds of each wait when it is over.
        on_long_wait: called when a wait becomes a long one with the call, the seconds so far and a
            name of this watchdog, and with an empty call when that wait is over, unless it was
            given up.
    """

    def __init__(
        self, timeout: float = 300.0, on_stall: Callable[[str], None] | None = None
    ) -> None:
        self.waited = 0.0
        self.timeout = timeout
        self.on_stall = on_stall
        self.on_wait: Callable[[float], None] | None = None
        self.on_long_wait: Callable[[str, float, str], None] | None = None
        self._name = "main"
        self._others: weakref.WeakSet[Watchdog] = weakref.WeakSet()

    def wait(self, done: Callable[[], bool], call: str, rank: int) -> None:
        """Waits until ``done()`` is true.

        Raises:
            StalledError: it did not become true within the timeout.
        """
        if done():
            return
        started = time.perf_counter()
        try:
            self._sleep_until(done, started, call, rank)
        finally:
            seconds = time.perf_counter() - started
            self.waited += seconds
            if self.on_wait:
                self.on_wait(seconds)

    def another(self, name: str) -> Watchdog:
        """Returns a watchdog for other waits of this process.

        It reports stalls and long waits through this one.
        """
        found = Watchdog(self.timeout, self.tell)
        found._name, found.on_long_wait = name, self._tell_long
        self._others.add(found)
        return found

    def wait_without_limit(self) -> None:
        """Lets this watchdog, and those that `another` has returned, wait for ever from now on."""
        for watchdog in (self, *self._others):
            watchdog.timeout = math.inf

    def _tell_long(self, call: str, seconds: float, name: str) -> None:
        if self.on_long_wait:
            self.on_long_wait(call, seconds, name)

    def tell(self, text: str) -> None:
        """Reports a stall to ``on_stall``.

        This method may be the ``on_stall`` of other watchdogs of this process.
        """
        if self.on_stall:
            self.on_stall(text)

    def _sleep_until(self, done: Callable[[], bool], started: float, call: str, rank: int) -> None:
        nap, told, looked = _NAP, False, started
        try:
            while not done():
                now = time.perf_counter()
                # All workers were stopped (Ctrl-Z), or their machine slept: that is no wait.
                if now - looked > _STANDSTILL:
                    started += now - looked
                looked = now
                elapsed = now - started
                if elapsed < _AWAKE:
                    continue
                if elapsed > self.timeout:
                    # Of a wait that was given up there is no end to tell.
                    told = False
                    self._give_up(elapsed, call, rank)
                # A wait without a bound, as for the end of the others' scripts, may be long: it is
                # no news.
                if (
                    not told
                    and math.isfinite(self.timeout)
                    and elapsed > min(_LONG, self.timeout / 3)
                ):
                    told = True
                    self._tell_long(call, elapsed, self._name)
                time.sleep(nap)
                nap = min(nap * 1.2, _LONGEST_NAP)
        finally:
            if told:
                self._tell_long("", 0.0, self._name)

    def _give_up(self, elapsed: float, call: str, rank: int) -> None:
        text = (
            f"rank {rank} has waited {elapsed:.0f} s for the other workers in `{call}`, and one of"
            " them did not come. Either it hangs, or it runs code the others don't, or the step"
            " takes longer than the watchdog allows (`--timeout SECONDS`). The stack of every rank"
            " is in its log."
        )
        self.tell(text)
        print(text, file=sys.stderr, flush=True)
        raise StalledError(text)
