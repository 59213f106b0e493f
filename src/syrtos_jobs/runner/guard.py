"""The parent of a job's runner, which ends what the runner leaves behind if it is killed.

`python -m syrtos_jobs.runner.guard JOB`. A runner ends all processes of its job, but for SIGKILL.
Linux then gives those that have left their session and dropped their environment to this process,
by which they are found. It needs little memory, so that a machine without any kills the runner.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from syrtos_jobs.runner import processes


def main() -> int:
    """Runs the job named on the command line; returns the exit code of its runner."""
    processes.adopt_orphans()
    # signals to all processes of a job are answered by the runner; unlike those that are ignored,
    # they are not inherited
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    code = subprocess.call([sys.executable, "-m", "syrtos_jobs.runner.attempt", *sys.argv[1:]])
    processes.end()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
