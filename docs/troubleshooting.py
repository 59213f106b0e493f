"""Writes docs/troubleshooting.md from docs/troubleshooting.toml: ``python docs/troubleshooting.py``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_suffix(".toml")
OUT = Path(__file__).with_suffix(".md")

HEAD = """# Troubleshooting

By message: what you see, what it means, what to do. "…" stands for a value. Written by `python docs/troubleshooting.py` from
`docs/troubleshooting.toml`; a test looks for each message in the code. [All messages](reference/errors.md) by class are in the reference.

`syrtos doctor train.py` finds many of these before a run. Every worker's output is in `RUN_DIR/logs`. For a bug report add what `syrtos env` prints.
"""


def groups() -> list[dict[str, Any]]:
    """Returns the groups of entries."""
    return tomllib.loads(LIST.read_text())["group"]


def page() -> str:
    """Returns the whole page."""
    return "\n".join([HEAD, *(line for group in groups() for line in _group(group))]).rstrip() + "\n"


def _group(group: dict[str, Any]) -> list[str]:
    lines = [f"## {group['title']}", ""]
    for entry in group["entry"]:
        kind = (
            [f"- **error:** [`{entry['error']}`](reference/errors.md#{entry['error'].lower()})"]
            if "error" in entry
            else []
        )
        lines += [f"### {entry['see']}", "", *kind, f"- **means:** {entry['means']}", f"- **do:** {entry['do']}", ""]
    return lines


if __name__ == "__main__":
    OUT.write_text(page())
