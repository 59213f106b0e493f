"""`syrtos doctor`: finds what will be wrong or slow, in a script or on a machine."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos import entry_points
from syrtos.doctor.finding import Finding, Severity
from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_COLOURS = {
    Severity.BREAKS: "red",
    Severity.WRONG: "yellow",
    Severity.SLOW: "cyan",
    Severity.NOTE: "dim",
}
# Options that change what the doctor says of a script.
_OWN = re.compile(r"(-n|--(batch|scale-lr|fix|write|json|hosts|ssh))(=.*|(?<=-n)\d+)?")


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "doctor",
        usage="syrtos doctor [-n N] [--fix | --write] SCRIPT | syrtos doctor [--hosts a,b]",
        help="find what will be wrong or slow when a script runs on several workers",
        description=(
            "Reads a script, and the modules beside it that it imports, and says what will break,"
            " come out wrong or be slow when it runs on several workers. Nothing is run. Without a"
            " script: checks this machine, and others."
        ),
        epilog=(
            "The exit code is 1 if something breaks or comes out wrong. Examples: syrtos doctor -n"
            " 4 train.py; syrtos doctor --fix train.py; syrtos doctor --hosts a,b"
        ),
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="a Python script; its arguments may follow, and are not looked at",
    )
    parser.add_argument(
        "-n",
        type=int,
        default=2,
        metavar="N",
        dest="workers",
        help="number of workers it will run on (default: %(default)s)",
    )
    parser.add_argument(
        "--batch",
        choices=("global", "per-worker"),
        default="global",
        help="as it will be given to `syrtos run`",
    )
    parser.add_argument("--scale-lr", metavar="RULE", help="as it will be given to `syrtos run`")
    fixing = parser.add_mutually_exclusive_group()
    fixing.add_argument(
        "--fix",
        action="store_true",
        help=(
            "show, as a diff, the script in today's Keras; scripts of Horovod, SMDDP,"
            " multi_gpu_model and Estimators of Keras models become plain ones with the mathematics"
            " of N workers"
        ),
    )
    fixing.add_argument(
        "--write",
        action="store_true",
        help="write what `--fix` shows, and keep the script as SCRIPT.before",
    )
    parser.add_argument(
        "--hosts",
        metavar="a,b",
        help=(
            "check these hosts too, over ssh. For some seconds each listens on a free port of all"
            " its interfaces, as workers will, and the others connect to it: nothing is read there,"
            " and each connection is closed at once"
        ),
    )
    parser.add_argument(
        "--ssh",
        default="ssh",
        metavar="COMMAND",
        help="command that reaches the hosts (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Prints findings, and returns 1 if something breaks or comes out wrong.

    Raises:
        ConfigurationError: the script can't be read or parsed, or options don't go together.
    """
    words = chosen.script[1:] if chosen.script[:1] == ["--"] else chosen.script
    script = Path(words[0]) if words else None
    if script is None:
        if chosen.fix or chosen.write:
            raise ConfigurationError(
                "`--fix` and `--write` need a script: `syrtos doctor --fix train.py`."
            )
        return _machine(chosen)
    if chosen.hosts:
        raise ConfigurationError(
            "`--hosts` checks machines and goes without a script: `syrtos doctor --hosts a,b`."
        )
    _tell_late_options(words)
    if chosen.workers < 1:
        raise ConfigurationError(f"`-n` must be 1 or more. Received: {chosen.workers}.")
    if chosen.fix or chosen.write:
        return _convert_script(chosen, script)
    from syrtos.doctor import diagnosis, program

    found = diagnosis.findings(
        program.load(script, chosen.workers, chosen.batch, bool(chosen.scale_lr))
    )
    if chosen.json:
        for finding in found:
            print(json.dumps(finding.facts()))
    else:
        _print(found, script, chosen.workers)
    return int(any(finding.severity <= Severity.WRONG for finding in found))


def _print(found: Sequence[Finding], script: Path, workers: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for finding in found:
        word = finding.severity.name.lower()
        place = f"{_relative_path(finding.path)}:{finding.line}:{finding.column}"
        console.print(
            Text.assemble(
                (place, "bold"),
                "  ",
                (word, _COLOURS[finding.severity]),
                f" [{finding.rule}] {finding.says}.",
            )
        )
        console.print(
            Text(f"    {finding.fix}.", "dim" if finding.severity is Severity.NOTE else "")
        )
    counts = {
        severity: sum(finding.severity is severity for finding in found) for severity in Severity
    }
    told = [f"{count} {severity.name.lower()}" for severity, count in counts.items() if count]
    console.print(
        f"{script}:"
        f" {', '.join(told) if told else f'nothing found that breaks or slows it on {workers} workers'}"
    )


def _relative_path(path: Path) -> Path:
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path


def _tell_late_options(words: Sequence[str]) -> None:
    """Says that what follows the script counts as the script's: an option of the doctor's, a script."""
    others = [word for word in words[1:] if word.endswith(".py") and Path(word).is_file()]
    if others:
        print(
            f"syrtos: {others[0]} was taken as an argument of {words[0]}: the doctor reads one"
            f" script at a time. For the other: `syrtos doctor {others[0]}`.",
            file=sys.stderr,
        )
    late = [found[1] for word in words[1:] if (found := _OWN.fullmatch(word))]
    if late:
        print(
            f"syrtos: `{late[0]}` after the script is the script's, and is not looked at. For the"
            f" doctor write it before: `syrtos doctor {late[0]} ... {words[0]}`.",
            file=sys.stderr,
        )


def _convert_script(chosen: argparse.Namespace, script: Path) -> int:
    """Shows or writes the script in today's Keras.

    Raises:
        ConfigurationError: no package that is installed converts scripts, or the script can't be
            read.
    """
    fix = entry_points.load(entry_points.FIXES, "keras3")
    return fix(script, chosen.workers, chosen.write)


def _machine(chosen: argparse.Namespace) -> int:
    from syrtos.doctor import machine

    checks = machine.check([host for host in (chosen.hosts or "").split(",") if host], chosen.ssh)
    if chosen.json:
        print(json.dumps(machine.as_json(checks)))
    else:
        machine.show(checks)
    return int(any(check.status == "wrong" for check in checks))
