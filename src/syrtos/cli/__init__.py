"""The `syrtos` command: one file per subcommand."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from syrtos import __version__
from syrtos.errors import SyrtosError

# The file of each subcommand: only that of the one that is asked for is imported, which takes half of the time.
_COMMANDS = {
    "run": "run",
    "doctor": "doctor",
    "verify": "verify",
    "tune": "tune",
    "resume": "resume",
    "resize": "resize",
    "horovodrun": "horovodrun",
    "smddprun": "horovodrun",
    "report": "report",
    "track": "track",
    "forecast": "forecast",
    "data": "data",
    "serve": "serve",
    "submit": "submit",
    "jobs": "jobs",
    "describe": "jobs",
    "status": "jobs",
    "logs": "jobs",
    "stop": "jobs",
    "aws-env": "aws_env",
    "env": "env",
}
_OF_JOBS = ("sqlalchemy", "starlette", "uvicorn", "httptools", "botocore", "yaml", "prometheus_client", "optuna")


def parser(command: str = "") -> argparse.ArgumentParser:
    """Returns the parser of the command line; with the name of a subcommand, one that knows no other file's."""
    made = argparse.ArgumentParser(prog="syrtos", description="Distributed training for Keras.")
    made.add_argument("--version", action="version", version=f"syrtos {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [_COMMANDS[command]] if command in _COMMANDS else dict.fromkeys(_COMMANDS.values()):
        importlib.import_module(f"syrtos.cli.{name}").add_to(commands)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    chosen = parser(words[0] if words else "").parse_args(words)
    chosen.words = words[1:]
    try:
        return chosen.main(chosen)
    except ModuleNotFoundError as error:
        if error.name not in _OF_JOBS:
            raise
        print(f"syrtos: training jobs need {error.name}: `pip install {_packages_of_jobs()}`", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SyrtosError as error:
        print(f"syrtos: {error}", file=sys.stderr)
        return 2


def _packages_of_jobs() -> str:
    """Returns the packages that jobs need, quoted for a shell."""
    # By their names, since a checkout or a wheel may be what syrtos was installed from.
    from importlib.metadata import requires  # only here: it takes longer to import than all of this file

    wanted = (requirement.partition(";") for requirement in requires("syrtos") or ())
    return " ".join(f"'{name.strip()}'" for name, _, extra in wanted if extra.strip() == 'extra == "jobs"')
