"""Entropy without a seed: one series for all workers, another for each child that a worker forks."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import numpy as np
import pytest

from syrtos import settings
from syrtos.launch import seeds
from syrtos.launch.seeds import _Drawn


def forked(parent: _Drawn) -> _Drawn:
    """What `os.fork` makes of it in the child."""
    parent.about_to_fork()
    child = _Drawn()
    child.line, child._children = parent.line, parent._children
    child.begin_child_series()
    return child


def test_children_draw_other_numbers_and_their_counterparts_on_other_workers_the_same() -> None:
    workers = [_Drawn(), _Drawn()]
    lines = [[forked(worker).line for _ in range(2)] for worker in workers]
    assert lines == [[(1,), (2,)]] * 2
    grandchild = forked(forked(workers[0]))
    assert grandchild.line == (3, 1)


def names_of_worker(monkeypatch: pytest.MonkeyPatch, run_dir: str, rank: int | None) -> list[str]:
    drawn = _Drawn()
    drawn.rank = rank
    monkeypatch.setattr(seeds, "_drawn", drawn)
    draw = seeds._common_to_script(uuid.uuid4, run_dir)
    return [str(draw()) for _ in range(3)]


def test_names_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "common_seed", lambda: 7)
    names = names_of_worker(monkeypatch, "runs/a", None)
    assert names == names_of_worker(monkeypatch, "runs/a", None)
    assert len({*names, *names_of_worker(monkeypatch, "runs/b", None)}) == 6
    assert all(uuid.UUID(name).version == 4 for name in names)


def test_workers_that_draw_apart_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "common_seed", lambda: 7)
    drawn = [names_of_worker(monkeypatch, "runs/a", rank) for rank in (0, 1)]
    assert len(set(itertools.chain(*drawn))) == 6


def test_a_package_draws_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "common_seed", lambda: 7)
    monkeypatch.setattr(seeds, "_OTHERS", (str(Path(__file__).parent),))
    names = names_of_worker(monkeypatch, "runs/a", None)
    assert not {*names} & {*names_of_worker(monkeypatch, "runs/a", None)}


def test_seeds_are_compared_by_their_numbers() -> None:
    seeds_of_scripts = ([3], ([1, 2], {"seed": "a"}), [np.arange(200)], (None,), [b"x"])
    texts = [seeds._text_of(seed) for seed in seeds_of_scripts]
    assert all(texts)
    assert len(set(texts)) == len(texts)
    assert seeds._text_of([np.random.default_rng(0)]) == ""
