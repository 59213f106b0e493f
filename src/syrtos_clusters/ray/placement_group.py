"""Places of a run's workers on a Ray cluster: a placement group with an actor in each bundle."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.engines.reservation import EngineAwayError, Node
from syrtos.errors import LaunchError
from syrtos.launch.spec import Host
from syrtos.launch.terminal import output
from syrtos.settings import environment
from syrtos_clusters.ray.bundle_actor import WorkerPlace
from syrtos_clusters.ray.links import Links
from syrtos_clusters.ray.nodes import Nodes, Spot, gpus_of
from syrtos_clusters.ray.request import RayRequest, free_bundles, why_never, why_unfit, why_waiting

# By their names: type checkers, and tests of what needs no Ray, do without it.
ray: Any = importlib.import_module("ray")
_strategies: Any = importlib.import_module("ray.util.scheduling_strategies")

# seconds that actors have to say where they are: those that are just moved have no time to
_LOOK = 2.0
_START = 50.0  # seconds for an agent to connect; a launcher waits for 60
_QUIET = 5.0  # seconds before it is said what a run waits for
_KNOCK = 10.0  # seconds
# Where Ray notes the cluster of this machine.
_CURRENT = Path("/tmp/ray/ray_current_cluster")
_OF_GPUS = "CUDA_VISIBLE_DEVICES"


class WorkerPlaces:
    """The places of a run.

    Inside of a placement group, such as that of a trial of Ray Tune, it takes bundles of that one;
    else it makes a group of its own, which Ray removes when this process ends.
    """

    def __init__(
        self,
        asked: RayRequest,
        is_over: Callable[[], bool] = lambda: False,
        parcel: bytes = b"",
        tell: Callable[[str], None] = output.say,
    ) -> None:
        """Connects to the cluster, and waits for the places.

        Args:
            asked: the request.
            is_over: whether to give up waiting, as nobody wants them any more.
            parcel: a function that workers are to call, as `syrtos.notebook.parcel` packs it;
                empty: there is none.
            tell: gets a sentence that says what it waits for.

        Raises:
            LaunchError: there is no cluster, it has not what was asked for, or nodes lack what
                workers need.
        """
        self._asked, self._is_over, self._tell = asked, is_over, tell
        self._stack = contextlib.ExitStack()
        self._looking = threading.Lock()
        self._nodes, self._spots = Nodes(), list[Spot | None]()
        self._answers: dict[int, Any] = {}  # of actors that had no time
        try:
            self._connect()
            group, bundles = self._group()
            self._actors = [self._actor(group, bundle) for bundle in bundles]
            self._await_actors()
            self._parcel: Any = ray.put(parcel) if parcel else b""
            self._links = Links(ray.util.get_node_ip_address())
            self._stack.callback(self._links.close)
        except BaseException:
            self.close()
            raise

    # -- getting them ------------------------------------------------------------------------------

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        try:
            # Ray itself tries for minutes where nobody is.
            _knock(self._asked.address)
            ray.init(address=self._asked.address or "auto", logging_level=logging.WARNING)
        except Exception as error:
            # Ray has no kind of error of its own for most reasons.
            raise EngineAwayError(_unreachable(self._asked.address, error)) from error
        self._stack.callback(ray.shutdown)

    def _group(self) -> tuple[Any, Sequence[int]]:
        """Returns a placement group, and its bundles for workers."""
        asked, around = self._asked, ray.util.get_current_placement_group()
        if around is not None:
            return around, free_bundles(asked, around.bundle_specs)
        group = ray.util.placement_group([asked.bundle] * asked.workers, strategy=asked.strategy)
        self._stack.callback(ray.util.remove_placement_group, group)
        began, told = time.monotonic(), ""
        while not group.wait(1.0):
            self._give_up_if_over()
            waited = time.monotonic() - began
            # Ray lists nodes that were lost too.
            nodes = sum(bool(node["Alive"]) for node in ray.nodes())
            why = why_waiting(asked, ray.cluster_resources(), ray.available_resources(), nodes)
            if waited > asked.wait:
                raise LaunchError(why_never(asked, why))
            if waited > _QUIET and why.rpartition(": ")[2] != told:
                told = why.rpartition(": ")[2]
                longest = "" if math.isinf(asked.wait) else f", at most {asked.wait:.0f} s"
                self._tell(f"waits for Ray{longest}: {why}")
        return group, range(asked.workers)

    def _actor(self, group: Any, bundle: int) -> Any:
        strategy = _strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle
        )
        actor = (
            ray.remote(WorkerPlace)
            .options(
                num_cpus=self._asked.cpus,
                num_gpus=self._asked.gpus,
                # It starts again wherever Ray puts its bundle when the node is lost.
                max_restarts=-1,
                scheduling_strategy=strategy,
                name=None,
            )
            .remote()
        )
        self._stack.callback(_kill, actor)
        return actor

    def _await_actors(self) -> None:
        """Waits until all actors are up and checks that workers find on their nodes what they need.

        Raises:
            LaunchError: an actor can't come up, or a node lacks something.
        """
        answers = [self._question(actor) for actor in self._actors]
        deadline = time.monotonic() + self._asked.wait
        while len(ray.wait(answers, num_returns=len(answers), timeout=1.0)[0]) < len(answers):
            self._give_up_if_over()
            if time.monotonic() > deadline:
                raise LaunchError(
                    "Ray has reserved the places, and has not started all processes there in"
                    f" {self._asked.wait:.0f} s: `ray status` and the logs of the nodes"
                    " (/tmp/ray/session_latest/logs) may say why."
                )
        for answer in answers:
            try:
                facts = ray.get(answer)
            except ray.exceptions.RayError as error:
                raise LaunchError(_not_up(error)) from error
            if why := why_unfit(self._asked, facts["address"], facts):
                raise LaunchError(why)
            self._spots.append(_spot(facts))

    def _give_up_if_over(self) -> None:
        if self._is_over():
            raise LaunchError("The run was stopped while it waited for Ray.")

    # -- using them --------------------------------------------------------------------------------

    def hosts(self) -> tuple[Host, ...]:
        """Returns the nodes on which places are at the moment, and how many on each."""
        with self._looking:
            self._look()
            return self._nodes.hosts(self._spots)

    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes on which places are at the moment."""
        with self._looking:
            self._look()
            cpus, found = max(1, int(self._asked.cpus)), list[Node]()
            for host in self._nodes.hosts(self._spots):
                spot = self._spots[self._nodes.places(host.name)[0]]
                assert spot is not None
                found.append(Node(host.name, spot.address, cpus))
            return tuple(found)

    def start(self, host: str, command: Sequence[str]) -> tuple[int, int]:
        """Starts an agent where the places of a host are.

        It returns descriptors of the agent's connection and of its errors.

        Raises:
            LaunchError: the places are not together on one node any more, or no agent comes.
        """
        with self._looking:
            places = self._nodes.places(host)
            self._look()
            spots = [spot for place in places if (spot := self._spots[place]) is not None]
        if not spots or len(spots) < len(places) or len({spot.node for spot in spots}) > 1:
            raise LaunchError(
                "Ray has lost its node, and has found no other that takes all of its workers"
            )
        gpus = gpus_of(spots)
        return self._start(places[0], command, {_OF_GPUS: gpus} if gpus else {})

    def _start(
        self, place: int, command: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[int, int]:
        tickets = [self._links.ticket(), self._links.ticket()]
        started = self._actors[place].start.remote(
            self._links.address,
            self._links.key,
            tickets,
            list(command),
            dict(variables),
            self._parcel,
            self._asked.for_job,
        )
        try:
            ray.get(started, timeout=_START)
        except (ray.exceptions.RayError, OSError) as error:
            raise LaunchError(
                f"Ray could not start an agent there: {_first_line(error)}"
            ) from error
        # Both connections are there: the actor has made them before it started anything.
        descriptors = [self._links.take(ticket, _LOOK) for ticket in tickets]
        if descriptors[0] is None or descriptors[1] is None:
            raise LaunchError(
                "the agent that Ray has started there could not connect to this machine"
            )
        return descriptors[0], descriptors[1]

    def _look(self) -> None:
        """Asks all actors where they are.

        An actor that has no time counts as where it was, as long as its node is there.
        """
        # An actor that had no time at the last look still has that question.
        answers = {
            place: self._answers.pop(place, None) or self._question(actor)
            for place, actor in enumerate(self._actors)
        }
        ready, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=_LOOK)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        spots: list[Spot | None] = [
            spot if spot and spot.node in alive else None for spot in self._spots
        ]
        for place, answer in answers.items():
            if answer not in ready:
                self._answers[place] = answer
                continue
            try:
                spots[place] = _spot(ray.get(answer))
            except ray.exceptions.RayError:
                # The node of the place is lost.
                spots[place] = None
        self._spots = spots

    def _question(self, actor: Any) -> Any:
        return actor.facts.remote(self._asked.python, self._asked.folder)

    def result(self) -> bytes:
        """Returns rank 0's result, pickled; empty if there is none, or its node is lost."""
        return next(
            (
                found
                for found in self._answers_of([actor.result.remote() for actor in self._actors])
                if found
            ),
            b"",
        )

    def epochs(self, run_dir: str) -> dict[str, list[str]]:
        """Returns the lines about ends of epochs that rank 0 has written, by the file's name."""
        found: dict[str, list[str]] = {}
        for told in self._answers_of([actor.epochs.remote(run_dir) for actor in self._actors]):
            found |= {
                name: lines for name, lines in told.items() if len(lines) > len(found.get(name, []))
            }
        return found

    def _answers_of(self, answers: Sequence[Any]) -> Iterator[Any]:
        """Yields the answers of actors that are there."""
        for answer in ray.wait(list(answers), num_returns=len(answers), timeout=_LOOK)[0]:
            with contextlib.suppress(ray.exceptions.RayError):
                yield ray.get(answer)

    def close(self) -> None:
        """Ends the agents, and gives the places back."""
        self._stack.close()


