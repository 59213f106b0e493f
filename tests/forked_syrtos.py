"""The command `syrtos`; where it would start MPI's launcher, it starts `forked_mpiexec.py`."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from syrtos.cli import main, run
from syrtos.launch.plan import Plan, make_plan


def planned(*facts: Any) -> Plan:
    """The plan with another program, and the same words for it."""
    plan = make_plan(*facts)
    launcher = Path(__file__).with_name("forked_mpiexec.py")
    return dataclasses.replace(plan, command=(sys.executable, str(launcher), *plan.command[1:]))


run.make_plan = planned  # pyright: ignore[reportPrivateImportUsage]
sys.exit(main())
