"""The command line as a whole."""

from __future__ import annotations

import pytest

from syrtos import cli


def test_each_subcommand_is_in_the_file_that_is_imported_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in cli._COMMANDS:
        with pytest.raises(SystemExit) as end:
            cli.main([name, "-h"])
        assert end.value.code == 0
    cli.main(["-h"])
    listed = [
        line.split()[0]
        for line in capsys.readouterr().out.rpartition("\ntrain:\n")[2].splitlines()
        if line[2:3].strip()
    ]
    assert {word for word in listed if word in cli._COMMANDS} == set(cli._COMMANDS)
