"""`python -m syrtos train.py` or `-m module` as one worker; the `syrtos` command otherwise.

The worker is of a world that something else has started, or of one whose hosts are described by
variables of the environment (TF_CONFIG, those of Kubernetes, SageMaker, Slurm ...), or alone.
"""

from __future__ import annotations

import sys

from syrtos import settings
from syrtos.cli import engine_runs, process_main
from syrtos.engines import gathered_hosts
from syrtos.errors import SyrtosError
from syrtos.worker import main as run_worker


def main() -> None:
    """Runs a script as one worker of a world, or the command line."""
    if len(sys.argv) < 2 or not (sys.argv[1].endswith(".py") or sys.argv[1] == "-m"):
        # Programs that run `python -m syrtos` give all that they want: no file of the folder
        # (syrtos.toml) adds to it, as one does for a person's `syrtos run`.
        process_main(sys.argv[1:])
    try:
        if gathered_hosts.cluster_to_form(settings.environment()) is not None:
            process_main(["run", "--on", engine_runs.PLACED, *sys.argv[1:]])
    except SyrtosError as error:
        sys.exit(_print_error(error))
    run_worker(sys.argv[1:])


def _print_error(error: SyrtosError) -> int:
    print(f"syrtos: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
