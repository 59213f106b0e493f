"""Starts the interpreter that the workers of `syrtos run` are forked from.

It decides by a first look at the words of the command. A wrong guess costs half a second of a core:
the interpreter is ended, and workers import by themselves. Few modules are imported here.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

from syrtos import settings
from syrtos.errors import ConfigurationError
from syrtos.launch.processes.zygote_process import EarlyStart, ZygoteProcess, is_watched
from syrtos.launch.resources import shared_variables

# Options whose workers are not started by this process, or are more than `-n` says.
_NOT_FROM_HERE = frozenset((
    "--hosts", "--hostfile", "--discover", "--on", "--detach", "--dry-run", "--ps", "-h", "--help",
))  # fmt: skip
_NUMBER = re.compile(r"-n([0-9]+)?")


def early_start(words: Sequence[str]) -> EarlyStart | None:
    """Returns the interpreter for a command's workers; None where they may not be forked from it.

    Args:
        words: those of the command, with the script and its arguments.
    """
    env = settings.environment()
    is_new = settings.NEW_INTERPRETERS_VARIABLE in env or settings.TASKS_VARIABLE in env
    # Slurm's nodes are chosen without an option, and a file of the folder may have options.
    elsewhere = "SLURM_JOB_ID" in env or os.path.exists("syrtos.toml")
    named = {word.partition("=")[0] for word in words} & _NOT_FROM_HERE
    if is_new or elsewhere or named or is_watched(env):
        return None
    try:
        shared = shared_variables(env, _workers(words))
        if shared is None:
            return None
        return EarlyStart(
            ZygoteProcess({**settings.without_secrets(env), **settings.hash_seed(env), **shared})
        )
    except (OSError, ConfigurationError):
        # Without memory workers are interpreters of their own; who starts them says what is wrong.
        return None


def _workers(words: Sequence[str]) -> int:
    """Returns the number after the first `-n`, which may be the script's; 1 where there is none."""
    for word, after in itertools.pairwise([*words, ""]):
        if found := _NUMBER.fullmatch(word):
            number = found[1] or after
            return max(int(number), 1) if re.fullmatch("[0-9]{1,4}", number) else 1
    return 1
