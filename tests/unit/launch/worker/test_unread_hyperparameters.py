"""Hyperparameters that a script has not read: they are named only where that is certain."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path

import pytest

from syrtos.launch.worker import unread_hyperparameters

BEGIN = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
"""
DROPS = BEGIN + "args, _ = parser.parse_known_args()\n"


def unread_of(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> list[str]:
    """The names that are told of a script with the hyperparameters `epochs` and `batch-sise`."""
    script = folder / "train.py"
    script.write_text(text)
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_known_args", argparse.ArgumentParser.parse_known_args
    )
    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-sise", "8", "--epochs", "3"])
    told = unread_hyperparameters.watch(
        script, {"SM_HPS": json.dumps({"epochs": 3, "batch-sise": 8})}
    )
    runpy.run_path(str(script), run_name="__main__")
    return told()


@pytest.mark.parametrize(
    "text",
    [
        DROPS,
        BEGIN + "args = parser.parse_known_args()[0]\n",
        DROPS + "print(os.environ.get('SM_MODEL_DIR'))\n",
        DROPS + "again, unknown = parser.parse_known_args()\n",
    ],
)
def test_what_is_dropped_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    assert unread_of(monkeypatch, tmp_path, text) == ["batch-sise"]


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + "args, rest = parser.parse_known_args()\nprint(rest)\n",
        BEGIN + "both = parser.parse_known_args()\nprint(both[1])\n",
        BEGIN + "print(*parser.parse_known_args())\n",
        DROPS + "parser.add_argument('--batch-sise')\nargs, _ = parser.parse_known_args()\n",
        DROPS + "print(os.environ.get('SM_HP_BATCH_SISE'))\n",
        DROPS + "print(os.environ.get('SM_' + 'HP' + '_BATCH-SISE'))\n",
        DROPS + "given = {name: value for name, value in os.environ.items()}\n",
        DROPS + "import json; print(os.path.exists('/opt/ml/input/config/hyperparameters.json'))\n",
        DROPS + "import sys; print(sys.argv)\n",
        "print('reads nothing')\n",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\n"
        "parser.add_argument('--batch-sise')\nparser.parse_args()\n",
    ],
)
def test_what_may_be_read_is_not_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    assert unread_of(monkeypatch, tmp_path, text) == []


def test_a_module_beside_the_script_may_read_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("import os\nsise = os.environ.get('SM_HP_BATCH-SISE')\n")
    assert unread_of(monkeypatch, tmp_path, DROPS) == []
