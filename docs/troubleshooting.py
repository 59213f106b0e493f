"""Writes docs/troubleshooting.md from docs/troubleshooting.toml: ``python docs/troubleshooting.py``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_suffix(".toml")
OUT = Path(__file__).with_suffix(".md")

HEAD = """# Troubleshooting

What you see, what it means, what to do. In a message "…" stands for a value. [All messages](reference/errors.md) by class are in the reference.
`python docs/troubleshooting.py` writes this page from `docs/troubleshooting.toml`, and a test looks for each message in the code.

Without a message:

- **The loss, or a validation metric, is not that of one process.** `evaluate`, and the validation of `fit`, count all samples of all workers: the numbers are equal on all of them, and differ from one process as weights do. Expected causes are `--batch per-worker`, `--scale-lr`, and random
  numbers without a seed. Otherwise `syrtos verify -n 2 train.py` shows where the first batches differ.
- **It is slower than with one worker.** The summary says so and why: [does it pay?](does-it-pay.md)
- **The loss is NaN.** [NaN on several workers](nan.md).
- **Memory runs out.** Each worker holds the whole model and, where data are arrays, all of them: N workers of a machine need N times that. [Data](tutorials/data.md) that is read in parts needs less; on a
  GPU `syrtos tune batch` finds the largest batch.
- **A port is in use.** Every worker runs your script: start servers where `syrtos.rank() == 0`. Ports of syrtos on one machine are free ones; `--metrics-port 0` takes a free one.

`syrtos doctor train.py` finds many of these before a run. Every worker's output is in `RUN_DIR/logs`. For a bug report add what `syrtos env` prints.
"""


def groups() -> list[dict[str, Any]]:
    """Returns the groups of entries."""
    return tomllib.loads(LIST.read_text())["group"]


def page() -> str:
    """Returns the whole page."""
    return (
        "\n".join([HEAD, *(line for group in groups() for line in _group(group))]).rstrip() + "\n"
    )


def _group(group: dict[str, Any]) -> list[str]:
    lines = [f"## {group['title']}", ""]
    for entry in group["entry"]:
        kind = (
            [f"- **error:** [`{entry['error']}`](reference/errors.md#{entry['error'].lower()})"]
            if "error" in entry
            else []
        )
        lines += [
            f"### {entry['title']}",
            "",
            f"- **message:** {entry['see']}",
            *kind,
            f"- **means:** {entry['means']}",
            f"- **do:** {entry['do']}",
            "",
        ]
    return lines


if __name__ == "__main__":
    OUT.write_text(page())
