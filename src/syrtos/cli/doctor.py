"""`syrtos doctor`: what will be wrong or slow."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    """Describes the subcommand."""
    parser = commands.add_parser("doctor", help="what will be wrong or slow when a script runs on several workers")
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Prints findings."""
    raise NotImplementedError
