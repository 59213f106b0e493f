"""Texts of the code as Markdown."""

from __future__ import annotations

import re


def prose(text: str) -> str:
    """Returns a text in which Markdown and HTML mean nothing, but for what stands in backticks."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(piece if piece.startswith("`") else _escaped(piece) for piece in pieces)


def cell(text: str) -> str:
    """Returns a text for a cell of a table."""
    return prose(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_\[\]])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")
