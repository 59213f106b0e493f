"""The reference of the command line, made from the parsers that the command itself uses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from text import cell, prose

from syrtos import cli
from syrtos.cli import tune_batch, tune_lr, tune_search


def page() -> str:
    """Returns a section for each command: what it is for, its usage and its options."""
    return "\n".join(line for name, parser in commands() for line in _section(name, parser))


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields each command with its parser; the forms of `syrtos tune` after it."""
    for name, parser in _below("syrtos", cli.parser()):
        yield name, parser
        if name == "syrtos tune":
            yield "syrtos tune batch", tune_batch.parser()
            yield "syrtos tune lr", tune_lr.parser()
            yield "syrtos tune SEARCH.yaml", tune_search.parser()


def _below(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield f"{name} {word}", child
                yield from _below(f"{name} {word}", child)


def _section(name: str, parser: argparse.ArgumentParser) -> list[str]:
    usage = parser.usage or " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = [f"## {name}", "", prose(parser.description or ""), "", "```", *_wrapped(usage), "```", ""]
    rows = [(_names(action, parser), cell(_help(action, parser))) for action in _shown(parser)]
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {names} | {text} |" for names, text in rows), ""]
    return [*lines, prose(parser.epilog or ""), ""]


def _wrapped(usage: str, width: int = 100) -> list[str]:
    lines, line = [], ""
    for word in usage.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = "   "
        line = f"{line} {word}" if line else word
    return [*lines, line]


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns options and arguments that are no secret, without `-h`."""
    return [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]


def _names(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    default = action.dest.upper() if action.option_strings else action.dest
    value = formatter._format_args(action, default) if action.nargs != 0 else ""
    if action.nargs in (argparse.PARSER, argparse.REMAINDER) or not action.option_strings:
        return f"`{cell(value)}`"
    return ", ".join(f"`{cell(name)}{' ' + cell(value) if value else ''}`" for name in action.option_strings)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else "as for `syrtos run`"
