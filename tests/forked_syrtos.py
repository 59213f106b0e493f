"""The command `syrtos`; the workers that it would start are forked by a zygote.

Where it would start MPI's launcher, it starts `forked_mpiexec.py`.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from syrtos.cli import execution, main
from syrtos.launch import local
from syrtos.launch.forking import Command, Forked
from syrtos.launch.plan import Plan, make_plan


def planned(*facts: Any) -> Plan:
    """The plan; with another program in the place of MPI's launcher, and the same words for it."""
    plan = make_plan(*facts)
    launcher = Path(__file__).with_name("forked_mpiexec.py")
    return (
        plan if plan.copies else dataclasses.replace(plan, command=(sys.executable, str(launcher), *plan.command[1:]))
    )


def start(command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: local.Files) -> Forked:
    """Stands for `local.start`."""
    return Forked(os.environ["SYRTOS_TESTS_ZYGOTE"], Command(command[command.index("-m") :], env), (*files, pmi))


execution.make_plan = planned  # pyright: ignore[reportPrivateImportUsage]
local.start = start
sys.exit(main())
