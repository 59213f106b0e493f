"""The folder that the SDK uploads with a job: the driver, the job's secret, and wheels."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from syrtos.sagemaker import driver, wheels

# Not `driver.py`: it stands beside AWS's own drivers there.
DRIVER = "syrtos_driver.py"


def make(with_wheels: bool, python: str) -> Path:
    """Makes the folder of one job, which is removed at the end of this process.

    Args:
        with_wheels: whether it gets wheels of syrtos and of what syrtos needs.
        python: the version of the Python that will install them; empty: that of this Python.
    """
    made = Path(tempfile.mkdtemp(prefix="syrtos-driver-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    shutil.copyfile(driver.__file__, made / DRIVER)
    _write_secret(made / driver.SECRET)
    if with_wheels:
        wheels.collect(made / driver.WHEELS, python)
    return made


def _write_secret(path: Path) -> None:
    """Writes a new secret, which the hosts of the job prove to each other to know."""
    # a file, since Describe shows a job's environment and hyperparameters to more people than may
    # read its code
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
