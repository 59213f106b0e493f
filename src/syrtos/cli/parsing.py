"""Parsers whose errors are one line, with the option or command that was probably meant."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from syrtos.launch.spelling import closest_name

if TYPE_CHECKING:
    # What `add_to` of each command's file gets: argparse has no public name for it.
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# Words of a command line are few and short, and resemble each other less than names of a module do.
_ALIKE = 0.6
# Options of other launchers (horovodrun, torchrun, accelerate, mpiexec) and of data loaders, without
# their hyphens and underscores, by the one that means the same here.
_ELSEWHERE = {
    **dict.fromkeys(
        (
            "gpus", "n", "ngpus", "np", "nproc", "nprocs", "nprocesses", "nprocpernode", "ntasks", "numgpus", "numproc", "numprocs",
            "numprocesses", "numworkers", "nworkers", "processes", "procs", "tasks", "workers", "worldsize",
        ),
        "-n",
    ),
    "H": "--hosts",
    "host": "--hosts",
    "machinefile": "--hostfile",
    "timeoutseconds": "--timeout",
    "elastictimeout": "--timeout",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong and where help is, and ends the process with exit code 2."""
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog.partition(' ')[0]}: {message}{end} `{self.prog} -h` explains.\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses as argparse does; an option that this command does not have ends the process."""
        found, left = super().parse_known_args(args, namespace or argparse.Namespace())
        unknown = [word.partition("=")[0] for word in left if word.startswith("-")]
        # The parser of the whole command line sees what those of the commands have left.
        if unknown and self._subparsers is None:
            self._refuse_option(unknown[0])
        return found, left

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Ends the process if one of the leading options is unknown to this parser.

        The leading options are those before the first word that is no option.
        """
        # argparse itself takes the value of such an option for the script.
        known = self._option_string_actions
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or word in ("-", "--"):
                return
            name = word.partition("=")[0]
            if name in known:
                if "=" not in word and known[name].nargs != 0:
                    next(rest, None)
            elif _elsewhere(name) or not any(
                len(option) == 2 and word.startswith(option) for option in known
            ):
                self._refuse_option(name)

    def _refuse_option(self, name: str) -> NoReturn:
        self.error(f"there is no option {name}{suggest(name, self._option_string_actions)}")


class Help(argparse.Action):
    """An option that prints help and ends the process.

    The help has the options that most users need, or with `all` all options.
    """

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        most_needed: Collection[str] = (),
        **_: object,
    ) -> None:
        """``most_needed``: the options that are shown without `all`."""
        super().__init__(
            option_strings, dest, nargs="?", help="these options; `-h all`: all options"
        )
        self._most_needed = most_needed

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if values != "all":
            for action in parser._actions:
                if action.option_strings and not {*action.option_strings} & {
                    *self._most_needed,
                    "-h",
                }:
                    action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


def number(text: str) -> float:
    """Returns the finite number that an option was given.

    Raises:
        ValueError: it is none; argparse names the option.
    """
    if not math.isfinite(found := float(text)):
        raise ValueError(text)
    return found


def seconds(text: str) -> float:
    """Returns the seconds, 0 or more, that an option was given.

    Raises:
        ValueError: they are none; argparse names the option.
    """
    if (found := number(text)) < 0:
        raise ValueError(text)
    return found


def folder(text: str) -> Path:
    """Returns the path of a folder that an option was given.

    Raises:
        ArgumentTypeError: it is empty, as the value of a variable that is not set.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, received an empty text")
    return Path(text)


def closest(word: str, known: Iterable[str]) -> str:
    """Returns what was probably meant; empty where nothing is like it."""
    known = list(known)
    if (other := _elsewhere(word)) in known:
        return other
    return closest_name(word, known, _ALIKE) or ""


def _elsewhere(word: str) -> str:
    """Returns the option that a word of another launcher means; empty where there is none."""
    name = re.sub("[-_]", "", word)
    return _ELSEWHERE.get(name if name == "H" else name.lower(), "") if word != "-h" else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence that names what was probably meant.

    It is empty where nothing is like the word.
    """
    close = closest(word, known)
    return f"; did you mean `{close}`?" if close else ""


def refuse_unknown_command(words: Sequence[str], known: Collection[str], more: str = "") -> None:
    """Ends the process where the first word is no command, with the one that was probably meant.

    ``more``: a sentence that is added.
    """
    if not words or words[0].startswith("-") or words[0] in known:
        return
    if words[0].endswith(".py"):
        text = f"to train a script write `syrtos run {' '.join(words)}`."
    else:
        text = (
            f"there is no command {words[0]}{suggest(words[0], known) or '.'} `syrtos -h` lists"
            f" them.{more}"
        )
    print(f"syrtos: {text}", file=sys.stderr)
    sys.exit(2)
