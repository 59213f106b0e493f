"""`python -m syrtos train.py`: the script as one worker, of a world that something else started or alone; the `syrtos` command
otherwise."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs a script as one worker of a world, or the command line."""
    if len(sys.argv) > 1 and sys.argv[1].endswith(".py"):
        from syrtos.launch import worker

        worker.main(sys.argv[1:])
    from syrtos.cli import main as command

    sys.exit(command())


if __name__ == "__main__":
    main()
