"""A run's request to Kubernetes: the values of `--with`, checked, and the command of each pod."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, cast, get_args

from syrtos.engines.engine import EngineRequest, check_values
from syrtos.engines.reservation import NodeRequest
from syrtos.errors import ConfigurationError
from syrtos.launch.program import parse

Kind = Literal["JobSet", "Job", "TrainJob"]

SETTINGS = {
    "image": "the container image, with Python, syrtos and the script's packages (needed)",
    "kind": "JobSet (default), Job (needs nothing that is installed in the cluster, and is not started again as a group) or TrainJob (Kubeflow Trainer 2.2+)",
    "workers-per-pod": "workers in each pod (default: 1); -n is a multiple of it",
    "cpu": "processors that each pod asks for (default: one for each of its workers)",
    "memory": "memory of each pod, asked for and its limit, /dev/shm included: 16Gi",
    "shm": "the size of /dev/shm: 2Gi (default: as much as the pod's memory, or half of the node's)",
    "claim": "PersistentVolumeClaims and where they are mounted: NAME:/path[,NAME:/path]; the first has the run directory, so that snapshots survive pods",
    "script": "image: the script is in the image (default: one local file travels in a ConfigMap)",
    "workdir": "the folder in which the script runs (default: the first claim's path; with script=image that of the image)",
    "env": "variables of the workers: NAME=VALUE[,NAME=VALUE]",
    "queue": "the local queue of Kueue",
    "namespace": "the namespace (default: that of the kube config's context)",
    "context": "the context of the kube config (default: the current one)",
    "name": "the name of the objects (default: that of the run directory)",
    "service-account": "the service account of the pods",
    "pull-secret": "the secret by which the image is pulled",
    "node-selector": "labels of the nodes: NAME=VALUE[,NAME=VALUE]",
    "tolerate": "taints of nodes that pods may run on: NAME[=VALUE][,NAME[=VALUE]], e.g. nvidia.com/gpu",
    "user": "the number of the user that the pods run as, e.g. 1000 (default: the image's); claims become writable for its group",
    "grace": "seconds in which workers save their state after a SIGTERM (default: 60)",
    "restarts": "of all pods, after failures that are not preemptions; JobSet only (default: 3)",
    "ttl": "seconds after which the ended run's objects are deleted (default: a day; TrainJob: never)",
    "runtime": "the ClusterTrainingRuntime of a TrainJob (default: torch-distributed)",
}  # fmt: skip

# What `syrtos serve --on kubernetes` can be given: the job says the rest.
_OF_RUNS = ("kind", "workers-per-pod", "script", "workdir", "name", "restarts", "ttl", "runtime")
SETTINGS_OF_JOBS = {name: text for name, text in SETTINGS.items() if name not in _OF_RUNS} | {
    "claim": (
        "PersistentVolumeClaims and where they are mounted: NAME:/path[,NAME:/path]; one has"
        " SYRTOS_HOME, at the path that it has here (needed)"
    ),
}

PORT = 29500
# The folder of a script that travels in a ConfigMap, and that in which it runs where no claim has a
# better one.
SCRIPT_FOLDER, SCRATCH = "/syrtos/script", "/syrtos/work"
# A ConfigMap holds 1 MiB (Kubernetes, "ConfigMaps"), with its names and its encoding.
_MOST_BYTES = 900_000
# With it, JobSet's names of pods stay below the 63 characters of a host's name: NAME-node-0-INDEX,
# and 6 that the Job adds.
_MOST_LETTERS = 40
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTPE]i?)?")
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


@dataclasses.dataclass(frozen=True)
class Mount:
    """A PersistentVolumeClaim, and the folder of the pods in which it is seen."""

    claim: str
    path: str


@dataclasses.dataclass(frozen=True)
class KubernetesRun:
    """A run, as objects are made of it.

    Attributes:
        name: the name of all objects: a DNS label of RFC 1035.
        kind: the kind of the object that owns the pods.
        pods: the number of pods.
        slots: workers in each pod.
        gpus: GPUs of each pod.
        command: the command of each pod.
        script: name and text of the script that travels in a ConfigMap; None: it is in the image.
        run_dir: the run directory, in the pods.
        workdir: the folder in which the script runs; empty: the image's.
        mounts: the claims.
        values: the other values of `--with`.
    """

    name: str
    kind: Kind
    pods: int
    slots: int
    gpus: int
    command: tuple[str, ...]
    script: tuple[str, str] | None
    run_dir: str
    workdir: str
    mounts: tuple[Mount, ...]
    values: Mapping[str, str]

    @property
    def image(self) -> str:
        """The container image."""
        return self.values["image"]

    @property
    def is_kept(self) -> bool:
        """Returns whether the run directory outlives the pods."""
        return any(_is_below(self.run_dir, mount.path) for mount in self.mounts)

    def number(self, name: str, default: int) -> int:
        """Returns a value of `--with` that is a number of 0 or more.

        Raises:
            ConfigurationError: it is none.
        """
        text = self.values.get(name, str(default))
        if not text.isdigit():
            raise ConfigurationError(
                f"`--with {name}=...` must be a number, 0 or more. Received: {text!r}."
            )
        return int(text)

    def quantity(self, name: str, default: str = "") -> str:
        """Returns a value of `--with` that is an amount, as Kubernetes writes it.

        Raises:
            ConfigurationError: it is none.
        """
        text = self.values.get(name, default)
        if text and not _QUANTITY.fullmatch(text):
            raise ConfigurationError(
                f"`--with {name}=...` must be an amount as Kubernetes writes it: 2, 500m, 16Gi."
                f" Received: {text!r}."
            )
        return text

    def pairs(self, name: str, key: str = r"[^=,]+") -> dict[str, str]:
        """Returns a value of `--with` that is written NAME=VALUE,NAME=VALUE, by name.

        Raises:
            ConfigurationError: it is not written so.
        """
        text = self.values.get(name, "")
        # A comma within a value is no end of it.
        parts = re.split(rf",(?={key}=)", text) if text else []
        if wrong := [part for part in parts if not re.match(rf"{key}=", part)]:
            raise ConfigurationError(
                f"`--with {name}=...` is written NAME=VALUE[,NAME=VALUE]. Received: {wrong[0]!r}."
            )
        return dict(part.split("=", 1) for part in parts)

    def variables(self) -> dict[str, str]:
        """Returns the variables that `--with env=` gives the workers."""
        return self.pairs("env", _VARIABLE)


def request_of(wanted: EngineRequest) -> KubernetesRun:
    """Returns what a run asks Kubernetes for.

    Raises:
        ConfigurationError: a value is missing, unknown or wrong, or the script can't travel.
    """
    wanted.check(SETTINGS, "kubernetes")
    values = dict(wanted.values)
    if not values.get("image"):
        raise ConfigurationError(
            "`--on kubernetes` needs an image with Python, syrtos and the script's packages:"
            " `--with image=REGISTRY/NAME:TAG`. docs/kubernetes.md says how to make one."
        )
    pods, slots = _divide_workers(wanted.workers, values.pop("workers-per-pod", "1"))
    kind, mounts = _kind_of(values.pop("kind", "JobSet")), tuple(_mounts(values.pop("claim", "")))
    script, words = _program(wanted, values.pop("script", ""))
    run_dir = _run_dir(wanted.run_dir, mounts)
    many = ("--on", "placed") if pods > 1 else ()
    number = () if wanted.workers else ("-n", str(slots))
    return KubernetesRun(
        name=name_of(values.pop("name", ""), wanted.run_dir.name),
        kind=kind,
        pods=pods,
        slots=slots,
        gpus=wanted.gpus * slots,
        command=("python", "-m", "syrtos", "run", *many, "--run-dir", run_dir, *number, *words),
        script=script,
        run_dir=run_dir,
        workdir=values.pop("workdir", "") or _workdir(script, mounts),
        mounts=mounts,
        values=values,
    )


def sample_of_jobs(values: Mapping[str, str]) -> KubernetesRun:
    """Returns what a job of a service with these values of `--with` asks for, and checks them.

    Raises:
        ConfigurationError: a value is missing, unknown or wrong.
    """
    check_values(values, SETTINGS_OF_JOBS, "syrtos serve --on kubernetes")
    for name in ("image", "claim"):
        if not values.get(name):
            raise ConfigurationError(
                f"`syrtos serve --on kubernetes` needs `--with {name}=...`:"
                f" {SETTINGS_OF_JOBS[name]}. docs/sagemaker.md has an example."
            )
    folder = Path(next(_mounts(values["claim"])).path) / "job"
    sample = NodeRequest(
        job="job", count=1, workers=1, gpus=0, values=values, python="python", folder=folder
    )
    return request_of_nodes(sample, "job", ())


def request_of_nodes(wanted: NodeRequest, name: str, command: tuple[str, ...]) -> KubernetesRun:
    """Returns what a job of `syrtos serve` asks Kubernetes for as nodes: pods that run ``command``.

    Raises:
        ConfigurationError: a value is wrong, or no claim holds the job's folder.
    """
    mounts = tuple(_mounts(wanted.values.get("claim", "")))
    if not any(_is_below(str(wanted.folder), mount.path) for mount in mounts):
        raise ConfigurationError(
            f"The pods must have the job's folder {wanted.folder} at this path, and no claim is"
            " mounted above it. Expected: `--with claim=NAME:/path` with SYRTOS_HOME below /path."
            f" Received: claim={wanted.values.get('claim', '')}."
        )
    return KubernetesRun(
        name=name,
        kind="Job",
        pods=wanted.count,
        slots=wanted.workers,
        gpus=wanted.gpus,
        command=command,
        script=None,
        run_dir=str(wanted.folder),
        workdir=str(wanted.folder),
        mounts=mounts,
        # What the service has written is readable for its user alone.
        values={"user": str(os.getuid()), **wanted.values},
    )


def _kind_of(text: str) -> Kind:
    if text not in get_args(Kind):
        raise ConfigurationError(
            f"`--with kind=...` must be {', '.join(get_args(Kind))}. Received: {text!r}."
        )
    return cast("Kind", text)


def _divide_workers(workers: int | None, text: str) -> tuple[int, int]:
    """Returns the number of pods, and that of the workers in each.

    Raises:
        ConfigurationError: the workers can't be divided.
    """
    if not text.isdigit() or not int(text):
        raise ConfigurationError(
            f"`--with workers-per-pod=...` must be a number, 1 or more. Received: {text!r}."
        )
    slots = int(text)
    if workers is None:
        return 1, slots
    if workers < 1 or workers % slots:
        fits = max(workers // slots, 1) * slots
        raise ConfigurationError(
            f"`-n {workers}` workers can't be divided into pods of {slots}: all pods are alike. Ask"
            f" for {fits} or {fits + slots} workers, or for another number in each pod (`--with"
            " workers-per-pod=...`)."
        )
    return workers // slots, slots


def name_of(asked: str, folder: str) -> str:
    """Returns the name of the objects, which is the same for the same run directory."""
    if asked:
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", asked) or len(asked) > _MOST_LETTERS:
            raise ConfigurationError(
                "`--with name=...` must be small letters, digits and `-`, with a letter first, and"
                f" at most {_MOST_LETTERS}. Received: {asked!r}."
            )
        return asked
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"syrtos-{name}".rstrip("-")
    # Two run directories whose names begin alike must not have one name.
    if len(name) > _MOST_LETTERS:
        name = f"{name[: _MOST_LETTERS - 9].rstrip('-')}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    return name


def _mounts(text: str) -> Iterator[Mount]:
    for part in filter(None, text.split(",")):
        claim, colon, path = part.partition(":")
        if not claim or not colon or not path.startswith("/") or path == "/":
            raise ConfigurationError(
                "`--with claim=...` is written NAME:/path[,NAME:/path], with the name of a"
                f" PersistentVolumeClaim. Received: {part!r}."
            )
        yield Mount(claim, path.rstrip("/"))


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _run_dir(here: Path, mounts: tuple[Mount, ...]) -> str:
    """Returns the run directory in the pods.

    It has the same path where a claim is mounted above it, and else is in the first claim.
    """
    if any(_is_below(str(here), mount.path) for mount in mounts):
        return str(here)
    return f"{mounts[0].path if mounts else SCRATCH}/{here.name}"


def _workdir(script: tuple[str, str] | None, mounts: tuple[Mount, ...]) -> str:
    if script is None:
        return ""
    return mounts[0].path if mounts else SCRATCH


# -- the script ------------------------------------------------------------------------------------


def _program(wanted: EngineRequest, where: str) -> tuple[tuple[str, str] | None, tuple[str, ...]]:
    """Returns the script that travels, or None, and words after `syrtos run` to start it in a pod.

    Raises:
        ConfigurationError: the script can't travel.
    """
    if where not in ("", "image"):
        raise ConfigurationError(f"`--with script=...` can only be `image`. Received: {where!r}.")
    options = wanted.words[: len(wanted.words) - len(wanted.script)]
    if where == "image" or not wanted.script or "-m" in options:
        return None, wanted.words
    program = parse(wanted.script)
    if program.is_module:
        return None, wanted.words
    path = wanted.folder / program.name
    text = _text_of(path, program.name)
    there = f"{SCRIPT_FOLDER}/{path.name}"
    interpreter = ("python", *program.flags) if program.flags else ()
    return (path.name, text), (*options, *interpreter, there, *program.arguments)


def _text_of(path: Path, name: str) -> str:
    """Returns the text of the script.

    Raises:
        ConfigurationError: it can't travel in a ConfigMap.
    """
    in_image = "build it into the image and say `--with script=image`"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The script {name} can't be read here: {error}. If it is in the image, say `--with"
            " script=image`."
        ) from error
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", path.name):
        raise ConfigurationError(
            f"The script {name} travels in a ConfigMap, whose names are letters, digits, `-`, `_`"
            f" and `.`: rename it, or {in_image}."
        )
    if (size := len(text.encode())) > _MOST_BYTES:
        raise ConfigurationError(
            f"The script {name} has {size} bytes, and travels in a ConfigMap, which holds at most"
            f" {_MOST_BYTES}: {in_image}."
        )
    if beside := _imported_beside(text, path):
        raise ConfigurationError(
            f"The script {name} imports {beside}, which stands beside it: only the script itself"
            " travels in a ConfigMap. Build both into the image and say `--with script=image`"
            " (docs/kubernetes.md)."
        )
    return text


def _imported_beside(text: str, path: Path) -> str:
    """Returns the first module that a script imports from its own folder; empty if none."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        # The workers report the error, with its line.
        return ""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in (name.partition(".")[0] for name in names):
            folder = path.parent / name
            if folder.with_suffix(".py").is_file() or (folder / "__init__.py").is_file():
                return name
    return ""
