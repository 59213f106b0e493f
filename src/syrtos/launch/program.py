"""The program of each worker: a file or a module, as `python` takes them on its command line."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from syrtos.errors import ConfigurationError, ScriptSyntaxError

_INTERPRETER = re.compile(r"python(\d+)?(?:\.(\d+))?t?")
# Flags of the interpreter (`python --help`) that are passed on to it; W and X have a value.
_PASSED_ON = frozenset("bBdEIOPqRsuvWX")


@dataclasses.dataclass(frozen=True)
class Program:
    """A Python program.

    Attributes:
        name: path of a file, or name of a module.
        arguments: the program's ``sys.argv[1:]``.
        is_module: whether it is run as by ``python -m``.
        flags: flags for the interpreter.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    flags: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The words that follow ``python`` and its flags on a command line."""
        start = ("-m", self.name) if self.is_module else (self.name,)
        return (*start, *self.arguments)

    def check(self) -> None:
        """Refuses a program that Python could not run.

        Raises:
            ConfigurationError: it is missing, a folder, a pipe, or unreadable.
            ScriptSyntaxError: Python can't parse it.
        """
        self._check_found()
        self.check_syntax()

    def check_syntax(self) -> None:
        """Refuses a program that Python can't parse; does nothing where its file is not found.

        Raises:
            ScriptSyntaxError: Python can't parse it.
        """
        try:
            file = _file_of_module(self.name) if self.is_module else os.path.abspath(self.name)
            with io.open_code(file) as opened, warnings.catch_warnings():
                # The workers print what Python warns of.
                warnings.simplefilter("ignore")
                compile(opened.read(), file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ScriptSyntaxError("".join(traceback.format_exception_only(error))) from error
        except (OSError, ValueError, RecursionError, MemoryError):
            # Workers say what Python makes of such a file.
            return

    def _check_found(self) -> None:
        if not self.is_module:
            check_script(Path(self.name))
            return
        top = self.name.partition(".")[0]
        if PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
            raise ConfigurationError(
                f"There is no module {top} (looked in {Path.cwd()} and in this environment)."
            )


def _file_of_module(name: str) -> str:
    """Returns the source file that ``python -m name`` runs; empty if a search of folders finds none.

    No package is imported for that.
    """
    places, found = [os.getcwd(), *sys.path], None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:number]), places)
        if found is None:
            return ""
        places = list(found.submodule_search_locations or ())
    if places:
        found = PathFinder.find_spec(f"{name}.__main__", places)
    return found.origin or "" if found and found.has_location else ""


def parse(words: Sequence[str]) -> Program:
    """Returns the program that a command line names.

    Such a line is ``train.py x``, ``-m package.module x`` or ``python3.11 -u train.py x``.

    Raises:
        ConfigurationError: it names none, or asks for another Python than this.
    """
    rest = list(words)
    flags: list[str] = []
    if rest and _INTERPRETER.fullmatch(Path(rest[0]).name):
        _check_interpreter(rest.pop(0))
        flags = _take_flags(rest)
    # it runs a script so that a failure ends all workers: so does ours
    if rest[:2] == ["-m", "mpi4py"]:
        del rest[:2]
    is_module = rest[:1] == ["-m"]
    name, *arguments = rest[int(is_module) :] or [""]
    if not name or (name.startswith("-") and not is_module):
        raise ConfigurationError(
            "Name the program to run: `train.py ...`, `-m package.module ...` or `python train.py"
            f" ...`. Received: {' '.join(words) or 'nothing'}."
        )
    return Program(name, tuple(arguments), is_module, tuple(flags))


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "the current folder, which was removed"


def check_script(script: Path) -> None:
    """Refuses a file that Python could not run.

    Raises:
        ConfigurationError: it is missing, a folder, a pipe, or unreadable.
    """
    if not script.exists():
        raise ConfigurationError(
            f"There is no script {script} (looked in {_current_folder()}). Check the path."
        )
    if script.is_dir():
        raise ConfigurationError(f"{script} is a folder. Name the Python file to run.")
    if not script.is_file():
        raise ConfigurationError(
            f"{script} is a pipe or a device, which can be read once, and every worker reads the"
            " script: write it to a file, and name that."
        )
    if script.suffix == ".ipynb":
        raise ConfigurationError(
            f"{script} is a notebook. Train in it by `syrtos.notebook_launcher`, or make a script of"
            f" it: `jupyter nbconvert --to script {shlex.quote(str(script))}`."
        )
    if script.suffix != ".py" and _is_archive(script):
        raise ConfigurationError(
            f"{script} is an archive. Unpack it, and name the Python file to run: `__main__.py`."
        )
    if not os.access(script, os.R_OK):
        raise ConfigurationError(f"{script} can't be read by this user: `chmod +r {script}`.")


def _is_archive(script: Path) -> bool:
    # Only here: it takes 10 ms to import.
    import zipfile

    return zipfile.is_zipfile(script)


def _check_interpreter(word: str) -> None:
    """Refuses an interpreter that is not the one that runs syrtos.

    Raises:
        ConfigurationError: the word names another interpreter.
    """
    found = _INTERPRETER.fullmatch(Path(word).name)
    assert found is not None
    asked = [int(number) for number in found.groups() if number]
    elsewhere = (
        os.sep in word and Path(word).parent.resolve() != Path(sys.executable).parent.resolve()
    )
    if elsewhere or asked != list(sys.version_info[: len(asked)]):
        raise ConfigurationError(
            f"Workers run in the environment that syrtos is installed in, by {sys.executable}; the"
            f" command asks for {word}. Install syrtos there and use its `syrtos`, or leave the"
            " interpreter out."
        )


def _take_flags(words: list[str]) -> list[str]:
    """Removes the interpreter's flags from the front of ``words``, up to ``-m``, and returns them.

    They are returned one by one: ``-uWignore`` becomes ``-u -W ignore``.
    """
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-", "-m"):
        letters = words.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter == "m":
                words[:0] = ["-m", *([letters] if letters else [])]
                return flags
            if letter not in _PASSED_ON:
                raise ConfigurationError(
                    f"`python -{letter}` can't be run on workers: give a script or a module, with"
                    f" any of the flags {' '.join(sorted(_PASSED_ON))}."
                )
            flags.append(f"-{letter}")
            if letter in "WX":
                flags.append(letters or (words.pop(0) if words else ""))
                letters = ""
    return flags
