"""The rules by which operations act on parts of tensors, by the names of the operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

# Any: an operation takes and returns values of any kind. A rule that declines returns
# `NotImplemented`.
Rule = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]


class _Table:
    """Rules by names of operations, and those of all operations that match."""

    def __init__(self) -> None:
        self.by_name: dict[str, Rule] = {}
        self.by_match: list[tuple[Callable[[Any], bool], Rule]] = []


_TABLE = _Table()


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: registers a rule for operations.

    ``names``: those of ATen, such as ``view``, of all its overloads, or ``sum.dim_IntList``.
    """

    def register(function: Rule) -> Rule:
        _TABLE.by_name.update(dict.fromkeys(names, function))
        return function

    return register


def rule_where(matches: Callable[[Any], bool]) -> Callable[[Rule], Rule]:
    """Decorator: registers a rule for all operations that match, where they have none by name."""

    def register(function: Rule) -> Rule:
        _TABLE.by_match.append((matches, function))
        return function

    return register


@functools.cache
def rule_for(func: Any) -> Rule | None:
    """Returns the rule of an operation, or None."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != "aten":
        return None
    for key in (f"{name}.{func._overloadname}", name):
        if key in _TABLE.by_name:
            return _TABLE.by_name[key]
    return next((function for matches, function in _TABLE.by_match if matches(func)), None)


# They compute nothing: each element of the result is one of the first, or of the second, argument.
_KEEPING = frozenset(
    [
        "_to_copy",
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "clone",
        "contiguous",
        "copy_",
        "detach",
        "detach_",
        "lift_fresh",
        "new_empty_strided",
        "permute",
        "reshape",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
    ]
)


def keeps_elements(func: Any) -> bool:
    """Returns whether an operation moves elements and computes nothing."""
    return func._schema.name.removeprefix("aten::") in _KEEPING


def is_pointwise(func: Any) -> bool:
    """Returns whether each element of the result comes from one element of each argument."""
    tags, returns = func.tags, func._schema.returns
    is_tensor = len(returns) == 1 and str(returns[0].type) == "Tensor"
    return (
        is_tensor and torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    )


def aliases(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Returns the arguments that an operation writes to, and those that its results are views of."""
    written, viewed = [], []
    for place, parameter in enumerate(func._schema.arguments):
        alias = parameter.alias_info
        if alias is None:
            continue
        value = args[place] if place < len(args) else kwargs.get(parameter.name)
        for one in value if isinstance(value, list | tuple) else [value]:
            (written if alias.is_write else viewed).append(one)
    return written, viewed
