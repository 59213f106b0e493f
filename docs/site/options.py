"""The options of a run as a worker has them, and the variables that travel to other hosts, from `syrtos.settings`."""

from __future__ import annotations

import dataclasses
import inspect
import re

from text import cell

from syrtos import settings


def table() -> str:
    """Returns a table of `syrtos.Options`: name, default, meaning."""
    rows = [
        f"| `{field.name}` | `{field.default!r}` | {cell(_meanings()[field.name])} |"
        for field in dataclasses.fields(settings.Options)
    ]
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])


def harmless() -> str:
    """Returns the beginnings of the variables that may be shown, and sent to other hosts."""
    return ", ".join(f"`{beginning}`" for beginning in settings.HARMLESS)


def _meanings() -> dict[str, str]:
    """Returns what the docstring says of each attribute."""
    listed = (inspect.getdoc(settings.Options) or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", listed, re.MULTILINE)
    return {name: text.replace("``", "`") for name, text in found}
