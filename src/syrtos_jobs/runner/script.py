"""Runs a script of a job as `python` does, with arguments that are on no command line.

`python -m syrtos_jobs.runner.script SCRIPT`
"""

from __future__ import annotations

import sys

from syrtos import settings
from syrtos.launch.program import Program
from syrtos.launch.worker import main_module

if __name__ == "__main__":
    main_module.run(Program(sys.argv[1], settings.take_arguments()))
