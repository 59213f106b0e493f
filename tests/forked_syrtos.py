"""The command `syrtos`; the workers that it would start are forked by a zygote."""

import os
from collections.abc import Mapping

from syrtos.cli import process_main
from syrtos.launch.processes import local
from syrtos.launch.processes.forking import Command, Forked


def start(command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: local.Files) -> Forked:
    """Stands for `local.start`."""
    return Forked(
        os.environ["SYRTOS_TESTS_ZYGOTE"],
        Command(command[command.index("-m") :], env),
        (*files, pmi),
    )


local.start = start
process_main()
