"""The `syrtos` command, as it is installed."""

from __future__ import annotations

from syrtos.interrupts import end_at_interrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and ends the process with its exit code."""
    # Before the imports of the command, which take the longest.
    end_at_interrupts()
    from syrtos.cli import process_main

    process_main()
