"""Scripts of old APIs on workers, and what they mean in one process: the same weights, on all workers.

All on two workers; of half of the groups one case of four on three, since worlds need time; `make test-long` has all on three and on four.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import registry
from table import HERE, ONE_THREAD

import forking

# Groups that have cases on three workers in `make test-slow`.
ON_THREE = ("manual", "strategies")
LEGACY = [group for group in registry.GROUPS if group not in registry.GROUPS_OF_KERAS3]
Trained = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Where the results of a group of cases on some workers are; each is trained once. 0 workers: plain Python."""
    wanted = functools.partial(registry.chosen, request, "test_a_dialect_means_what_it_meant")
    return functools.cache(
        functools.partial(_train, tmp_path_factory.mktemp("dialects"), {}, wanted)
    )


@pytest.fixture(scope="module")
def trained_with_keras_2(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    env = {"TF_USE_LEGACY_KERAS": "1"}
    wanted = functools.partial(registry.chosen, request, "test_also_with_keras_2")
    return functools.cache(
        functools.partial(_train, tmp_path_factory.mktemp("legacy"), env, wanted)
    )


def _train(
    root: Path, env: dict[str, str], wanted: Callable[..., list[str]], group: str, workers: int
) -> Path:
    out = root / str(workers)
    out.mkdir(exist_ok=True)
    names = wanted(group=group, workers=workers) if workers else wanted(group=group)
    script = [HERE / "dialects.py", out, *names]
    command = forking.syrtos_run(out / "run", workers, *script) if workers else script
    done = forking.run(command, {**ONE_THREAD, **env}, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    return out


def _compare(trained: Trained, group: str, name: str, workers: int) -> None:
    one, many = (np.load(trained(group, count) / f"{name}.npz") for count in (0, workers))
    for key in one.files:
        difference = np.linalg.norm(one[key] - many[key]) / np.linalg.norm(one[key])
        assert difference <= registry.TOLERANCE_OF_DIALECTS.get(name, 1e-5), difference


def _cases(
    groups: list[str], *worlds: int, quick: tuple[str, ...] = (), of_two: slice = slice(None)
) -> list[Any]:
    """Group by group, so that those who wait for the same training stand together."""

    def slow(group: str, workers: int) -> slice:
        if workers == 2:
            return of_two
        return slice(0, None, 4) if group in ON_THREE and workers == 3 else slice(0)

    return [
        pytest.param(group, workers, *case.values, marks=case.marks)
        for group in groups
        for workers in worlds
        for case in registry.in_tiers(
            registry.GROUPS[group],
            registry.GROUPS[group] if workers == 2 and group in quick else (),
            registry.GROUPS[group][slow(group, workers)],
        )
    ]


@pytest.mark.needs("tensorflow")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("group", "workers", "name"),
    _cases(list(registry.GROUPS), 2, 3, 4, quick=("manual", "strategies")),
)
def test_a_dialect_means_what_it_meant(
    trained: Trained, group: str, workers: int, name: str
) -> None:
    _compare(trained, group, name, workers)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("group", "workers", "name"), _cases(LEGACY, 2, of_two=slice(0, None, 4)))
def test_also_with_keras_2(
    trained_with_keras_2: Trained, group: str, workers: int, name: str
) -> None:
    _compare(trained_with_keras_2, group, name, workers)
