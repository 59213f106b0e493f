"""`syrtos run` and plain scripts as tests start them, in processes that a zygote forks: they need not import TensorFlow and Keras first.

All of it is the real thing but for one program: `forked_mpiexec.py` stands for MPI's launcher. Tests of the launch itself start it for
themselves. One more thing is lost: all processes have the same hash seed, so the order of sets is equal on all ranks.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from syrtos.testing import warm

HERE = Path(__file__).parent
ZYGOTE = "SYRTOS_TESTS_ZYGOTE"


def run(
    command: Sequence[object], env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Runs ``script ...``, ``-m module ...`` or ``syrtos ...`` to its end, as `subprocess.run` does with captured output.

    Raises:
        TimeoutError: it has not ended within ``timeout`` seconds; it is killed then.
    """
    environment = {**os.environ, **(env or {})}
    environment[ZYGOTE] = warm.zygote(environment).path
    words = [str(word) for word in command]
    if words[0] == "syrtos":
        words[0] = str(HERE / "forked_syrtos.py")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        family = warm.Family(environment[ZYGOTE])
        try:
            family.fork(
                warm.Command(words, environment, str(cwd or ".")), (nothing.fileno(), out.fileno(), err.fileno())
            )
            _, code = family.wait(timeout)
        finally:
            family.close()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(words, code, *texts)


def syrtos_run(folder: Path, workers: int, *words: object, flags: Sequence[object] = ()) -> Sequence[object]:
    """The command line of a run recorded in ``folder``."""
    return ["syrtos", "run", "-n", workers, "--oversubscribe", "--run-dir", folder, *flags, *words]
