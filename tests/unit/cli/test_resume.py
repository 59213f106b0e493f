"""What `syrtos resume` takes from the run that it goes on with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from syrtos.cli import resume
from syrtos.cli.run_request import REQUEST, read_request, request_changes
from syrtos.errors import ConfigurationError


@pytest.mark.parametrize(
    ("kept", "here", "chosen"),
    [("jax", None, "jax"), ("jax", "torch", "torch"), (None, None, None), (None, "torch", "torch")],
)
def test_the_backend_is_that_of_the_run_unless_the_shell_names_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kept: str | None,
    here: str | None,
    chosen: str | None,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "")  # so that it is put back
    monkeypatch.delenv("KERAS_BACKEND")
    if here:
        monkeypatch.setenv("KERAS_BACKEND", here)
    resume._choose_backend(kept)
    assert os.environ.get("KERAS_BACKEND") == chosen
    said = capsys.readouterr().err
    assert ("its snapshots can be read with jax alone" in said) == (
        (kept, here) == ("jax", "torch")
    )


def test_more_workers_than_cores_are_kept_for_the_next_time() -> None:
    assert request_changes(3, (), oversubscribe=True) == {"resized": 3, "oversubscribed": True}
    assert request_changes(None) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"folder": "/nowhere/at/all"}, "It was begun in /nowhere/at/all, which is gone."),
        ({"workers": 0}, "can't be resumed. `-n` must be 1 or more workers"),
        ({"policy": None}, "is not the run directory of a run that can be resumed"),
    ],
)
def test_a_run_that_cant_be_resumed(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    (tmp_path / "train.py").touch()
    program = {"name": "train.py", "arguments": [], "is_module": False, "flags": []}
    facts = {
        "program": program,
        "policy": {"restarts": 3, "asked": True},
        "options": {},
        "folder": str(tmp_path),
        "workers": 2,
        "hosts": [],
        "elastic": None,
        "ssh": "ssh",
        "forward": [],
        "oversubscribe": False,
        "grace": 10.0,
        "seed": 1,
    }
    (tmp_path / REQUEST).write_text(json.dumps(facts | change))
    with pytest.raises(ConfigurationError) as caught:
        read_request(tmp_path)
    assert says in str(caught.value)


def test_a_script_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it has no file run"):
        read_request(tmp_path)
