"""The hosts of a run, by the nodes on which Ray has placed its workers at the moment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from syrtos.launch.spec import Host


@dataclasses.dataclass(frozen=True)
class Spot:
    """The place of a bundle at the moment.

    Attributes:
        node: Ray's name of the node.
        address: the node's IP address.
        gpus: the numbers of the GPUs that Ray has given to the place.
    """

    node: str
    address: str
    gpus: tuple[str, ...] = ()


class Nodes:
    """The names of hosts, and the places that each stands for.

    A host is a node, together with the GPUs there: an agent sees those that its host had when it
    was started. So a node that gets a further GPU for the run is a new host. Its name is the node's
    address, with a number where that name is taken.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, tuple[str, ...]], str] = {}
        self._places: dict[str, tuple[int, ...]] = {}

    def hosts(self, spots: Sequence[Spot | None]) -> tuple[Host, ...]:
        """Returns the hosts, and the number of places on each.

        Args:
            spots: for each place where it is; None: nowhere, as its node was lost and Ray has found
                no other yet.
        """
        found: dict[str, list[int]] = {}
        for place, spot in enumerate(spots):
            if spot is not None:
                found.setdefault(spot.node, []).append(place)
        hosts = []
        for node, places in found.items():
            there = [spot for place in places if (spot := spots[place]) is not None]
            gpus = tuple(gpu for spot in there for gpu in spot.gpus)
            name = self._name(node, there[0].address, gpus)
            self._places[name] = tuple(places)
            hosts.append(Host(name, len(places)))
        return tuple(hosts)

    def places(self, host: str) -> tuple[int, ...]:
        """Returns the places of a host; none if there never was such a host."""
        return self._places.get(host, ())

    def _name(self, node: str, address: str, gpus: tuple[str, ...]) -> str:
        if (node, gpus) not in self._names:
            bare = re.sub(r"[^\w.-]", "-", address).lstrip("-.") or "node"
            taken, number, name = set(self._names.values()), 1, bare
            while name in taken:
                number += 1
                name = f"{bare}-{number}"
            self._names[node, gpus] = name
        return self._names[node, gpus]


def gpus_of(spots: Sequence[Spot]) -> str:
    """Returns the GPUs of places on one node, as CUDA_VISIBLE_DEVICES has them; empty if none."""
    return ",".join(dict.fromkeys(gpu for spot in spots for gpu in spot.gpus))
