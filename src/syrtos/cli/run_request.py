"""A run as it was asked for, and the file in the run directory by which it is resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shlex
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from syrtos import settings
from syrtos.checkpoint import durable
from syrtos.cli.env import versions
from syrtos.cli.script_environment import changed_names, fingerprints
from syrtos.errors import ConfigurationError
from syrtos.json_files import document, read_object
from syrtos.launch.outcome import End, end_of
from syrtos.launch.policy import RestartPolicy
from syrtos.launch.program import Program
from syrtos.launch.spec import Elastic, Host, Spec
from syrtos.run_dir import REQUEST, RunDir
from syrtos.settings import CALL_PROGRAM, Options


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
        any_batches: whether training may go on with other batches than those of its snapshot.
        full_summary: whether the summary at the end has all that the ledgers say.
    """

    spec: Spec
    policy: RestartPolicy
    seed: int
    track: tuple[str, ...] = ()
    metrics_port: int | None = None
    backend: str | None = None
    any_batches: bool = False
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
            "sha256": digest_of_script(name),
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
            if value != _member(found, "options").get(name)
        ]
        unknown = [] if described["sha256"] else ["the module's files, which are not known"]
        readable = {"options": ", ".join(options), "sha256": "the script's file"}
        return [readable.get(name, name) for name in names] + unknown

    def facts(self) -> dict[str, Any]:
        """Returns all that the run directory keeps, so that the run can be resumed from there."""
        watched = {"track": self.track, "metrics_port": self.metrics_port}
        facts = {
            "seed": self.seed,
            "backend": self.backend,
            "environment": fingerprints(self.spec.program, settings.environment()),
            **watched,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        return self.identifying_facts() | facts

    def write(self, run_dir: Path) -> None:
        """Writes the request into the run directory."""
        path = RunDir(run_dir).request_file
        # better none than that of another run, where there is no room for this one
        path.unlink(missing_ok=True)
        _write(path, self.facts())


def digest_of_script(script: str) -> str:
    """Returns the SHA-256 of a script's file; empty for a module."""
    return hashlib.sha256(Path(script).read_bytes()).hexdigest() if os.path.isfile(script) else ""


def _member(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns an object of a request; empty where the request has something else there."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _describe(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"it has no file {REQUEST}"
    if isinstance(error, PermissionError):
        return f"its file {REQUEST} can't be read by this user"
    if isinstance(error, OSError):
        return str(error)
    # of one of the file's members, but for a `ValueError` of all of it, which names the file
    about = f"{REQUEST} is damaged: "
    if isinstance(error, KeyError):
        return f"{about}it lacks {error}"
    return str(error) if REQUEST in str(error) else f"{about}{error}"


def _enter(folder: str, run_dir: Path) -> None:
    """Changes to the folder in which a run was begun.

    Raises:
        ConfigurationError: it is gone, or can't be entered.
    """
    try:
        os.chdir(folder)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"It was begun in {folder}, which is gone. Make that folder again, with the script, and"
            f" call `syrtos resume {shlex.quote(str(run_dir))}` again."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"It was begun in {folder}, which this user can't enter: {error.strerror}."
        ) from error


def read_request(run_dir: Path) -> RunRequest:
    """Reads the request that `RunRequest.write` has written.

    It changes to the folder in which the run was begun. If the script has changed since,
    or a variable of the environment that it names, a line says so.

    Raises:
        ConfigurationError: there is no such run, or it can't be resumed.
    """
    try:
        found = read_object(RunDir(run_dir).request_file)
        _enter(str(found["folder"]), run_dir)  # a number would be a descriptor
        request = _request_of(found)
        _check_fields(request)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise ConfigurationError(
            f"{run_dir} is not the run directory of a run that can be resumed: {_describe(error)}."
            " Name the folder that `syrtos run` printed at its start."
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"The run in {run_dir} can't be resumed. {error}") from error
    _check_resumable(run_dir, request, found)
    _print_changes(request.spec.program, found)
    return request


def _request_of(found: Mapping[str, Any]) -> RunRequest:
    """Returns the request that a file's fields describe."""
    program = {
        **found["program"],
        "arguments": tuple(found["program"]["arguments"]),
        "flags": tuple(found["program"]["flags"]),
    }
    elastic = Elastic(**found["elastic"]) if found["elastic"] else None
    resized = found.get("resized")
    spec = Spec(
        program=Program(**program),
        workers=found["workers"] if elastic else resized or found["workers"],
        hosts=tuple(Host(**host) for host in found.get("moved", found["hosts"])),
        elastic=dataclasses.replace(elastic, most=resized) if elastic and resized else elastic,
        ssh=found["ssh"],
        forward=tuple(found["forward"]),
        options=Options(**found["options"]),
        oversubscribe=found["oversubscribe"] or bool(found.get("oversubscribed")),
        grace=found["grace"],
    )
    return RunRequest(
        spec,
        RestartPolicy(**found["policy"]),
        found["seed"],
        tuple(found.get("track") or ()),
        found.get("metrics_port"),
        found.get("backend"),
    )


def _check_resumable(run_dir: Path, request: RunRequest, found: Mapping[str, Any]) -> None:
    """Raises ConfigurationError where there is nothing to go on from."""
    if request.spec.program.name == CALL_PROGRAM:
        raise ConfigurationError(
            f"The run in {run_dir} called a function of a notebook or script, which ended with it:"
            " call the function again."
        )
    if request.spec.options.servers or not request.policy.restarts:
        raise ConfigurationError(
            f"The run in {run_dir} kept no snapshots: runs with parameter servers or with"
            " `--max-restarts 0` don't."
        )
    if (ended := end_of(found)) and ended[0] is End.FINISHED:
        raise ConfigurationError(f"The run in {run_dir} has finished: there is nothing to resume.")


def _print_changes(program: Program, found: Mapping[str, Any]) -> None:
    """Prints what has changed of a script, or of its environment, since the run was begun."""
    if digest_of_script(program.name) != found.get("sha256", ""):
        print(f"syrtos: {program.name} has changed since the run was begun.", file=sys.stderr)
    kept = found.get("environment") or {}
    if changed := changed_names(program, settings.environment(), kept):
        print(
            "syrtos: variables of the environment that the script names have changed since the run"
            f" was begun: {', '.join(changed)}.",
            file=sys.stderr,
        )


def _check_fields(made: object) -> None:
    """Compares the values of a dataclass, and of those in it, with the types of their fields.

    Raises:
        TypeError: a value has another type; the text names its field.
    """
    for name, hint in get_type_hints(type(made)).items():
        value = getattr(made, name)
        if not _fits(value, hint):
            raise TypeError(f"`{name}` can't be {value!r}")


def _fits(value: object, hint: Any) -> bool:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Literal:
        return value in arguments
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(each, arguments[0]) for each in value)
    if hint in (int, float):
        return not isinstance(value, bool) and isinstance(value, int | hint)
    if not isinstance(value, hint):
        return False
    if dataclasses.is_dataclass(value):
        _check_fields(value)
    return True


