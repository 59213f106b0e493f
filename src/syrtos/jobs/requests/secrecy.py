"""Values named like secrets, hidden in the answers of the API and in the output of scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from syrtos.jobs.requests.hyperparameters import decode
from syrtos.settings import is_secret

_HIDDEN = "******"


def secrets_of(request: Mapping[str, Any]) -> list[str]:
    """Returns the values in a request whose names say that they are secret."""
    # a script may print a value as it was given or as it was parsed from JSON
    pairs = [
        *(request.get("Environment") or {}).items(),
        *(request.get("HyperParameters") or {}).items(),
    ]
    return [
        str(form) for name, value in pairs if is_secret(name) for form in (value, decode(value))
    ]


def redact(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request, or a tuning job's definition of training jobs, without secret values."""
    hidden = {
        part: {
            name: _placeholder(value) if is_secret(name) else value
            for name, value in request[part].items()
        }
        for part in ("Environment", "HyperParameters", "StaticHyperParameters")
        if request.get(part)
    }
    return {**request, **hidden}


def _placeholder(value: str) -> str:
    """Returns the placeholder of a secret."""
    # JSON if the value is JSON, since SDKs decode the hyperparameters of Describe's answer
    return json.dumps(_HIDDEN) if value.startswith('"') else _HIDDEN


class Redactor:
    """Hides secret values wherever a script prints them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        # each line alone, since output is looked at line by line; and as Python's `repr` and JSON
        # show the value
        shown = {
            form
            for text in secrets
            for form in (*text.splitlines(), repr(text)[1:-1], json.dumps(text)[1:-1])
        }
        # shorter values would hide parts of ordinary words; the longest first, or a part of it
        # would be hidden in its place
        wanted = sorted((text for text in shown if len(text) >= 6), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, wanted))) if wanted else None

    def __call__(self, line: str) -> str:
        return self._pattern.sub("******", line) if self._pattern else line
