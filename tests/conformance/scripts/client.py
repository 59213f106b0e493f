"""How the tests and their scripts talk: facts on the command line, an answer in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ASKED: dict[str, Any] = json.loads(sys.argv[1])


def answer(**facts: Any) -> None:
    """Tells the test what has been found out; times as seconds since 1970."""

    def plain(value: Any) -> Any:
        return value.timestamp() if hasattr(value, "timestamp") else str(value)

    Path(ASKED["answer"]).write_text(json.dumps(facts, default=plain))
