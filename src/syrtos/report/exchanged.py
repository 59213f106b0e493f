"""The exchange of gradients in a step: bytes by variable, and the buckets in which they travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syrtos.report.read import RunRecord

# Facts about the exchanges of a step, which are written when a `fit` ends.
COUNTS = frozenset(("gradient_bytes", "gradient_sums", "meetings"))
_SHOWN = 200  # variables, the largest first


def describe_exchange(run: RunRecord) -> dict[str, Any]:
    """Returns the variables and buckets of each group of gradients that an optimizer reduces.

    The result also has counts for a step: bytes of gradients, sums and meetings.
    """
    facts = run.facts
    plans = [_plan(plan) for name, plan in sorted(facts.items()) if name.startswith("exchanged ")]
    is_counted = facts.keys() >= COUNTS
    return {
        "gradient_bytes": facts["gradient_bytes"] if is_counted else None,
        "sums": facts.get("gradient_sums"),
        "meetings": facts.get("meetings"),
        "how": _describe_way(facts),
        "plans": plans,
    }


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    variables = plan["variables"]
    bucket_of = {index: number for number, bucket in enumerate(plan["buckets"]) for index in bucket}
    described = [
        {**variable, "bucket": bucket_of.get(index)} for index, variable in enumerate(variables)
    ]
    described.sort(key=lambda variable: -variable["bytes"])
    return {
        "bytes": sum(variable["bytes"] for variable in variables if not variable.get("rows")),
        "count": len(variables),
        "variables": described[:_SHOWN],
        "buckets": [
            {
                "number": number,
                "bytes": sum(variables[i]["bytes"] for i in bucket),
                "variables": len(bucket),
            }
            for number, bucket in enumerate(plan["buckets"])
        ],
    }


def is_hidden(facts: Mapping[str, Any]) -> bool:
    """Returns whether the time of a step's exchanges is not known apart from its computing.

    XLA tells it only where it exchanges by MPI.
    """
    return facts.get("exchange") == "compiled" and "xla" not in facts


def _describe_way(facts: Mapping[str, Any]) -> str:
    """Returns the way in which gradients travel, in words."""
    if facts.get("exchange") == "compiled":
        by = f"by {facts['xla']}, " if "xla" in facts else ""
        return f"XLA exchanges gradients inside of its program, {by}in an order of its own"
    if facts.get("training") == "asynchronous":
        return "each worker sends gradients to the parameter servers"
    if "sync_every" in facts:
        return f"changes of weights are exchanged every {facts['sync_every']} steps"
    codec = facts.get("compress", "none")
    between = (
        f"between {facts['hosts']} hosts by MPI, inside a host through shared memory"
        if "hosts" in facts
        else "through shared memory"
    )
    by = (
        f"by {facts['exchange']}" if str(facts.get("exchange", "")).startswith("torch") else between
    )
    return f"gradients are summed {by}" + (f", as {codec}" if codec != "none" else "")
