"""Draws docs/run.svg: what a terminal shows of a real run. ``python docs/picture.py`` from the root of a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMAND = ["run", "-n", "2", "examples/digits.py"]
SHOWN = 24


def main() -> None:
    """Runs the example and writes the last lines of its output as a picture."""
    syrtos = Path(sys.executable).parent / "syrtos"
    done = subprocess.run([str(syrtos), *COMMAND], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [last_state(line) for line in done.stdout.splitlines() if line.strip()]
    summary = [
        line for line in done.stderr.splitlines() if line.strip() and "0000" not in line and "WARNING" not in line
    ]
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text(f"$ syrtos {' '.join(COMMAND)}", style="bold"))
    for line in [*lines[-SHOWN + len(summary) :], "", *summary]:
        console.print(Text.from_ansi(line.replace(str(ROOT) + "/", "")))
    picture = console.export_svg(title="two workers")
    (ROOT / "docs" / "run.svg").write_text(
        re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    )  # no fonts from the network


def last_state(line: str) -> str:
    """A progress bar is written over itself: what it ended as."""
    return re.split(r"[\b\r]+", line)[-1]


if __name__ == "__main__":
    main()
