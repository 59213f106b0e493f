"""The facts in the head of a part of a snapshot.

The launcher reads them, and starts without NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

# The name of the facts in the metadata of a safetensors file.
FACTS = "syrtos"


def facts_of(part: bytes) -> dict[str, Any]:
    """Returns the facts of a part, of which the beginning is enough."""
    # the length of the head comes first, then the head, as JSON (README of huggingface/safetensors)
    return json.loads(json.loads(part[8 : _end_of_head(part)])["__metadata__"][FACTS])


def first_facts(pieces: Iterable[bytes]) -> dict[str, Any]:
    """Returns the facts of a part that is read in pieces."""
    head = b""
    for piece in pieces:
        head += piece
        # the arrays behind the head may be gigabytes, and are not read
        if len(head) >= _end_of_head(head):
            break
    return facts_of(head)


def _end_of_head(part: bytes) -> int:
    return 8 + int.from_bytes(part[:8], "little")