def _spot(facts: Mapping[str, Any]) -> Spot:
    return Spot(facts["node"], facts["address"], tuple(map(str, facts["gpus"])))


def _kill(actor: Any) -> None:
    # The cluster may be gone.
    with contextlib.suppress(Exception):
        ray.kill(actor)


def _knock(address: str | None) -> None:
    """Connects to a cluster's address, and leaves again.

    Raises:
        OSError: nobody is there.
    """
    if not address:
        address = environment().get("RAY_ADDRESS") or (
            _CURRENT.read_text() if _CURRENT.exists() else ""
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()


def _unreachable(address: str | None, error: Exception) -> str:
    where = f"at {address}" if address else "on this machine (RAY_ADDRESS and /tmp/ray name none)"
    said = "" if type(error) is ConnectionError and address is None else f": {_first_line(error)}"
    return (
        f"No Ray cluster was found {where}{said}. Give the command on a node of a cluster (`ray"
        " start --head` starts one of this machine), name it (`--with address=10.0.0.1:6379`), or"
        " submit the command: `ray job submit --working-dir . -- syrtos run --on ray ...`."
    )


def _not_up(error: Exception) -> str:
    text = str(error)
    if "No module named 'syrtos'" in text or "No module named 'ray'" in text:
        return (
            "The interpreter of Ray's nodes has no syrtos. Install it there in the same version,"
            ' or let Ray do it: `ray job submit --runtime-env-json \'{"pip": ["syrtos[ray]"]}\''
            " ...`."
        )
    return f"Ray could not start the processes that take the workers' places: {_last_line(error)}"


def _first_line(error: Exception) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


def _last_line(error: Exception) -> str:
    return (
        [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    )[-1]
