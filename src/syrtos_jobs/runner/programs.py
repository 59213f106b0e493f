"""A job's code on its instances: the fetched and unpacked source, and the required packages."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from syrtos.errors import DataError, LaunchError
from syrtos_jobs.requests.request import JobProgram
from syrtos_jobs.storage import artifacts
from syrtos_jobs.storage.storage_uris import StorageURIs


def fetch(places: StorageURIs, program: JobProgram, folder: Path) -> None:
    """Unpacks ``sourcedir.tar.gz`` into ``folder``.

    Raises:
        DataError: the archive does not exist, or can't be unpacked.
        LaunchError: it does not hold the script.
    """
    if program.source:
        archive, *_ = places.under(program.source)
        packed = folder.with_name("sourcedir.tar.gz")
        # beside the folder, so that the script does not find it among its files
        archive.fetch(packed)
        artifacts.unpack(packed, folder)
        packed.unlink()
    if not (folder / program.entry).is_file():
        there = sorted(path.name for path in folder.iterdir())[:20]
        raise LaunchError(
            f"There is no {program.entry} in the source folder; there are"
            f" {', '.join(there) or 'no files'}."
        )


def drivers_of(request: Mapping[str, Any], places: StorageURIs) -> dict[str, object]:
    """Returns the JSON files of channel ``sm_drivers``, by name; in them SDK v3 describes a script.

    Raises:
        DataError: they can't be read.
    """
    channels = request.get("InputDataConfig") or ()
    # SDK v3 sends its drivers, and the description of the script, as a channel
    source = next((c["DataSource"] for c in channels if c["ChannelName"] == "sm_drivers"), None)
    if source is None:
        return {}
    if "S3DataSource" not in source:
        raise DataError(
            "The channel sm_drivers must be an S3DataSource, as SageMaker's SDK sends it."
        )
    uri = source["S3DataSource"]["S3Uri"]
    base = uri.rstrip("/")
    try:
        found = {
            name: json.loads(places.text(f"{base}/{name}.json"))
            for name in ("sourcecode", "distributed")
        }
    except (ValueError, RecursionError) as error:
        raise DataError(f"{base} does not hold the drivers of SageMaker's SDK: {error}") from error
    return found


def python_for(
    program: JobProgram | None,
    code: Path,
    folder: Path,
    say: Callable[[list[str]], None],
    env: Mapping[str, str],
) -> Path:
    """Returns the interpreter for a job: ours, or that of a virtual environment.

    The virtual environment has the job's required packages.

    Args:
        code: the source folder.
        folder: a folder in which an environment may be made.
        say: gets the output of pip.
        env: environment variables for pip, which may run a job's ``setup.py``.

    Raises:
        LaunchError: pip failed.
    """
    wanted: list[str] = []
    if program and program.requirements and (code / program.requirements).is_file():
        wanted += ["-r", str(code / program.requirements)]
    if program and (code / "setup.py").is_file():
        wanted += [str(code)]
    if not wanted:
        return Path(sys.executable)
    say(["Installing " + " ".join(Path(word).name for word in wanted if word != "-r")])
    python = _environment(folder)
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        *wanted,
    ]
    done = subprocess.run(command, cwd=code, env=env, capture_output=True, text=True, check=False)
    installed = [
        line for line in done.stdout.splitlines() if line.startswith("Successfully installed")
    ]
    say(
        installed or ["All of it is there already."]
        if not done.returncode
        else done.stderr.splitlines()
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise LaunchError(f"pip could not install the job's requirements: {reason}")
    return python


def _environment(folder: Path) -> Path:
    """Makes a virtual environment that also finds this one's packages; returns its interpreter."""
    # without a pip of its own, which takes seconds to install: that of this environment is found
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    below = (
        folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages" / "below.pth"
    )
    # addsitedir: packages installed for development are found through .pth files of their own
    below.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python