def note(run_dir: Path, **facts: object) -> None:
    """Adds facts to the request in the run directory, in the place of those with the same names.

    Raises:
        OSError: the file can't be read or written.
        ValueError: it is damaged.
    """
    path = RunDir(run_dir).request_file
    _write(path, read_object(path) | facts)


class KeptRequest:
    """The request in a run directory, of a run that goes on.

    Its launcher alone writes it meanwhile, and writes all of it again at each change: the run can
    be resumed although something has damaged the file, removed its folder, or filled the disk when
    it was begun.
    """

    def __init__(self, run_dir: Path, request: RunRequest) -> None:
        self._path, self._place = RunDir(run_dir).request_file, _place_of(run_dir)
        self._facts = document(self._path) or request.facts()

    def note(self, **facts: object) -> None:
        """Adds facts to the request, in the place of those with the same names.

        Raises:
            OSError: the file can't be written, or its folder was removed, with what was recorded.
        """
        self._facts |= facts
        place = _place_of(self._path.parent)
        # the folder was made again by snapshots of this run, or by another run, which has its own
        if place == self._place or (place and not self._path.exists()):
            _write(self._path, self._facts)
        if place != self._place:
            raise FileNotFoundError(errno.ENOENT, "the folder was removed", str(self._path.parent))


def _place_of(folder: Path) -> int:
    """Returns a number by which a folder differs from another one of its name; 0 without one."""
    with contextlib.suppress(OSError):
        return folder.stat().st_ino
    return 0


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    # For its owner alone: an argument of the script may be a secret.
    durable.replace(path, (json.dumps(facts, indent=2) + "\n").encode(), mode=0o600)


def request_changes(
    workers: int | None, hosts: Sequence[Host] = (), oversubscribe: bool = False
) -> dict[str, object]:
    """Returns another number of workers, or other hosts, in the form that the request keeps."""
    changes: dict[str, object] = {} if workers is None else {"resized": workers}
    if hosts:
        changes["moved"] = [dataclasses.asdict(host) for host in hosts]
    return changes | ({"oversubscribed": True} if oversubscribe else {})
