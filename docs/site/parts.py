"""The parts of pages that are made from the code, by the names that pages have for them: `<!-- made: NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable

import command_line
import messages
import options

PARTS: dict[str, Callable[[], str]] = {
    "commands": command_line.page,
    "options": options.table,
    "harmless variables": options.harmless,
    "errors": messages.by_class,
}


def filled_in(markdown: str) -> str:
    """Returns a page with its parts in place."""
    return re.sub(
        r"^<!-- made: (.+) -->", lambda found: PARTS[found[1]](), markdown, flags=re.MULTILINE
    )
