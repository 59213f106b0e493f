"""Holds a pod for a job of `syrtos serve`.

The first process of the pod's container is `python -m syrtos_clusters.kubernetes.hold FILE`.

The job's processes are started in the pod by others (`reach`). This one ends, and the pod with it,
when FILE has not been touched for some minutes: the machine of the service is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

# Seconds between two looks at the file, and those after which the service's machine is taken to be
# gone. Shared folders may show a change minutes later (nfs(5), "acdirmax").
_EVERY, _PATIENCE = 2.0, 300.0


def main() -> None:
    """Waits until the file is not touched any more."""
    signal.signal(signal.SIGTERM, _end_pod)
    # The container's first process inherits those that others leave behind: nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    file = Path(sys.argv[1])
    touched, at = _moment(file), time.monotonic()
    while time.monotonic() - at < _PATIENCE:
        time.sleep(_EVERY)
        # The clocks of two machines differ: only changes are looked at.
        if (now := _moment(file)) not in (touched, None):
            touched, at = now, time.monotonic()


def _moment(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def _end_pod(*_: object) -> NoReturn:
    """Passes a SIGTERM on to all processes of the pod, and ends once they have.

    It ends at the latest when the kubelet's patience does.
    """
    # Elsewhere than in a container there are others: kill(2) with -1 would end all of this user's.
    if os.getpid() == 1:
        try:
            os.kill(-1, signal.SIGTERM)
            while _others():
                time.sleep(0.1)
        except ProcessLookupError:
            # There is none.
            pass
    sys.exit(128 + signal.SIGTERM)


def _others() -> bool:
    return any(name.isdigit() and int(name) != 1 for name in os.listdir("/proc"))


if __name__ == "__main__":
    main()
