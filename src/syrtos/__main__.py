"""`python -m syrtos train.py` or `-m module` as one worker; the `syrtos` command otherwise.

The worker is of a world that something else started, of one that TF_CONFIG describes, or alone.
"""

from __future__ import annotations

import sys

from syrtos import settings
from syrtos.cli import from_tf_config
from syrtos.cli import main as command
from syrtos.errors import SyrtosError
from syrtos.launch import rendezvous, worker


def main() -> None:
    """Runs a script as one worker of a world, or the command line."""
    if len(sys.argv) < 2 or not (sys.argv[1].endswith(".py") or sys.argv[1] == "-m"):
        sys.exit(command())
    try:
        cluster = rendezvous.cluster_to_form(settings.environment())
        if cluster is not None:
            sys.exit(from_tf_config.main(cluster, sys.argv[1:]))
    except SyrtosError as error:
        sys.exit(_refused(error))
    worker.main(sys.argv[1:])


def _refused(error: SyrtosError) -> int:
    print(f"syrtos: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
