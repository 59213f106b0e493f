"""`syrtos completion`: prints the script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_SHELLS = ("bash", "zsh", "tcsh")


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "completion",
        help="print a script by which the shell completes commands, options and files",
        description="Print a script by which the shell completes commands, options and files.",
        epilog=(
            'Bash: `eval "$(syrtos completion bash)"` in ~/.bashrc. Zsh: `syrtos completion zsh >'
            " ~/.zfunc/_syrtos`, with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc. Tcsh:"
            " `syrtos completion tcsh > ~/.syrtos.tcsh`, and `source ~/.syrtos.tcsh` in ~/.tcshrc."
        ),
    )
    parser.add_argument("shell", choices=_SHELLS)
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Prints the script."""
    # Only here: no other command needs shtab, nor the parsers of all commands.
    import shtab

    from syrtos import cli

    parser = cli.parser()
    for action in _actions(parser):
        if action.dest == "script":
            # shtab knows REMAINDER, not PARSER: it completes the script's arguments as files too
            action.nargs = argparse.REMAINDER
        if action.dest == "script" or action.type is Path:
            is_folder = "DIR" in str(action.metavar)
            setattr(action, "complete", shtab.DIRECTORY if is_folder else shtab.FILE)  # noqa: B010
    print(shtab.complete(parser, chosen.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options and arguments of all commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
