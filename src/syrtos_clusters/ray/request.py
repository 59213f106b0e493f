"""A run's request to Ray, made from the command line; sentences about one that is not fulfilled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.engines.engine import EngineRequest, check_values
from syrtos.engines.reservation import NodeRequest
from syrtos.errors import ConfigurationError, LaunchError

STRATEGIES = ("PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK")
_WAIT = 600.0  # seconds: an autoscaler needs minutes for a node
SETTINGS = {
    "address": (
        "the cluster, as `ray.init(address=...)` has it (default: RAY_ADDRESS, else the cluster of"
        " this machine)"
    ),
    "cpus-per-worker": "CPUs of each worker, as Ray counts them (default: 1)",
    "strategy": f"how workers are placed on nodes: {', '.join(STRATEGIES)} (default: PACK)",
    "wait": (
        "seconds to wait for nodes that are busy, or that an autoscaler has to start (default:"
        f" {_WAIT:.0f})"
    ),
}


@dataclasses.dataclass(frozen=True)
class RayRequest:
    """A request for places of workers.

    Attributes:
        workers: the number of workers.
        cpus: CPUs of each.
        gpus: GPUs of each.
        strategy: one of Ray's strategies for placement groups.
        address: the cluster's address; None: RAY_ADDRESS, or the cluster of this machine.
        wait: seconds to wait for the places; infinite: until they are there.
        python: the interpreter that agents and workers run.
        folder: the folder in which workers begin.
        for_job: whether a job of `syrtos serve` asks, whose processes get nothing of the raylet's
            environment but what is known to be harmless.
    """

    workers: int
    cpus: float
    gpus: float
    strategy: str
    address: str | None
    wait: float
    python: str
    folder: str
    for_job: bool = False

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one worker, in the form of Ray's bundles."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    def __str__(self) -> str:
        each = " and ".join(f"{_number(count)} {name}" for name, count in self.bundle.items())
        return f"{self.workers} x {each}" + f" ({self.strategy})" * (self.strategy != "PACK")


def request_of(wanted: EngineRequest) -> RayRequest:
    """Returns the request of a command line.

    Raises:
        ConfigurationError: the number of workers is missing, or a value is none that Ray has.
    """
    wanted.check(SETTINGS, "ray")
    if wanted.workers is None:
        raise ConfigurationError(
            "`--on ray` needs the number of workers, for which Ray is asked for places: `-n 4`."
        )
    values = wanted.values
    return RayRequest(
        workers=wanted.workers,
        cpus=_positive("cpus-per-worker", values.get("cpus-per-worker", "1")),
        gpus=wanted.gpus,
        strategy=_strategy(values.get("strategy", "PACK")),
        address=_address(values.get("address")),
        wait=_positive("wait", values.get("wait", str(_WAIT))),
        python=wanted.python,
        folder=str(wanted.folder),
    )


def check_values_of_jobs(values: Mapping[str, str]) -> None:
    """Refuses values of `syrtos serve --with` that mean nothing.

    Raises:
        ConfigurationError: there is one.
    """
    check_values(
        values, {name: text for name, text in SETTINGS.items() if name != "strategy"}, "ray"
    )
    request_of_nodes(NodeRequest("", 1, 1, 0, values, "", Path()))


def request_of_nodes(wanted: NodeRequest) -> RayRequest:
    """Returns the request of a job of a service: a place on each of so many nodes.

    Raises:
        ConfigurationError: a value is none that Ray has.
    """
    values = wanted.values
    return RayRequest(
        workers=wanted.count,
        cpus=wanted.workers * _positive("cpus-per-worker", values.get("cpus-per-worker", "1")),
        gpus=wanted.gpus,
        strategy="STRICT_SPREAD",
        address=_address(values.get("address")),
        # jobs wait in Ray's queue, until their own time is over
        wait=_positive("wait", values["wait"]) if "wait" in values else math.inf,
        python=wanted.python,
        folder=str(wanted.folder),
        for_job=True,
    )


def _positive(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e9:
        raise ConfigurationError(f"`--with {name}` must be a number above 0. Received: {text!r}.")
    return number


def _strategy(text: str) -> str:
    found = text.upper().replace("-", "_")
    if found not in STRATEGIES:
        raise ConfigurationError(
            f"`--with strategy` must be one of {', '.join(STRATEGIES)}. Received: {text!r}."
        )
    return found


def _address(text: str | None) -> str | None:
    """Returns an address at which a node of the cluster is reached.

    Raises:
        ConfigurationError: it is one of Ray Client, or of Ray Jobs.
    """
    if text and text.startswith(("ray://", "http://", "https://")):
        raise ConfigurationError(
            f"`--with address={text}` is an address for clients outside of the cluster, and the"
            " launcher of a run must be on one of its nodes: agents connect to it. Give the"
            " command on a node, or submit it: `ray job submit --working-dir . -- syrtos run --on"
            " ray ...`."
        )
    return text or None


def free_bundles(asked: RayRequest, specs: Sequence[Mapping[str, float]]) -> list[int]:
    """Returns bundles that take a worker each.

    Raises:
        LaunchError: there are too few.
    """
    # The first bundle of a group is that of the process which has asked for the group.
    fitting = [
        number
        for number, spec in enumerate(specs)
        if number and all(spec.get(name, 0.0) >= count for name, count in asked.bundle.items())
    ]
    if len(fitting) < asked.workers:
        raise LaunchError(_why_no_bundles(asked, len(specs), len(fitting)))
    return fitting[: asked.workers]


# -- sentences -----------------------------------------------------------------------------------


def why_waiting(
    asked: RayRequest, has: Mapping[str, float], free: Mapping[str, float], nodes: int
) -> str:
    """Returns why there are no places yet, with what the cluster has.

    Args:
        asked: the request.
        has: the resources of all nodes, as `ray.cluster_resources` returns them.
        free: those that nothing has taken.
        nodes: the number of nodes.
    """
    nodes_text = f"{nodes} node{'s' * (nodes != 1)}"
    all_of_them, unused = _format_resources(asked, has), _format_resources(asked, free)
    said = (
        f"{asked} were asked for, and the cluster has {all_of_them} on {nodes_text}, of which"
        f" {unused} free"
    )
    missing = [
        name for name, count in asked.bundle.items() if count * asked.workers > has.get(name, 0.0)
    ]
    spread = asked.strategy == "STRICT_SPREAD" and nodes < asked.workers
    if not missing and not spread:
        return f"{said}: others use them"
    lacks = "nodes" if spread and not missing else " and ".join(f"{name}s" for name in missing)
    return f"{said}: there are too few {lacks}, unless an autoscaler starts nodes"


def why_never(asked: RayRequest, waiting: str) -> str:
    """Returns why a run got no places in time, and what to do; ``waiting`` is why it has waited."""
    if asked.for_job:
        return (
            f"Ray has found no nodes for the job's {asked.workers} instances in {asked.wait:.0f} s:"
            f" {waiting}."
        )
    return (
        f"Ray has found no places for {asked.workers} workers in {asked.wait:.0f} s: {waiting}. Ask"
        " for less (`-n`, `--with cpus-per-worker=0.5`), start nodes, or wait longer (`--with"
        f" wait={2 * asked.wait:.0f}`); `ray status` shows who uses what."
    )


def _why_no_bundles(asked: RayRequest, bundles: int, fitting: int) -> str:
    """Returns why an existing placement group does not take the workers, and what to do.

    Args:
        asked: the request.
        bundles: the number of its bundles.
        fitting: those that take a worker; the first does not count.
    """
    return (
        f"{asked} were asked for, and of the {bundles} bundles of the placement group around this"
        f" process {fitting} beside the first take such a worker. Ask for one for each, as in"
        f" `tune.PlacementGroupFactory([{{'CPU': 1}}] + [{asked.bundle}] * {asked.workers})`."
    )


def why_unfit(asked: RayRequest, address: str, facts: Mapping[str, Any]) -> str:
    """Returns what a node lacks that a run needs there; empty if it has all."""
    lacks = [
        *([] if facts["has_python"] else [f"the interpreter {asked.python}"]),
        *([] if facts["has_folder"] else [f"the folder {asked.folder}"]),
    ]
    if not lacks:
        return ""
    if asked.for_job:
        return (
            f"The node {address} has not {' nor '.join(lacks)}, which jobs of the service need at"
            " the same path on every node. Share them between the nodes."
        )
    return (
        f"The node {address} has not {' nor '.join(lacks)}, which workers need at the same path on"
        " every node. Share them between the nodes, or let Ray bring them: `ray job submit"
        " --working-dir . -- syrtos run --on ray ...`."
    )


def _format_resources(asked: RayRequest, resources: Mapping[str, float]) -> str:
    return " and ".join(f"{_number(resources.get(name, 0.0))} {name}" for name in asked.bundle)


def _number(count: float) -> str:
    return f"{count:g}"
