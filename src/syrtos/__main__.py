"""`python -m syrtos train.py` inside a world that something else started; the `syrtos` command otherwise."""

from __future__ import annotations

import sys

from syrtos import settings, topology


def main() -> None:
    """Runs a script as one worker of a world, or the command line."""
    started_by = topology.detect(settings.environment())
    if started_by and len(sys.argv) > 1 and sys.argv[1].endswith(".py"):
        from syrtos.launch import worker

        worker.main(sys.argv[1:])
    from syrtos.cli import main as command

    sys.exit(command())


if __name__ == "__main__":
    main()
