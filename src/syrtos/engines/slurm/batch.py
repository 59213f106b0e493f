"""A run's batch script: one launcher on the job's first node starts agents on all by `srun`."""

from __future__ import annotations

import shlex

from syrtos.engines.engine import EngineRequest
from syrtos.errors import ConfigurationError

# Values of --with that are options of `sbatch` of the same name (sbatch(1)).
SETTINGS = {
    name: f"as `sbatch --{name}`"
    for name in (
        "account", "array", "constraint", "cpus-per-task", "exclude", "exclusive", "gres", "job-name", "licenses", "mem", "mem-per-cpu", "nodelist", "nodes",
        "ntasks-per-node", "partition", "qos", "reservation", "time", "dependency", "begin", "mail-type", "mail-user", "comment",
    )
} | {
    "signal": "the signal before the time limit, as `USR1@120`; NCCL uses USR1 in some versions: then USR2@120",
    "setup": "shell commands before the run, such as `module load python`",
}  # fmt: skip
_SIGNAL = "USR1@120"


def script(wanted: EngineRequest) -> str:
    """Returns the batch script.

    Before its time limit the job gets a signal: workers save their state, the launcher ends with
    exit code 75, and the job is queued again. So is a job that is preempted, where Slurm sends it
    that signal (preempt_send_user_signal of slurm.conf(5)). Elsewhere, and by `scontrol requeue`,
    all processes get SIGTERM: the state is saved too, as long as Slurm leaves seconds for that.

    Raises:
        ConfigurationError: a value of `--with` is unknown.
    """
    wanted.check(SETTINGS, "slurm")
    values = dict(wanted.values)
    signal, setup = values.pop("signal", _SIGNAL).removeprefix("B:"), values.pop("setup", "")
    if signal.partition("@")[0].removeprefix("SIG") in ("TERM", "15"):
        raise ConfigurationError(
            "`--with signal=TERM` is what ends a job: choose USR1 or USR2, as in `signal=USR2@120`."
        )
    is_array = "array" in values
    options = _job_options(wanted, signal, is_array) | values
    lines = [
        f"#SBATCH --{name}" + f"={shlex.quote(value)}" * bool(value)
        for name, value in options.items()
    ]
    run_dir = shlex.quote(str(wanted.run_dir)) + '/"$SLURM_ARRAY_TASK_ID"' * is_array
    run = (
        f"{shlex.quote(wanted.python)} -m syrtos run --on slurm --run-dir {run_dir}"
        f" {shlex.join(wanted.words)}"
    )
    commands = _launcher_commands(run, signal.partition("@")[0], is_array)
    return "\n".join(["#!/bin/bash", *lines, "", *([setup] if setup else []), *commands, ""])


def _job_options(wanted: EngineRequest, signal: str, is_array: bool) -> dict[str, str]:
    """Returns the options of `sbatch` that the run has by itself, by name.

    An option without a value has an empty one.
    """
    return {
        "job-name": wanted.run_dir.name,
        "chdir": str(wanted.folder),
        "output": str(wanted.run_dir / ("slurm-%A_%a.log" if is_array else "slurm-%j.log")),
        # A job that is queued again writes on in its log: Slurm would begin it anew.
        "open-mode": "append",
        "requeue": "",
        # B: the signal goes to the batch shell alone, which passes it on to the launcher.
        "signal": f"B:{signal}",
        **({} if wanted.workers is None else {"ntasks": str(wanted.workers)}),
        **({"gpus-per-task": str(wanted.gpus)} if wanted.gpus else {}),
    }


def _launcher_commands(run: str, signal: str, is_array: bool) -> list[str]:
    """Returns shell commands that run the launcher, and queue the job again if its state is saved.

    Before its time limit the job gets the signal: workers save their state, and the launcher ends
    with exit code 75.
    """
    number = '"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"' if is_array else '"$SLURM_JOB_ID"'
    return [
        # Bash runs a trap once its foreground command has ended: so the launcher is in the
        # background.
        f"{run} &",
        "launcher=$!",
        "requeue=",
        f"trap 'requeue=1; kill -USR1 $launcher' {signal}",
        "trap 'kill -TERM $launcher' TERM",
        "wait $launcher; code=$?",
        # A signal that is trapped ends `wait` too, while the launcher still runs.
        "while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done",
        "# 75: its state is saved, and the same job goes on from it.",
        f'if [ "$code" = 75 ] && [ -n "$requeue" ]; then scontrol requeue {number}; fi',
        "exit $code",
    ]
