"""Starts `syrtos run` on one instance of a training job, in the place of AWS's own drivers.

A copy of this file travels with the job (`syrtos.sagemaker.folder`), and SDK v3's ``sm_train.sh``
runs it on each instance, with the variables of its ``environment.py``. It imports nothing of
syrtos, which it may have to install.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

# Beside this file: the job's secret, and wheels to install.
SECRET, WHEELS = "secret", "wheels"
# SageMaker copies this folder to CheckpointConfig.S3Uri all the time, and back before a job goes on
# that was interrupted.
RUN_DIR = "/opt/ml/checkpoints/syrtos"
_FAILURE = "/opt/ml/output/failure"
_LONGEST_FAILURE = 1000  # characters: SageMaker shows 1024
_LAST_LINES = 12


class DriverOptions(TypedDict, total=False):
    """The fields of `syrtos.sagemaker.Syrtos` that say how the script is run."""

    workers_per_host: int | None
    options: list[str]


class Config(DriverOptions):
    """The fields of `syrtos.sagemaker.Syrtos`, as the SDK writes them for the driver."""

    version: str


def main() -> None:
    """Installs syrtos if needed, runs the script on all hosts, and ends with its exit code."""
    here, env = Path(__file__).resolve().parent, dict(os.environ)
    config: Config = json.loads(env["SM_DISTRIBUTED_CONFIG"])
    # first of all: the command below is one of the syrtos that this installs
    install(config, here / WHEELS, env)
    words = command(config, env)
    print("Executing command:", shlex.join(words), flush=True)
    code, last = _run(
        words, {**env, **variables(config, env), "SYRTOS_SECRET": (here / SECRET).read_text()}
    )
    if code:
        _say_why(f"`syrtos run` ended with exit code {code}:\n{last}"[-_LONGEST_FAILURE:])
    sys.exit(code)


def command(config: DriverOptions, env: Mapping[str, str]) -> list[str]:
    """Returns the command line that trains, the same on each host.

    Args:
        config: the fields of `syrtos.sagemaker.Syrtos`.
        env: the variables of this instance.
    """
    script = env.get("SM_ENTRY_SCRIPT", "")
    if not script.endswith(".py"):
        raise SystemExit(
            f"syrtos: the entry script is {script!r}, and `distributed=Syrtos(...)` trains Python"
            " scripts. Name one in SourceCode(entry_script=...), or leave `distributed` out."
        )
    # Alone there is nobody to meet.
    where = ["--on", "placed"] if _hosts(env) > 1 else ["-n", str(workers(config, env))]
    run = [
        sys.executable,
        "-m",
        "syrtos",
        "run",
        *where,
        "--run-dir",
        RUN_DIR,
        *config.get("options", ()),
    ]
    return [*run, script, *arguments(json.loads(env.get("SM_HPS") or "{}"))]


def variables(config: DriverOptions, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for this host's part of the run.

    They tell syrtos of the workers of this host, and libraries of the network between the hosts.
    """
    found = {"SYRTOS_SLOTS": str(workers(config, env))}
    interface = env.get("SM_NETWORK_INTERFACE_NAME")
    if interface and _hosts(env) > 1:
        # one interface, as AWS's drivers name it: a container has others, through which no other
        # host is reached
        found |= {
            name: interface for name in ("UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME") if name not in env
        }
    return found


def workers(config: DriverOptions, env: Mapping[str, str]) -> int:
    """Returns the number of workers of this host: as asked for, or one for each GPU, or one."""
    return config.get("workers_per_host") or int(env.get("SM_NUM_GPUS") or 0) or 1


def _hosts(env: Mapping[str, str]) -> int:
    return len(json.loads(env["SM_HOSTS"]))


def arguments(hyperparameters: Mapping[str, object]) -> list[str]:
    """Returns hyperparameters as a command line.

    The rules are those of the SDK's own drivers (common/utils.py, 1.27).
    """
    return [word for name, value in hyperparameters.items() for word in (f"--{name}", _text(value))]


def _text(value: object) -> str:
    """Returns texts as they are, all else as JSON. Texts of JSON are rewritten, as in the SDK."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return value if isinstance(value, str) else json.dumps(value)


def install(config: Config, wheels: Path, env: Mapping[str, str]) -> None:
    """Installs syrtos from the job's wheels, or else, if it is not there yet, as pip finds it."""
    if "SYRTOS_JOB" in env:
        return  # `syrtos serve`: this is its own environment, which a job must not change
    known = importlib.util.find_spec("syrtos") is not None
    if known and not wheels.is_dir():
        return
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    source = ["--no-index", "--find-links", str(wheels)] if wheels.is_dir() else []
    done = subprocess.run(
        [*pip, *source, f"syrtos=={config['version']}"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        _say_why(
            f"pip could not install syrtos {config['version']}: {why}. `Syrtos(wheels=True,"
            " python=...)` lets wheels for the container's Python"
            f" ({sys.version_info[0]}.{sys.version_info[1]}) travel with the job."
        )
        raise SystemExit(f"{done.stderr}\nsyrtos: it could not be installed: {why}")


def _run(words: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Runs a command, passes on what it prints, and returns its exit code and its last lines."""
    last: collections.deque[bytes] = collections.deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        words, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()  # SageMaker shows lines as they come, also those before a crash
    code = process.returncode
    # a signal's number, as a shell would report it
    return (code if code >= 0 else 128 - code), b"".join(last).decode(errors="replace")


def _say_why(text: str) -> None:
    """Writes the reason of a failure for SageMaker, unless the script has written one."""
    if not os.path.exists(_FAILURE):
        Path(_FAILURE).write_text(text)


if __name__ == "__main__":
    main()
