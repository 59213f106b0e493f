"""Checks of variables and programs that change how a run starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from syrtos import topology
from syrtos.doctor.machine_check import Check, ok, warning, wrong
from syrtos.errors import ConfigurationError
from syrtos.settings import OPTIONS_VARIABLE

_SECONDS = 2.0
# Variables by which a person chooses how MPI communicates.
_TUNED = (
    "UCX_NET_DEVICES",
    "UCX_TLS",
    "MPICH_OFI_",
    "MPICH_NOLOCAL",
    "MPIR_CVAR_",
    "FI_PROVIDER",
    "MPI4PY_",
    "I_MPI_",
)
_NOT_TUNED = ("MPI4PY_RC",)


def checks(env: Mapping[str, str], cores: int, gpus: int) -> Iterator[Check]:
    """Yields checks of a launcher's environment ``env``.

    The machine has ``cores`` cores and ``gpus`` GPUs. If nothing in ``env`` changes how a run
    starts, a single check says so.
    """
    found = [
        *_started_by(env),
        *_tf_config(env),
        *_check_threads(env, cores, gpus),
        *_libraries(env),
        *_other_mpi(env.get("PATH", "")),
    ]
    yield from found or [ok("environment", "no variable and no other MPI changes how a run starts")]


def _started_by(env: Mapping[str, str]) -> Iterator[Check]:
    if OPTIONS_VARIABLE in env:
        yield wrong(
            "environment",
            f"{OPTIONS_VARIABLE} is set: it is what `syrtos run` gives to workers",
            f"`unset {OPTIONS_VARIABLE}`.",
        )
    started = topology.detect(env)
    if started is not None:
        yield warning(
            "environment",
            f"variables of {started.starter} say that this process is one of {started.size}:"
            " `python train.py` here would look for the others",
            "Leave that step (`exit`), or start scripts by `syrtos run`, which sets variables of"
            " its own.",
        )
    elif "SLURM_JOB_ID" in env:
        yield ok(
            "environment", f"inside of Slurm's allocation {env['SLURM_JOB_ID']}, and no step of it"
        )


def _tf_config(env: Mapping[str, str]) -> Iterator[Check]:
    if not env.get("TF_CONFIG"):
        return
    try:
        topology.check_tf_config(env)
    except ConfigurationError as error:
        yield wrong("TF_CONFIG", str(error).rstrip("."), "`unset TF_CONFIG`.")
    else:
        yield warning(
            "TF_CONFIG",
            "it is set: `python -m syrtos train.py` waits for the tasks of its cluster",
            "`unset TF_CONFIG`, unless a cluster has set it for this machine.",
        )


def _check_threads(env: Mapping[str, str], cores: int, gpus: int) -> Iterator[Check]:
    threads = env.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and 1 < cores <= int(threads):
        yield warning(
            "OMP_NUM_THREADS",
            f"each worker starts {threads} threads, on {cores} cores for all of them",
            "`unset OMP_NUM_THREADS`: `syrtos run` divides the cores.",
        )
    if gpus and env.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield warning(
            "CUDA_VISIBLE_DEVICES", f"it hides all {gpus} GPUs", "`unset CUDA_VISIBLE_DEVICES`."
        )
    if "tf_xla_auto_jit" in env.get("TF_XLA_FLAGS", ""):
        yield warning(
            "TF_XLA_FLAGS",
            "XLA is asked to compile whole graphs, and can't contain an exchange of gradients",
            "`unset TF_XLA_FLAGS`: syrtos lets XLA compile the update.",
        )


def _libraries(env: Mapping[str, str]) -> Iterator[Check]:
    tuned = sorted(name for name in env if name.startswith(_TUNED) and name not in _NOT_TUNED)
    if tuned:
        yield warning(
            "MPI's variables",
            ", ".join(f"{name}={env[name]}" for name in tuned)
            + ": they choose how, or with which library, workers exchange",
            f"`unset {' '.join(tuned)}`, unless that choice was made for this machine.",
        )
    if env.get("LD_PRELOAD"):
        yield warning(
            "LD_PRELOAD",
            f"every worker loads {env['LD_PRELOAD']}",
            "`unset LD_PRELOAD`, unless it is meant.",
        )


def _other_mpi(path: str) -> Iterator[Check]:
    """Yields a warning about an `mpirun` of another MPI, under which each worker would be alone."""
    ours = Path(sysconfig.get_path("scripts")).resolve()
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=path or os.defpath)
        if found is None or Path(found).parent.resolve() == ours:
            continue
        maker = _maker(found)
        if maker:
            yield warning(
                "other MPI",
                f"{found} is {maker}'s: a script that it starts finds itself alone in our MPI, and"
                " ends with an error",
                "Start scripts by `syrtos run -n N train.py`.",
            )
            return


def _maker(program: str) -> str:
    """Returns the maker of an `mpirun`'s MPI; empty for MPICH, or if it does not tell."""
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((maker for maker in ("Open MPI", "Intel(R) MPI", "MVAPICH") if maker in said), "")
