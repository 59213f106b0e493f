"""The table of rules, by the types of operations."""

from __future__ import annotations

from collections.abc import Callable

from syrtos.keras.tensorflow.partition.emitter import Rule


class RuleTable:
    """The rules that are known, by the types of operations as TensorFlow names them."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._taking_partial: set[str] = set()

    def register(self, types: tuple[str, ...], rule: Rule, takes_partial: bool) -> None:
        """Gives types of operations a rule; others than ``takes_partial`` get partial values reduced."""
        self._rules.update(dict.fromkeys(types, rule))
        if takes_partial:
            self._taking_partial.update(types)

    def rule_of(self, type_name: str) -> Rule | None:
        """Returns the rule of a type of operations; None where there is none."""
        return self._rules.get(type_name)

    def takes_partial(self, type_name: str) -> bool:
        """Returns whether the rule of a type takes partial values as they are."""
        return type_name in self._taking_partial


TABLE = RuleTable()


def rule(*types: str, takes_partial: bool = False) -> Callable[[Rule], Rule]:
    """Decorator: registers a rule for types of operations."""

    def register(function: Rule) -> Rule:
        TABLE.register(types, function, takes_partial)
        return function

    return register


def types(text: str) -> tuple[str, ...]:
    """Returns the types of operations that a text names, with spaces between."""
    return tuple(text.split())
