"""The exchange plan in a run's report: which variables' gradients travel, and in which buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from syrtos.comm import world
from syrtos.comm.objects import dtype_of
from syrtos.comm.world import Session
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import NamedVariable

_FACT = "exchanged "
# Of scripts that make one model after another the first plans are enough.
_MOST = 16


class _WrittenPlans:
    """The groups of variables whose plan is written down, by their identities."""

    def __init__(self, session: Session) -> None:
        self.groups: set[tuple[int, ...]] = set()


def tell(
    variables: Sequence[NamedVariable],
    buckets: Callable[[], Sequence[Sequence[int]]],
    rows: Sequence[int] = (),
) -> None:
    """Writes the plan of a group of variables to the ledger, once for each group.

    Args:
        variables: those whose gradients travel.
        buckets: returns for each bucket, in order, the indices of the ``variables`` that travel
            together; none where a compiler decides.
        rows: indices of those variables of which rows travel, as many as a batch has touched.
    """
    group, session = tuple(map(id, variables)), world.current()
    written = session.part(_WrittenPlans).groups
    if group in written:
        return
    written.add(group)
    described = [_describe_variable(each, i in rows) for i, each in enumerate(variables)]
    plan = {"variables": described, "buckets": [list(bucket) for bucket in buckets()]}
    ledger = session.ledger
    names = [name for name in ledger.told if name.startswith(_FACT)]
    if len(names) < _MOST and plan not in [ledger.told[name] for name in names]:
        ledger.say(**{f"{_FACT}{len(names)}": plan})


def _describe_variable(variable: NamedVariable, is_rows: bool) -> dict[str, object]:
    shape = [int(size) for size in variable.shape]
    dtype = state.dtype_name(variable)
    size = math.prod(shape) * dtype_of(dtype).itemsize
    return {
        "name": state.name_of(variable),
        "shape": shape,
        "dtype": dtype,
        "bytes": size,
        **({"rows": True} if is_rows else {}),
    }
