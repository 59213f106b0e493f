"""Ray: workers run on the nodes of a Ray cluster, in places that a placement group reserves."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager

from syrtos import settings
from syrtos.engines.engine import Engine, EngineRequest, ReachableHosts
from syrtos.engines.reservation import NodeRequest, Requester, Reservation
from syrtos.errors import ConfigurationError
from syrtos_clusters.ray.agent_socket import VARIABLE
from syrtos_clusters.ray.cluster_connection import at_door, reach_cluster, reserve_nodes
from syrtos_clusters.ray.request import SETTINGS, check_values_of_jobs, request_of


class Ray(Engine):
    """Runs on clusters of Ray 2."""

    name = "ray"
    settings = SETTINGS

    def reach(self, wanted: EngineRequest) -> AbstractContextManager[ReachableHosts] | None:
        asked = request_of(wanted)
        _require_ray()
        opened = settings.environment().get(VARIABLE)
        return at_door(opened) if opened else reach_cluster(asked, wanted.run_dir)

    def check_jobs(self, values: Mapping[str, str]) -> None:
        _require_ray()
        check_values_of_jobs(values)

    def reserve(
        self, wanted: NodeRequest, requester: Requester
    ) -> AbstractContextManager[Reservation]:
        return reserve_nodes(wanted, requester)


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError("`--on ray` needs the package ray: `pip install 'syrtos[ray]'`.")


ENGINE = Ray()
