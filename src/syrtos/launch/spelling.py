"""The name that a misspelt one most resembles."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# `difflib`'s ratio: one letter that is wrong, missing or too many in a word of five
_ALIKE = 0.75


def closest_name(word: str, names: Iterable[str], alike: float = _ALIKE) -> str | None:
    """Returns the name that is most like a word, whatever its case; None if none is like it.

    Names with an underscore before them are left out. ``alike``: the least ratio of `difflib`.
    """
    public = {
        name.lower(): name for name in sorted(names) if not name.startswith("_") and name != word
    }
    found = difflib.get_close_matches(word.lower(), public, 1, alike)
    return public[found[0]] if found else None
