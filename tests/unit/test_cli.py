"""The command line as a whole."""

from __future__ import annotations

import pytest

from syrtos import cli


def test_each_subcommand_is_in_the_file_that_is_imported_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli._COMMANDS:
        with pytest.raises(SystemExit) as end:
            cli.main([name, "-h"])
        assert end.value.code == 0
    with pytest.raises(SystemExit):
        cli.main(["nonsense"])
    choices = capsys.readouterr().err.rpartition("choose from ")[2]
    assert {word.strip(" )'\n") for word in choices.split(",")} == set(cli._COMMANDS)
