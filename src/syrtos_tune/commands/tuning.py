"""The common part of `syrtos tune batch` and `syrtos tune lr`.

It has the options of a run that trials have, and the files of results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from syrtos.cli.failure import print_failure
from syrtos.cli.parsing import folder, seconds
from syrtos.cli.run_dirs import absolute
from syrtos.errors import ConfigurationError
from syrtos.launch.outcome import End
from syrtos.launch.program import parse
from syrtos.launch.spec import Spec, new_run_dir
from syrtos.report.page import finite
from syrtos.settings import CompileUpdate, Exchange, Options
from syrtos_tune.runner import TrialError
from syrtos_tune.text import page

# Seconds that scripts have to end after Ctrl-C: a trial has nothing to save.
_GRACE = 2.0
FACTS, PAGE = "tune.json", "tune.html"


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that both commands have; `add_script` comes last."""
    made = argparse.ArgumentParser(
        prog=f"syrtos tune {name}", allow_abbrev=False, description=description
    )
    made.add_argument(
        "-n",
        type=int,
        default=1,
        dest="workers",
        metavar="N",
        help="number of workers, on this machine (default: 1)",
    )
    made.add_argument(
        "--run-dir",
        type=folder,
        metavar="DIR",
        help="folder for trials and results (default: runs/TIME-tune)",
    )
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    made.add_argument("--oversubscribe", action="store_true", help="allow more workers than cores")
    return made


def add_script(made: argparse.ArgumentParser) -> None:
    """Adds the options of `syrtos run` that change a step's cost or result, and the script."""
    defaults = Options()
    group = made.add_argument_group("as for `syrtos run`")
    group.add_argument("--sync-batchnorm", action="store_true")
    group.add_argument("--exchange", choices=get_args(Exchange), default=defaults.exchange)
    group.add_argument(
        "--compile-update", choices=get_args(CompileUpdate), default=defaults.compile_update
    )
    group.add_argument("--shard-update", action="store_true")
    group.add_argument("--compress", default=defaults.compress, metavar="CODEC")
    group.add_argument("--timeout", type=seconds, default=defaults.timeout, metavar="S")
    made.add_argument(
        "-m",
        action="store_true",
        dest="module",
        help="run a module instead of a file, as `python -m`",
    )
    made.add_argument("script", nargs=argparse.PARSER, help="the Python script and its arguments")


def spec_of(chosen: argparse.Namespace) -> Spec:
    """Returns the request for a trial's run.

    Raises:
        ConfigurationError: the trial can't be run.
    """
    names = ("sync_batchnorm", "exchange", "compile_update", "shard_update", "compress", "timeout")
    return Spec(
        program=parse(["-m", *chosen.script] if chosen.module else chosen.script),
        workers=chosen.workers,
        options=Options(**{name: getattr(chosen, name) for name in names}),
        oversubscribe=chosen.oversubscribe,
        grace=_GRACE,
    )


def run_dir_of(chosen: argparse.Namespace) -> Path:
    """Returns the folder for trials and results, and makes it if it is not there.

    Raises:
        ConfigurationError: the folder can't be made.
    """
    default = new_run_dir()
    folder: Path = absolute(chosen.run_dir or default.with_name(f"{default.name}-tune"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The folder {folder} can't be written to: {error.strerror}. Name another with"
            " --run-dir."
        ) from error
    return folder


def finish(chosen: argparse.Namespace, run_dir: Path, facts: Mapping[str, Any]) -> None:
    """Writes the files of a result, and prints it as JSON if that was asked for."""
    text = json.dumps(finite(dict(facts)), indent=2)
    (run_dir / FACTS).write_text(text + "\n")
    words = {"batch": "Batch sizes", "lr": "Learning rates"}[facts["kind"]]
    about = f"{' '.join(chosen.script)} · {chosen.workers} worker{'s' * (chosen.workers > 1)}"
    (run_dir / PAGE).write_text(
        page(facts, f"{words} of {Path(chosen.script[0]).name}", about), encoding="utf-8"
    )
    if chosen.json:
        print(text)


def print_end(error: TrialError, run_dir: Path | None = None) -> int:
    """Prints why a trial ended early, as a run of its own would, and returns its exit code.

    ``run_dir`` is the folder of the whole search, if other trials had finished.
    """
    outcome = error.ran.outcome
    if outcome.end is End.FINISHED:
        print(f"syrtos: {error}", file=sys.stderr)
        return 1
    print_failure(outcome, run_dir if run_dir and outcome.end is End.STOPPED else error.ran.folder)
    return outcome.code
