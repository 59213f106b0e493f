"""How a state of a script's own metric becomes equal on all workers: read from the source of its `update_state`.

Keras declares every state of a metric to be a sum, which counters and totals are. A state may also be a maximum (`self.worst.assign(ops.maximum(self.worst,
error))`), or a number that each batch sets anew or moves by a rate; added up over workers, these would be another number than one process has.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from syrtos.comm.communicator import Array
from syrtos.keras import state
from syrtos.keras.patching import Method

Rule = Literal["sum", "mean", "max", "min"]

_EXTREMES: dict[str, Rule] = {"maximum": "max", "max": "max", "minimum": "min", "min": "min"}
# Calls and properties that give what they are given.
_CASTS = {"cast", "convert_to_tensor", "identity", "float", "asarray"}
_READS = {"value", "read_value"}

_other_than_sums: weakref.WeakSet[Any] = weakref.WeakSet()


def noting(original: Method) -> Method:
    """Around the method by which a metric makes a state."""

    def add(self: Any, *args: Any, **kwargs: Any) -> Any:
        if rules_of(type(self)):
            _other_than_sums.add(self)
        return original(self, *args, **kwargs)

    return add


def rule_of(variable: Any) -> Rule:
    """How the values of the workers become one, of a variable whose aggregation is a sum.

    Returns:
        ``sum``: what each has added is added; ``mean``: weighted by samples; ``max`` or ``min``: of all.
    """
    for metric in _other_than_sums:
        for name, rule in rules_of(type(metric)).items():
            held = getattr(metric, name, None)
            if hasattr(held, "aggregation") and state.identity(held) == state.identity(variable):
                # whole numbers have no mean
                return rule if rule != "mean" or "float" in state.dtype_name(held) else "sum"
    return "sum"


def in_own_row(value: Array, rank: int, size: int) -> Array:
    """A row for each worker, of which the others' are zeros: the sum over the workers has the values of all.

    Args:
        value: of any shape.
        rank, size: of the workers that add.

    Returns:
        An array of ``(size, *value.shape)``.
    """
    rows = np.zeros((size, *np.shape(value)), np.asarray(value).dtype)
    rows[rank] = value
    return rows


@functools.cache
def rules_of(kind: type) -> dict[str, Rule]:
    """By attribute, the states of a class of metrics that are no sums. Keras's own metrics have none."""
    if kind.__module__.partition(".")[0] in ("keras", "tf_keras"):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(kind, "update_state"))))  # noqa: B009
    except (OSError, TypeError, SyntaxError, AttributeError):
        return {}
    update = _Update(tree)
    found: dict[str, Rule] = {name: update.rule_of(name) for name in update.assigned}
    return {name: rule for name, rule in found.items() if rule != "sum"}


class _Update:
    """The source of an `update_state`.

    Attributes:
        assigned: by attribute of the metric, the values that are assigned to it.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.assigned: dict[str, list[ast.expr]] = {}
        self._added: set[str] = set()
        self._locals: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._note_call(node)
            for name, value in _bound(node):
                self._locals.setdefault(name, []).append(value)

    def _note_call(self, call: ast.Call) -> None:
        if not isinstance(call.func, ast.Attribute):
            return
        name = _attribute(call.func.value)
        if name and call.func.attr == "assign" and call.args:
            self.assigned.setdefault(name, []).append(call.args[0])
        elif name and call.func.attr.startswith(("assign_", "scatter_")):
            self._added.add(name)

    def rule_of(self, name: str) -> Rule:
        """Of what is assigned to an attribute. What can't be told is a sum, as Keras has it."""
        rules: set[Rule] = {self._rule(value, name) for value in self.assigned[name]}
        return rules.pop() if len(rules) == 1 and name not in self._added else "sum"

    def _rule(self, value: ast.expr, name: str) -> Rule:
        value = self._plain(value)
        operands = [self._plain(operand) for operand in _operands(value)]
        if isinstance(value, ast.Call) and _called(value) in _EXTREMES:
            return _EXTREMES[_called(value)] if any(_attribute(o) == name for o in operands) else "sum"
        if not self._may_read(value, name, set()):
            return "mean"  # set anew
        moved = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub)
        scaled = any(isinstance(o, ast.BinOp) and isinstance(o.op, ast.Mult) and self._has(o, name) for o in operands)
        return "mean" if moved and scaled else "sum"

    def _plain(self, value: ast.expr) -> ast.expr:
        """What a name that is bound once stands for, without casts and reads."""
        seen: set[str] = set()
        while True:
            if isinstance(value, ast.Name) and len(self._locals.get(value.id, ())) == 1 and value.id not in seen:
                seen.add(value.id)  # `y = cast(y)` is bound to itself
                value = self._locals[value.id][0]
            elif isinstance(value, ast.Call) and _called(value) in _CASTS and value.args:
                value = value.args[0]
            elif isinstance(value, ast.Call) and _called(value) in _READS and isinstance(value.func, ast.Attribute):
                value = value.func.value
            elif isinstance(value, ast.Attribute) and value.attr in _READS:
                value = value.value
            else:
                return value

    def _has(self, product: ast.expr, name: str) -> bool:
        """Whether a factor of a product is the state."""
        return any(_attribute(self._plain(factor)) == name for factor in _operands(product))

    def _may_read(self, value: ast.expr, name: str, seen: set[str]) -> bool:
        """Whether an expression may depend on the state: methods of the metric may read it."""
        for node in ast.walk(value):
            if _attribute(node) == name or (isinstance(node, ast.Call) and (_attribute(node.func) or _is_super(node))):
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                if any(self._may_read(bound, name, seen) for bound in self._locals.get(node.id, ())):
                    return True
        return False


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement binds, with what they depend on."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr | ast.comprehension):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.iter if isinstance(node, ast.For | ast.comprehension) else node.value
        for name in (found for target in targets for found in ast.walk(target) if isinstance(found, ast.Name)):
            if value is not None:
                yield name.id, value
            if isinstance(node, ast.AugAssign):  # it depends on what it was, too, and is never one value
                yield name.id, name


def _operands(value: ast.expr) -> list[ast.expr]:
    """Of a sum, a product or a call; of a call with one list, its elements."""
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if not isinstance(value, ast.Call):
        return []
    first = value.args[0] if len(value.args) == 1 else None
    if isinstance(first, ast.Call) and _called(first) in ("stack", "concatenate", "concat"):
        return _operands(first)
    return list(first.elts) if isinstance(first, ast.List | ast.Tuple) else list(value.args)


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _attribute(node: ast.AST) -> str:
    """The name of an attribute of `self`; else empty."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if isinstance(node, ast.Attribute) and of_self else ""


def _is_super(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "super"
