"""The file syrtos.toml of the current folder: defaults of `syrtos run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.cli.parsing import Parser, closest, number, seconds
from syrtos.engines import registry
from syrtos.errors import ConfigurationError

FILE = "syrtos.toml"
# The options that choose the hosts: one of them on the command line stands for all of the file.
_HOSTS = frozenset({"on", "hosts", "hostfile", "discover"})
# Options that stand in no file: those of engines have tables of their own.
_NEVER = ("help", "engine_values")
_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    number: ((int, float), "a number"),
    seconds: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
}
_TEXT = ((str,), "a text in quotes")


def added_words(parser: Parser, words: list[str]) -> list[str]:
    """Returns the words that the file adds before those after `syrtos run`, and prints them.

    Args:
        parser: the parser of `syrtos run`.
        words: the words that were typed, which the parser takes.

    Raises:
        ConfigurationError: the file can't be read, or has an unknown name or a value of the wrong
            type.
    """
    if not os.path.isfile(FILE):
        if os.path.lexists(FILE):
            print(f"syrtos: {FILE} of this folder is no file, and is not used.", file=sys.stderr)
        return []
    if os.stat(FILE).st_uid not in (os.getuid(), 0):
        # It may name commands that are run.
        print(
            f"syrtos: {FILE} of this folder belongs to another user and is not used.",
            file=sys.stderr,
        )
        return []
    # In the place of the defaults: what is still None after parsing was not typed.
    nothing = argparse.Namespace(**dict.fromkeys(action.dest for action in parser._actions))
    typed = {
        name: value
        for name, value in vars(parser.parse_args(words, nothing)).items()
        if value is not None
    }
    added = [*words_of(_read(), parser, typed)]
    if added:
        print(f"syrtos: using {FILE}: {shlex.join(added)}", file=sys.stderr)
    return added


def words_of(tables: Mapping[str, Any], parser: Parser, typed: Mapping[str, Any]) -> Iterator[str]:
    """Yields the options that the file's tables give.

    Args:
        tables: the tables by name.
        parser: the parser of `syrtos run`.
        typed: the options of the command line by their names in the parser's result; the file's are
            left out.

    Raises:
        ConfigurationError: a name is unknown, or a value has the wrong type.
    """
    options = {
        name: action
        for action in parser._actions
        if action.dest not in _NEVER
        for name in action.option_strings
    }
    _refuse_unknown_tables(tables)
    run = tables.get("run", {})
    left_out = {*typed, *(_HOSTS if _HOSTS & typed.keys() else ())}
    engine = typed.get("on") or ("" if "on" in left_out else run.get("on", ""))
    # only engines are asked for GPUs: without one the file's number has no meaning
    left_out |= set() if engine else {"gpus_per_worker"}
    for name, value in run.items():
        option, action = _option(name, options)
        words = [*_words(name, option, action, value)]
        if action.dest not in left_out:
            yield from words
    for name, value in tables.get(engine, {}).items():
        if isinstance(value, list | dict):
            raise ConfigurationError(
                f"{FILE}: `{name}` of [{engine}] must be a text or a number. Received: {value!r}."
            )
        yield from ("--with", f"{name}={str(value).lower() if isinstance(value, bool) else value}")


def _read() -> dict[str, Any]:
    # Only here: most folders have no such file.
    import tomllib

    try:
        return tomllib.loads(Path(FILE).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{FILE} of this folder can't be read: {error}.") from error


def _refuse_unknown_tables(tables: Mapping[str, Any]) -> None:
    known = ["run", *registry.names()]
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{FILE}: `{name}` stands in no table: write it below a line `[run]`."
            )
        if name not in known:
            meant = _suggest(closest(name, known))
            raise ConfigurationError(
                f"{FILE}: there is no table [{name}]{meant} There are: {', '.join(known)}."
            )


def _option(name: str, options: Mapping[str, argparse.Action]) -> tuple[str, argparse.Action]:
    option = next((option for option in (f"--{name}", f"-{name}") if option in options), None)
    if option is None:
        close = closest(f"--{name}", options).lstrip("-")
        raise ConfigurationError(
            f"{FILE}: there is no option `{name}`{_suggest(close)} `syrtos run -h all` lists them,"
            " with dashes."
        )
    return option, options[option]


def _suggest(close: str) -> str:
    return f"; did you mean `{close}`?" if close else "."


def _words(name: str, option: str, action: argparse.Action, value: Any) -> Iterator[str]:
    """Yields the words of the command line that say what the file does."""
    if action.nargs == 0:
        _check(name, value, bool)
        yield from [option] * value
        return
    many = isinstance(action, argparse._AppendAction) and isinstance(value, list)
    for one in value if many else [value]:
        _check(name, one, action.type, action.choices)
        # A value that begins with a dash would be taken for an option.
        yield from (option, str(one)) if not str(one).startswith("-") else (f"{option}={one}",)


def _check(name: str, value: Any, kind: Any, choices: Iterable[Any] | None = None) -> None:
    types, expected = _TYPES.get(kind, _TEXT)
    if choices is not None:
        expected = "one of " + ", ".join(f'"{choice}"' for choice in choices)
    # True is an int for Python.
    is_wrong = type(value) not in types or (choices is not None and value not in choices)
    if is_wrong or (isinstance(value, str) and "\0" in value):
        raise ConfigurationError(f"{FILE}: `{name}` must be {expected}. Received: {value!r}.")
