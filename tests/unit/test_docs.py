"""Pages that are made by programs are as those make them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_of_the_architecture_is_made_from_the_import_contract() -> None:
    spec = importlib.util.spec_from_file_location("architecture_picture", DOCS / "architecture_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "architecture.svg").read_text() == module.picture(), "run `python docs/architecture_picture.py`"
