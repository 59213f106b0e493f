"""Values named like secrets, hidden in the answers of the API and in the output of scripts."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from syrtos import json_files
from syrtos.checkpoint import durable
from syrtos.settings import is_secret
from syrtos_jobs.requests.hyperparameters import decode

_HIDDEN = "******"
_PARTS = ("Environment", "HyperParameters", "StaticHyperParameters")
_SHORT = 6


# Values that say nothing, and would hide ordinary words.
_NO_SECRETS = frozenset({"", "true", "false", "none", "null"})


def secrets_of(request: Mapping[str, Any]) -> list[str]:
    """Returns the values in a request whose names say that they are secret."""
    # a script may print a value as it was given or as it was parsed from JSON
    found: list[str] = []
    for part in _PARTS:
        for name, value in (request.get(part) or {}).items():
            if is_secret(name):
                found.append(value)
            found += _secrets_in(decode(value), is_secret(name))
    return [text for text in found if text.lower() not in _NO_SECRETS]


def _secrets_in(value: object, secret: bool) -> list[str]:
    """Returns the secret texts and numbers in a value of JSON."""
    if isinstance(value, dict):
        pairs = [(secret or is_secret(str(name)), part) for name, part in value.items()]
    elif isinstance(value, list):
        pairs = [(secret, part) for part in value]
    else:
        return [str(value)] if secret else []
    return [text for is_one, part in pairs for text in _secrets_in(part, is_one)]


def redact(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request, or a tuning job's definition of training jobs, without secret values."""
    hidden = {
        part: {
            name: _placeholder(value) if is_secret(name) else _redact_inside(value)
            for name, value in request[part].items()
        }
        for part in _PARTS
        if request.get(part)
    }
    return {**request, **hidden}


def _redact_inside(text: str) -> str:
    """Returns a value without the secrets that are parts of it, where it is JSON."""
    value = decode(text) if text.startswith(("{", "[")) else None
    return json.dumps(_hide(value)) if _secrets_in(value, False) else text


def _hide(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: _HIDDEN if is_secret(str(name)) else _hide(part) for name, part in value.items()
        }
    return [_hide(part) for part in value] if isinstance(value, list) else value


def has_secret_arguments(request: Mapping[str, Any]) -> bool:
    """Returns whether the command line of a job's script has a secret hyperparameter."""
    given = {"HyperParameters": request.get("HyperParameters") or {}}
    return bool(secrets_of(given))


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
        # the longest first, or a part of it would be hidden in its place
        wanted = sorted(filter(None, shown), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_expression, wanted))) if wanted else None

    def __call__(self, line: str) -> str:
        return self._pattern.sub(_HIDDEN, line) if self._pattern else line

    def redact_folder(self, job: Path) -> None:
        """Hides the secrets in logs and ledgers of a job to which no process writes any more."""
        for path in job.glob("attempt-*/**/logs/*"):
            # a disk may have no room for the copy
            with contextlib.suppress(OSError):
                self._redact_file(path)
        for path in job.glob("attempt-*/**/ledger/*.json"):
            found = json_files.document(path)
            if (shown := self._redact_texts(found)) != found:
                with contextlib.suppress(OSError):
                    durable.replace(path, json.dumps(shown).encode())

    def _redact_texts(self, value: object) -> object:
        if isinstance(value, dict):
            return {name: self._redact_texts(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self._redact_texts(part) for part in value]
        return self(value) if isinstance(value, str) else value

    def _redact_file(self, path: Path) -> None:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            if not any(self(line) != line for line in file):
                return
            file.seek(0)
            draft = path.with_name(f".{path.name}.redacted")
            with draft.open("w", encoding="utf-8", errors="surrogateescape", newline="") as kept:
                os.fchmod(kept.fileno(), 0o600)
                kept.writelines(self(line) for line in file)
        draft.replace(path)


class _RedactedBytes(io.RawIOBase):
    """A stream that hides secrets in the lines that it passes on, of UTF-8."""

    def __init__(self, target: TextIO, redact: Redactor) -> None:
        self._target, self._redact = target, redact
        self._pending = bytearray()
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._target.fileno()

    def write(self, data: Any, /) -> int:
        """Passes on the lines that are whole now; those that only return the cursor count too."""
        new = bytes(data)
        with self._lock:
            end = max(new.rfind(b"\n"), new.rfind(b"\r")) + 1
            if end:
                self._pass_on(bytes(self._pending) + new[:end])
                self._pending.clear()
            self._pending += new[end:]
        return len(new)

    def finish(self) -> None:
        """Passes on the last line, which may have no end."""
        with self._lock:
            self._pass_on(bytes(self._pending))
            self._pending.clear()

    def _pass_on(self, data: bytes) -> None:
        lines = data.decode("utf-8", "surrogateescape").splitlines(True)
        self._target.buffer.write(
            "".join(map(self._redact, lines)).encode("utf-8", "surrogateescape")
        )
        self._target.flush()


def redact_output(redact: Redactor) -> None:
    """Hides secrets in what this process prints from now on, and passes on of what others print."""
    for name in ("stdout", "stderr"):
        stream = _RedactedBytes(getattr(sys, name), redact)
        atexit.register(stream.finish)
        made = io.TextIOWrapper(stream, "utf-8", "backslashreplace", write_through=True)  # type: ignore[arg-type]
        setattr(sys, name, made)


def _expression(text: str) -> str:
    # a short value as a word of its own only: it would hide parts of ordinary words and numbers
    escaped = re.escape(text)
    return escaped if len(text) >= _SHORT else rf"(?<![\w.]){escaped}(?!\w|\.\d)"
