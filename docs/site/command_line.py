"""The reference of the command line, made from the parsers that the command itself uses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from text import cell, prose

from syrtos import cli
from syrtos_jobs.commands import tune_search
from syrtos_tune.commands import tune_batch, tune_lr

# What options mean that have no text of their own, by the command.
_OTHERS = {
    "tune": "as for `syrtos run`",
    "horovodrun": "as for Horovod's launcher",
    "smddprun": "as for Horovod's launcher",
}
_TITLES = {"positional arguments": "argument", "options": "option"}


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


def _below(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for word, child in action.choices.items():
                child.description = child.description or helps.get(word)
                yield f"{name} {word}", child
                yield from _below(f"{name} {word}", child)


def _section(name: str, parser: argparse.ArgumentParser) -> list[str]:
    usage = parser.usage or " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = [
        f"## {name}",
        "",
        prose(_sentence(parser.description or "")),
        "",
        "```",
        *_wrapped(usage),
        "```",
        "",
    ]
    for group in parser._action_groups:
        if rows := [
            f"| {_names(action, parser)} | {cell(_help(action, parser))} |"
            for action in _shown(group)
        ]:
            lines += [
                f"| {_TITLES.get(group.title or '', group.title)} | |",
                "|---|---|",
                *rows,
                "",
            ]
    return [*lines, prose(parser.epilog or ""), ""]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _wrapped(usage: str, width: int = 100) -> list[str]:
    lines, line = [], ""
    for word in usage.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = "   "
        line = f"{line} {word}" if line else word
    return [*lines, line]


def _shown(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """Returns options and arguments that are no secret, without `-h`."""
    hidden = argparse._HelpAction | argparse._SubParsersAction
    return [
        action
        for action in group._group_actions
        if action.help != argparse.SUPPRESS and not isinstance(action, hidden)
    ]


def _names(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    default = action.dest.upper() if action.option_strings else action.dest
    value = formatter._format_args(action, default) if action.nargs != 0 else ""
    names = [f"{name} {value}".rstrip() for name in action.option_strings] or [value]
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|")


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    if action.help:
        return parser._get_formatter()._expand_help(action)
    return next((text for command, text in _OTHERS.items() if command in parser.prog), "")
