"""What a plan says of the steps that it splits."""

from __future__ import annotations

from syrtos.keras.split.plan import SplitPlan


def test_draws_that_are_made_once_for_a_batch() -> None:
    plan = SplitPlan(batch_draws=frozenset({(), (8, 30), (4, 2)}), row_draws=frozenset({(2,)}))
    assert plan.draws_once(())
    assert plan.draws_once((8, 30))
    # Draws for rows have this shape where a worker has four of them; all workers decide alike.
    assert not plan.draws_once((4, 2))
    assert not plan.draws_once((5,))
    assert not plan.draws_once(None)
