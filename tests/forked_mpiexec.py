"""Stands for MPI's `mpiexec` on one host: ``forked_mpiexec.py [-print-all-exitcodes] ... -n N PYTHON ARGUMENT ...``; a zygote forks the workers."""

from __future__ import annotations

import os
import signal
import socket
import sys

from syrtos.launch.forking import Command
from syrtos.testing import warm


def main(words: list[str]) -> int:
    """Runs the workers to their end; the first exit code that is not 0."""
    count = words.index("-n")
    size, argv = int(words[count + 1]), words[count + 3 :]
    nothing = os.open(os.devnull, os.O_RDONLY)
    files = [(nothing if rank else 0, 1, 2) for rank in range(size)]
    world = warm.World(os.environ["SYRTOS_TESTS_ZYGOTE"], size, Command(argv, os.environ), files)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: world.signal(number))
    signal.signal(signal.SIGTERM, lambda *_: world.signal(signal.SIGKILL))
    codes = world.codes(spare="-disable-auto-cleanup" in words)
    world.close()
    if any(codes.values()):
        statuses = [abs(code) if code <= 0 else code << 8 for _, code in sorted(codes.items())]  # as wait(2) has them
        print(f"Exit codes: [{socket.gethostname()}] {','.join(map(str, statuses))}", flush=True)
    return next((128 - code if code < 0 else code for code in codes.values() if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
