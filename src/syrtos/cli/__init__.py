"""The `syrtos` command: one file per subcommand."""

from __future__ import annotations

import argparse
import os
import sys

from syrtos import __version__
from syrtos.cli import aws_env, data, env, horovodrun, jobs, resume, run, serve, submit
from syrtos.errors import SyrtosError

_OF_JOBS = ("sqlalchemy", "starlette", "uvicorn", "httptools", "botocore", "yaml")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="syrtos", description="Distributed training for Keras.")
    parser.add_argument("--version", action="version", version=f"syrtos {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (run, resume, horovodrun, data, serve, submit, jobs, aws_env, env):
        command.add_to(commands)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.main(chosen)
    except ModuleNotFoundError as error:
        if error.name not in _OF_JOBS:
            raise
        print(f"syrtos: training jobs need {error.name}: `pip install 'syrtos[jobs]'`", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SyrtosError as error:
        print(f"syrtos: {error}", file=sys.stderr)
        return 2
