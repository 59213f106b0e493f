"""Entropy without a seed: one series for all workers, another for each child that a worker forks."""

from __future__ import annotations

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
