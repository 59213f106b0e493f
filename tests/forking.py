"""`syrtos run` and plain scripts as tests start them, in processes that a zygote forks: they need not import TensorFlow and Keras first.

Tests of the launch itself start new interpreters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from syrtos import settings
from syrtos.launch.processes.forking import Command, Family
from syrtos.testing import warm

SYRTOS = str(Path(__file__).with_name("forked_syrtos.py"))
ZYGOTE = "SYRTOS_TESTS_ZYGOTE"


def command(first: object, env: dict[str, str]) -> list[str]:
    """How to start the command `syrtos` as a process whose workers are forked, or a script; ``env`` learns of the zygote."""
    env[ZYGOTE] = warm.zygote_path(env)
    env[settings.NEW_INTERPRETERS_VARIABLE] = "1"  # and with them: none but that zygote
    return [sys.executable, SYRTOS] if first == "syrtos" else [sys.executable, str(first)]


def run(
    words: Sequence[object],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Runs ``script ...`` or ``syrtos ...`` to its end in a forked process, as `subprocess.run` does with captured output.

    Raises:
        TimeoutError: it has not ended within ``timeout`` seconds; it is killed then.
    """
    environment = {**os.environ, **(env or {})}
    argv = [*command(words[0], environment)[1:], *map(str, words[1:])]
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        open(os.devnull, "rb") as nothing,
    ):
        family = Family(environment[ZYGOTE])
        try:
            started = Command(argv, environment, str(cwd or "."))
            family.fork(started, (nothing.fileno(), out.fileno(), err.fileno()))
            _, code = family.wait(timeout)
        finally:
            family.close()
        texts = [_text(file) for file in (out, err)]
    return subprocess.CompletedProcess(argv, code, *texts)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def syrtos_run(
    folder: Path, workers: int, *words: object, flags: Sequence[object] = ()
) -> Sequence[object]:
    """The command line of a run recorded in ``folder``."""
    return ["syrtos", "run", "-n", workers, "--oversubscribe", "--run-dir", folder, *flags, *words]
