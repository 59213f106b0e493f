"""`syrtos submit`: runs one training job from a script or YAML file, with or without a service."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos.errors import ConfigurationError, LaunchError
from syrtos.interrupts import raise_end_signals
from syrtos_jobs.commands import TITLE as TITLE

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "submit",
        help="run a script as a SageMaker-shaped training job",
        description=(
            "Runs a script as SageMaker would: channels under /opt/ml, SM_* variables, artifacts."
            " With a running `syrtos serve` the job goes through its queue; without one it runs"
            " here."
        ),
    )
    parser.set_defaults(main=main)
    parser.add_argument(
        "what",
        metavar="FILE",
        type=Path,
        help="a Python script, or a YAML file with the arguments of syrtos.Estimator and `inputs`",
    )
    parser.add_argument("--instances", type=int, metavar="N", help="hosts of the job")
    parser.add_argument("--processes-per-host", type=int, metavar="N", help="workers on each host")
    parser.add_argument(
        "--hp",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a hyperparameter; VALUE is JSON or text",
    )
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=URI",
        help="an input channel: a path, file:// or s3://",
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="an environment variable"
    )
    parser.add_argument(
        "--output",
        metavar="URI",
        default="runs",
        help="folder or URI that NAME/output/model.tar.gz is written to (default: %(default)s)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="R",
        help=(
            "start workers again, at most R times (1 to 30), when one is killed, crashes, hangs or"
            " fails; training goes on from its last committed step"
        ),
    )
    parser.add_argument("--name", help="name of the job (default: script name and time)")
    parser.add_argument(
        "--no-wait", action="store_true", help="return at once; the running service trains the job"
    )


def main(chosen: argparse.Namespace) -> int:
    """Creates the job, and follows it until it ends."""
    from syrtos_jobs.client.estimator import Estimator

    facts, inputs = _read_request(chosen)
    estimator = Estimator(**facts)
    raise_end_signals()  # the end of this command ends the job
    try:
        estimator.fit(inputs, wait=not chosen.no_wait, job_name=chosen.name)
    except LaunchError as error:
        print(f"syrtos: {error}", file=sys.stderr)
        return 1
    if chosen.no_wait:
        print(estimator.latest_training_job)
        return 0
    job = estimator.describe()
    model = estimator.saved_model
    what = f"model: {model}" if model else "no model: the script wrote nothing to SM_MODEL_DIR"
    print(f"syrtos: {job['TrainingJobName']} {job['TrainingJobStatus']}, {what}", file=sys.stderr)
    return 0 if job["TrainingJobStatus"] == "Completed" else 1


def _read_request(chosen: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    facts: dict[str, Any] = {"entry_point": str(chosen.what)}
    if chosen.what.suffix in (".yaml", ".yml"):
        from syrtos_jobs.client import job_file

        facts = job_file.read(chosen.what)
    inputs = facts.pop("inputs", None)
    named = {"training": inputs} if isinstance(inputs, str) else dict(inputs or {})
    named |= _pairs(chosen.channel, "--channel")
    hyperparameters = {name: _value(text) for name, text in _pairs(chosen.hp, "--hp").items()}
    facts["hyperparameters"] = {**(facts.get("hyperparameters") or {}), **hyperparameters}
    facts["environment"] = {**(facts.get("environment") or {}), **_pairs(chosen.env, "--env")}
    if chosen.instances is not None:
        facts["instance_count"] = chosen.instances
    if chosen.max_restarts is not None:
        facts["max_retry_attempts"] = chosen.max_restarts
    if chosen.processes_per_host is not None:
        facts["distribution"] = {
            "mpi": {"enabled": True, "processes_per_host": chosen.processes_per_host}
        }
    facts.setdefault("output_path", chosen.output)
    return facts, named


def _pairs(given: list[str], option: str) -> dict[str, str]:
    wrong = [text for text in given if not text.partition("=")[1] or not text.partition("=")[0]]
    if wrong:
        raise ConfigurationError(f"`{option}` is written NAME=VALUE. Received: {wrong[0]!r}.")
    return dict(text.split("=", 1) for text in given)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
