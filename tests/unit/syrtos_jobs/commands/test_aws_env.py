"""Variables of a service that runs, or is about to."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos import cli
from syrtos_jobs.commands import aws_env


@pytest.mark.usefixtures("no_session")
def test_without_a_service_the_shell_goes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYRTOS_HOME", str(tmp_path))
    monkeypatch.setattr(aws_env, "_STARTING", 0.2)
    assert cli.main(["aws-env"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "false\n"
    assert "syrtos serve" in printed.err
