"""`syrtos init`: writes the file syrtos.toml, the defaults of `syrtos run` in its folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.cli.defaults import FILE
from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

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
            " command line does not give them."
        ),
    )
    parser.set_defaults(main=main)


def main(_chosen: argparse.Namespace) -> int:
    """Writes the file.

    Raises:
        ConfigurationError: there is one, or the folder can't be written to.
    """
    try:
        with Path(FILE).open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError as error:
        raise ConfigurationError(
            f"This folder has a {FILE} already: edit it, or delete it first."
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{FILE} can't be written: {error.strerror}.") from error
    print(f"Wrote {FILE}: `syrtos run train.py` in this folder takes its options from there.")
    return 0
