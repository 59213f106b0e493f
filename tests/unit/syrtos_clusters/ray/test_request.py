"""What a run asks Ray for, and what is said when it does not get it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from syrtos.engines.engine import EngineRequest
from syrtos.errors import ConfigurationError, LaunchError
from syrtos_clusters.ray.request import (
    RayRequest,
    free_bundles,
    request_of,
    why_never,
    why_unfit,
    why_waiting,
)


def asked(
    values: Mapping[str, str] | None = None, workers: int | None = 4, gpus: int = 0
) -> RayRequest:
    return request_of(
        EngineRequest(workers, gpus, Path("/run"), (), values or {}, "/python", Path("/here"))
    )


def test_each_worker_has_a_bundle() -> None:
    assert asked().bundle == {"CPU": 1.0}
    assert asked({"cpus-per-worker": "0.5"}, gpus=2).bundle == {"CPU": 0.5, "GPU": 2}
    assert asked({"strategy": "strict-spread"}).strategy == "STRICT_SPREAD"


def test_it_travels_as_json() -> None:
    whole = asked({"address": "10.0.0.1:6379", "wait": "5"}, gpus=1)
    assert RayRequest(**json.loads(json.dumps(dataclasses.asdict(whole)))) == whole


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cpus-per-worker": "0"}, "must be a number above 0. Received: '0'"),
        ({"wait": "long"}, "`--with wait` must be a number above 0. Received: 'long'"),
        ({"strategy": "best"}, "one of PACK, SPREAD, STRICT_SPREAD, STRICT_PACK. Received: 'best'"),
        ({"address": "ray://10.0.0.1:10001"}, "ray job submit --working-dir"),
        ({"adress": "10.0.0.1:6379"}, "Did you mean `address`?"),
    ],
)
def test_values_that_ray_has_not_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        asked(values)
    assert said in str(refused.value)


def test_the_number_of_workers_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="`-n 4`"):
        asked(workers=None)


def test_what_a_run_waits_for() -> None:
    said = why_waiting(asked(gpus=1), {"CPU": 64.0, "GPU": 2.0}, {"CPU": 60.0, "GPU": 2.0}, 2)
    assert said == (
        "4 x 1 CPU and 1 GPU were asked for, and the cluster has 64 CPU and 2 GPU on 2 nodes, of which 60 CPU and 2 GPU free: there are too few GPUs, unless "
        "an autoscaler starts nodes"
    )
    assert why_waiting(asked(), {"CPU": 4.0}, {"CPU": 1.0}, 1).endswith(": others use them")
    spread = why_waiting(asked({"strategy": "STRICT_SPREAD"}), {"CPU": 64.0}, {"CPU": 64.0}, 3)
    assert spread.endswith("there are too few nodes, unless an autoscaler starts nodes")


def test_what_can_be_done_is_said() -> None:
    assert "`--with wait=1200`" in why_never(asked(), "others use them")


def test_workers_take_bundles_that_are_large_enough_from_the_second_on() -> None:
    specs = [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 4.0, "GPU": 1.0}]
    assert free_bundles(asked(workers=2), specs) == [1, 3]
    assert free_bundles(asked(workers=1, gpus=1), specs) == [3]
    with pytest.raises(LaunchError) as refused:
        free_bundles(asked(workers=3), specs)
    assert "of the 4 bundles of the placement group around this process 2 beside the first" in str(
        refused.value
    )
    assert "[{'CPU': 1.0}] * 3)`" in str(refused.value)


def test_what_a_node_lacks() -> None:
    facts = {"has_python": True, "has_folder": True}
    assert why_unfit(asked(), "10.0.0.2", facts) == ""
    said = why_unfit(asked(), "10.0.0.2", {"has_python": False, "has_folder": False})
    assert said.startswith(
        "The node 10.0.0.2 has not the interpreter /python nor the folder /here, which"
    )
