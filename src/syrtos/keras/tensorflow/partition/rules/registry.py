"""The registry of rules, by the types of operations."""

from __future__ import annotations

from collections.abc import Callable

from syrtos.keras.tensorflow.partition.emitter import Rule

# Types of operations, as TensorFlow names them, with the rule of each.
RULES: dict[str, Rule] = {}
# Types whose rule takes partial values; other rules get them reduced.
TAKING_PARTIAL: set[str] = set()


def rule(*types: str, takes_partial: bool = False) -> Callable[[Rule], Rule]:
    """Decorator: registers a rule for types of operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        if takes_partial:
            TAKING_PARTIAL.update(types)
        return function

    return register


def types(text: str) -> tuple[str, ...]:
    """Returns the types of operations that a text names, with spaces between."""
    return tuple(text.split())
