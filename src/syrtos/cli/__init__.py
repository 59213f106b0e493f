"""The `syrtos` command: one file per subcommand."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import io
import os
import signal
import sys
import textwrap
from typing import NoReturn

from syrtos import entry_points
from syrtos._version import __version__
from syrtos.cli import command_files
from syrtos.cli.early import early_start
from syrtos.cli.parsing import Parser, refuse_unknown_command
from syrtos.errors import ScriptSyntaxError, SyrtosError
from syrtos.interrupts import end_at_interrupts, exit_code, raise_interrupts
from syrtos.launch.limits import explain
from syrtos.launch.processes.zygote_process import EarlyStart
from syrtos.launch.terminal import streams

# Commands whose last words are a script and its arguments.
_WITH_SCRIPTS = ("run", "verify")
# Commands that end with what they run: also where nobody reads what they print any more.
_RUNNING = ("run", "resume", "verify", "tune", "submit", "serve", "horovodrun", "smddprun")


def parser(command: str = "") -> Parser:
    """Returns the parser of the command line.

    With the name of a subcommand it knows only the subcommands in the file of that one.
    """
    made = Parser(prog="syrtos", description="Distributed training for Keras.")
    made.add_argument("--version", action="version", version=f"syrtos {__version__}")
    commands = made.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    for module in command_files.modules(command):
        module.add_to(commands)
    return made


def _commands_of(made: Parser) -> argparse._SubParsersAction[Parser]:
    """Returns the part of the parser that has the commands."""
    return next(
        action for action in made._actions if isinstance(action, argparse._SubParsersAction)
    )


def _print_help() -> None:
    """Prints the commands, in groups."""
    commands = _commands_of(parser())
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    print(
        "usage: syrtos COMMAND ...\n\nDistributed training for Keras. `syrtos COMMAND -h` explains"
        " a command."
    )
    for title, names in command_files.by_title().items():
        print(f"\n{title}:")
        for name in names:
            print(
                "\n".join(
                    textwrap.wrap(
                        f"{name:<12}{helps.get(name, '')}",
                        100,
                        initial_indent="  ",
                        subsequent_indent=" " * 14,
                    )
                )
            )


def main(arguments: list[str] | None = None, early: EarlyStart | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        arguments: its words; None: those of the process, which the file syrtos.toml of the folder
            may add to.
        early: the interpreter that workers are forked from, if it was started already.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if not words or words[0] in ("-h", "--help"):
            with contextlib.suppress(BrokenPipeError):
                _print_help()
            return 0 if words else 2
        if not command_files.is_ours(words[0]):
            refuse_unknown_command(words, command_files.names(), command_files.why_absent())
        if not _has_folder():
            return 2
        chosen = _parse(words, takes_defaults=arguments is None)
        chosen.early = early
        if words[0] not in ("run", "resume"):
            # A run on this machine has nothing to tidy up before its launcher answers signals.
            raise_interrupts()
        return chosen.main(chosen)
    except ModuleNotFoundError as error:
        needs = entry_points.missing_packages(error)
        if not needs:
            raise
        print(f"syrtos: {needs}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # What reads the output has enough, as `| head`: Python's own flush at the end must not
        # fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ScriptSyntaxError as error:
        # as `python` prints it, and with its exit code
        print(error, end="", file=sys.stderr)
        return 1
    except SyrtosError as error:
        print(f"syrtos: {error}", file=sys.stderr)
        return 2
    except PermissionError as error:
        if not error.filename:
            raise
        print(
            f"syrtos: this user may not use {error.filename}: {error.strerror}. Ask the owner for"
            " permission, or name another path.",
            file=sys.stderr,
        )
        return 1
    except (OSError, RuntimeError, MemoryError) as error:
        why = explain(f"{type(error).__name__}: {error}")
        if (
            not why
            and isinstance(error, OSError)
            and not error.filename
            and error.errno == errno.ENOSPC
        ):
            why = "Is the disk full that standard output goes to?"
        if not why:
            raise
        print(f"syrtos: {str(error) or type(error).__name__}. {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        return exit_code(error)


def _parse(words: list[str], takes_defaults: bool) -> argparse.Namespace:
    """Returns the options and arguments of a command, with the words behind its name as ``words``.

    ``takes_defaults``: whether the file syrtos.toml of the folder may add to those of `run`.
    """
    made = parser(words[0])
    if words[0] in _WITH_SCRIPTS:
        _commands_of(made).choices[words[0]].refuse_unknown_options(words[1:])
    chosen = made.parse_args(words)
    if takes_defaults and words[0] == "run":
        # only here: the other commands do without engines
        from syrtos.cli.defaults import added_words

        if added := added_words(_commands_of(made).choices["run"], words[1:]):
            words = ["run", *added, *words[1:]]
            chosen = made.parse_args(words)
    chosen.words = words[1:]
    return chosen


def _has_folder() -> bool:
    """Returns whether the current folder is there; says what to do if it is not."""
    try:
        os.getcwd()
    except FileNotFoundError:
        print(
            "syrtos: the current folder was removed. Expected: one that exists. `cd` to another"
            " one, and call the command again.",
            file=sys.stderr,
        )
        return False
    return True


def process_main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process with its exit code.

    ``arguments`` are those of `main`.
    """
    end_at_interrupts()
    words = sys.argv[1:] if arguments is None else arguments
    # one that is closed is None
    if words[:1] and (words[0] in _RUNNING or None in (sys.stdin, sys.stdout, sys.stderr)):
        streams.make_unfailing(errors="backslashreplace")
    else:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters of charts
                stream.reconfigure(errors="backslashreplace")
    # Before the imports of this process, which take as long as those of the other.
    early = early_start(words[1:]) if words[:1] == ["run"] else None
    try:
        code = main(arguments, early)
        # One more Ctrl-C while Python itself ends would print a traceback, and change the exit
        # code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = exit_code(error)
    code = _flush(code)
    if early:
        early.end()
        # Python looks through all that is left for circles when it ends, which takes 8 ms. The
        # launcher has closed its files.
        gc.freeze()
    sys.exit(code)


def _flush(code: int) -> int:
    """Prints what is in buffers; returns ``code``, or 1 where standard output takes nothing."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # What reads the output has enough, as `| head`.
        if not isinstance(error, BrokenPipeError):
            print(f"syrtos: standard output can't be written to: {error.strerror}", file=sys.stderr)
            return code or 1
    return code
