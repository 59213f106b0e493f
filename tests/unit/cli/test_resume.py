"""What `syrtos resume` takes from the run that it goes on with."""

from __future__ import annotations

import os

import pytest

from syrtos.cli import resume
from syrtos.cli.run_request import request_changes


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
