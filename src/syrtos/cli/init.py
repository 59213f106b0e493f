"""`syrtos init`: writes the file syrtos.toml, the defaults of `syrtos run` in its folder."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos import settings
from syrtos.cli.defaults import FILE
from syrtos.errors import ConfigurationError
from syrtos.launch import resources
from syrtos.launch.spec import parse_hosts
from syrtos.launch.worker import other_backends

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# The engines that place workers on machines of their own.
_CLUSTERS = ("slurm", "kubernetes", "ray")
TEMPLATE = """\
# What `syrtos run` does in this folder where its command line does not say otherwise. Any of its options may stand
# below [run], by its name without dashes: `syrtos run -h all` lists them. Remove the # of a line to use it.

[run]
n = 2                            # workers
# hosts = "alpha:2,beta:2"       # hosts, reached by ssh, and the workers on each
# on = "slurm"                   # what places the workers instead: slurm, kubernetes or ray
# gpus-per-worker = 1            # with `on`
# max-restarts = 3               # restarts after workers that died, hung or failed
# batch = "per-worker"           # a batch of the script is that of one worker
# scale-lr = "linear"            # scale the learning rate with the number of workers ...
# warmup-epochs = 5              # ... after epochs of warm-up
# track = ["tensorboard"]        # log the run: mlflow, tensorboard, wandb, jsonl, otlp

# What each engine is asked for, as `--with NAME=VALUE`, where `on` or `--on` names it.
[slurm]
# time = "2:00:00"
# partition = "gpu"

[kubernetes]
# image = "registry.example/train:1"
# claim = "data:/data"

[ray]
# address = "auto"
# cpus-per-worker = 2
"""


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "init",
        help=f"write {FILE}, the defaults of `syrtos run` in this folder",
        description=(
            f"Write {FILE} into the current folder: options that `syrtos run` takes there where its"
            " command line does not give them. On a terminal it asks where to train and with how"
            " many workers; elsewhere it writes two workers on this machine."
        ),
    )
    parser.set_defaults(main=main)


def main(_chosen: argparse.Namespace) -> int:
    """Asks, on a terminal, and writes the file.

    Raises:
        ConfigurationError: there is one, or the folder can't be written to.
    """
    if os.path.lexists(FILE):
        raise ConfigurationError(f"This folder has a {FILE} already: edit it, or delete it first.")
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    try:
        text = filled_in(_ask()) if asks else TEMPLATE
    except EOFError as error:
        raise ConfigurationError("The questions were not answered: nothing was written.") from error
    try:
        with Path(FILE).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"{FILE} can't be written: {error.strerror}.") from error
    print(f"Wrote {FILE}: `syrtos run SCRIPT.py` in this folder takes its options from there.")
    return 0


def filled_in(values: Mapping[str, str | int]) -> str:
    """Returns the text of the file with these values of options of `syrtos run`, by their names.

    Raises:
        KeyError: the template has no line for a name.
    """
    text = TEMPLATE
    for name, value in values.items():
        line = re.search(rf"^(?:# )?({re.escape(name)} = )\S+( *)(#?)", text, re.M)
        if line is None:
            raise KeyError(name)
        written = f"{line[1]}{json.dumps(value, ensure_ascii=False)}"
        # comments stay in their column, if they can
        padded = written.ljust(len(line[0]) - len(line[3]) - 1) + " " * bool(line[3]) + line[3]
        text = text[: line.start()] + padded + text[line.end() :]
    return text


def _ask() -> dict[str, Any]:
    """Returns what the person at the terminal answers, by the names of options."""
    # Only here: most commands need no prompts.
    from rich.prompt import IntPrompt, Prompt

    answers: dict[str, Any] = {}
    where = Prompt.ask("Where to train", choices=["here", "hosts", *_CLUSTERS], default="here")
    if where == "hosts":
        answers["hosts"] = _ask_hosts()
        answers["n"] = sum(host.slots for host in parse_hosts(answers["hosts"]))
    else:
        if where != "here":
            answers["on"] = where
        # workers of one CPU take turns
        proposed = (resources.gpus() if where == "here" else 0) or 2
        while (count := IntPrompt.ask("Workers", default=proposed)) < 1:
            print("At least 1.")
        answers["n"] = count
    backends = other_backends.installed()
    if len(backends) > 1:
        now = settings.environment().get("KERAS_BACKEND", "tensorflow")
        wanted = Prompt.ask("Backend of Keras", choices=backends, default=now)
        if wanted != now:
            print(
                f"Keras takes its backend from the environment, and not from {FILE}: write `export"
                f" KERAS_BACKEND={wanted}` into your shell, or into its start-up file."
            )
    return answers


def _ask_hosts() -> str:
    """Returns hosts as `--hosts` takes them."""
    from rich.prompt import Prompt

    while True:
        hosts = Prompt.ask("Hosts, and the workers on each, for example alpha:2,beta:2")
        try:
            parse_hosts(hosts)
        except ConfigurationError as error:
            print(error)
        else:
            return hosts
