"""A run as it was asked for, and the file in the run directory by which it is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.checkpoint import durable
from syrtos.cli.env import versions
from syrtos.errors import ConfigurationError
from syrtos.launch.outcome import End
from syrtos.launch.policy import RestartPolicy
from syrtos.launch.program import Program
from syrtos.launch.spec import Elastic, Host, Spec
from syrtos.settings import Options

REQUEST = "run.json"


@dataclasses.dataclass(frozen=True)
class RunRequest:
    """A run as it was asked for.

    Attributes:
        spec: the program, and the workers.
        policy: the rules by which workers are started again.
        seed: the workers' common seed.
        track: the trackers that the run is logged to.
        metrics_port: the port on the loopback interface at which Prometheus finds the run's
            figures; None: none.
        backend: the backend of Keras that the environment named; None: none.
        full_summary: whether the summary at the end has all that the ledgers say.
    """

    spec: Spec
    policy: RestartPolicy
    seed: int
    track: tuple[str, ...] = ()
    metrics_port: int | None = None
    backend: str | None = None
    full_summary: bool = False

    def identifying_facts(self) -> dict[str, Any]:
        """Returns all that tells requests apart, as JSON has it.

        That is everything but the seed, the backend and the watching.
        """
        spec = self.spec
        name = (
            spec.program.name if spec.program.is_module else str(Path(spec.program.name).resolve())
        )
        described = {
            "program": dataclasses.asdict(dataclasses.replace(spec.program, name=name)),
            "sha256": _digest(name),
            "versions": versions(),
            "folder": os.getcwd(),
            "workers": spec.workers,
            "hosts": [dataclasses.asdict(host) for host in spec.hosts],
            "elastic": dataclasses.asdict(spec.elastic) if spec.elastic else None,
            "ssh": spec.ssh,
            "forward": spec.forward,
            "options": dataclasses.asdict(spec.options),
            "oversubscribe": spec.oversubscribe,
            "grace": spec.grace,
            "policy": dataclasses.asdict(self.policy),
        }
        # As JSON has it: tuples become lists, as in a request that was read.
        return json.loads(json.dumps(described))

    def differences(self, found: Mapping[str, Any]) -> list[str]:
        """Returns the names of the fields that differ from the request that ``found`` describes.

        The hosts of an elastic run may be others, and those that an engine has chosen.
        """
        described = self.identifying_facts()
        names = [name for name in described if described[name] != found.get(name)]
        if self.spec.elastic:
            names = [name for name in names if name not in ("hosts", "workers")]
        if self.spec.placed:
            names = [name for name in names if name != "hosts"]
        options = [
            name
            for name, value in described["options"].items()
            if value != found.get("options", {}).get(name)
        ]
        unknown = [] if described["sha256"] else ["the module's files, which are not known"]
        readable = {"options": ", ".join(options), "sha256": "the script's file"}
        return [readable.get(name, name) for name in names] + unknown

    def write(self, run_dir: Path) -> None:
        """Writes the request into the run directory, so that the run can be resumed from there."""
        watched = {"track": self.track, "metrics_port": self.metrics_port}
        facts = {
            "seed": self.seed,
            "backend": self.backend,
            **watched,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        (run_dir / REQUEST).write_text(
            json.dumps(self.identifying_facts() | facts, indent=2) + "\n"
        )


def _digest(script: str) -> str:
    """Returns the SHA-256 of a script's file; empty for a module."""
    return hashlib.sha256(Path(script).read_bytes()).hexdigest() if os.path.isfile(script) else ""


def _describe(error: Exception) -> str:
    return f"it has no file {REQUEST}" if isinstance(error, FileNotFoundError) else str(error)


def read_request(run_dir: Path) -> RunRequest:
    """Reads the request that `RunRequest.write` has written.

    It changes to the folder in which the run was begun. If the script has changed since, a line
    says so.

    Raises:
        ConfigurationError: there is no such run, or it can't be resumed.
    """
    try:
        found: dict[str, Any] = json.loads((run_dir / REQUEST).read_text())
        policy = RestartPolicy(**found["policy"])
        program = {
            **found["program"],
            "arguments": tuple(found["program"]["arguments"]),
            "flags": tuple(found["program"]["flags"]),
        }
        options = Options(**found["options"])
        os.chdir(found["folder"])
        elastic = Elastic(**found["elastic"]) if found["elastic"] else None
        resized = found.get("resized")
        spec = Spec(
            program=Program(**program),
            workers=found["workers"] if elastic else resized or found["workers"],
            hosts=tuple(Host(**host) for host in found.get("moved", found["hosts"])),
            elastic=dataclasses.replace(elastic, most=resized) if elastic and resized else elastic,
            ssh=found["ssh"],
            forward=tuple(found["forward"]),
            options=options,
            oversubscribe=found["oversubscribe"],
            grace=found["grace"],
        )
        seed = int(found["seed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{run_dir} is not the run directory of a run that can be resumed: {_describe(error)}."
            " Name the folder that `syrtos run` printed at its start."
        ) from error
    if options.servers or not policy.restarts:
        raise ConfigurationError(
            f"The run in {run_dir} kept no snapshots: runs with parameter servers or with"
            " `--max-restarts 0` don't."
        )
    if (found.get("end") or [""])[0] == End.FINISHED.name:
        raise ConfigurationError(f"The run in {run_dir} has finished: there is nothing to resume.")
    if _digest(spec.program.name) != found.get("sha256", ""):
        print(f"syrtos: {spec.program.name} has changed since the run was begun.", file=sys.stderr)
    track = tuple(found.get("track") or ())
    return RunRequest(spec, policy, seed, track, found.get("metrics_port"), found.get("backend"))


def note(run_dir: Path, **facts: object) -> None:
    """Adds facts to the request in the run directory, in the place of those with the same names."""
    path = run_dir / REQUEST
    durable.replace(
        path, (json.dumps({**json.loads(path.read_text()), **facts}, indent=2) + "\n").encode()
    )


def request_changes(workers: int | None, hosts: Sequence[Host] = ()) -> dict[str, object]:
    """Returns another number of workers, or other hosts, in the form that the request keeps."""
    changes: dict[str, object] = {} if workers is None else {"resized": workers}
    return changes | ({"moved": [dataclasses.asdict(host) for host in hosts]} if hosts else {})
