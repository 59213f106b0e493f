"""A link with a rate and a delay between two network namespaces, for kernels without `netem`: reads packets from a device in one, and writes them to
one in the other when they would have arrived.

    python relay.py PID_A PID_B INTERFACE BITS_PER_SECOND DELAY_MS

Prints "ready" when the devices are there.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

_CLONE_NEWNET = 0x40000000  # setns(2)
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
_LONGEST_QUEUE = 0.1  # s; what comes then is dropped, as in a switch


class Direction:
    """One way over the link."""

    def __init__(self, source: int, target: int, rate: float, delay: float) -> None:
        self.source, self._target, self._rate, self._delay = source, target, rate, delay
        self._free = 0.0
        self._flying: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self) -> None:
        """Reads the packets that are there."""
        now = time.monotonic()
        while True:
            try:
                packet = os.read(self.source, 65536)
            except BlockingIOError:
                return
            begins = max(now, self._free)
            if begins - now < _LONGEST_QUEUE:
                self._free = begins + 8 * len(packet) / self._rate
                self._flying.append((self._free + self._delay, packet))

    def give(self) -> float:
        """Writes those that have arrived; seconds until the next one does."""
        now = time.monotonic()
        while self._flying and self._flying[0][0] <= now:
            with contextlib.suppress(BlockingIOError):  # the host takes no more: it is lost
                os.write(self._target, self._flying.popleft()[1])
        return self._flying[0][0] - now if self._flying else 1.0


def device(pid: str, interface: str) -> int:
    """A device in the network namespace of a process."""
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    found = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        found, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _IFF_TUN | _IFF_NO_PI)
    )
    return found


def main() -> None:
    first, second, interface, rate, delay = sys.argv[1:]
    a, b = device(first, interface), device(second, interface)
    ways = [Direction(x, y, float(rate), float(delay) / 2e3) for x, y in ((a, b), (b, a))]
    print("ready", flush=True)
    while True:
        wait = min(way.give() for way in ways)
        readable, _, _ = select.select([a, b], [], [], max(wait, 0.0))
        for way in ways:
            if way.source in readable:
                way.take()


if __name__ == "__main__":
    main()
