"""What the states of a script's own metric are, read from the source of its `update_state`.

A rule is found where the source proves it. What it does not prove is unknown, never guessed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

Rule = Literal["sum", "mean", "max", "min", "same", "unknown"]

# Of elements, or of two arrays element by element.
_EXTREMES: Mapping[str, Rule] = {
    **dict.fromkeys(("max", "amax", "reduce_max", "maximum", "fmax"), "max"),
    **dict.fromkeys(("min", "amin", "reduce_min", "minimum", "fmin"), "min"),
}
_BY_ELEMENT = ("maximum", "fmax", "minimum", "fmin")
_MEANS = ("mean", "reduce_mean")
# Calls and properties that give what they are given.
_CASTS = ("cast", "convert_to_tensor", "identity", "float", "asarray")
_READS = ("value", "read_value")
_LISTS = ("stack", "concatenate", "concat")
_ALL = "*"  # among the attributes that something may read: any of them


def rules_of(kind: type) -> Mapping[str, Rule]:
    """By attribute, what the states are that a class of metrics assigns.

    Returns:
        ``sum``: what each batch adds; ``max``, ``min``: of all rows; ``mean``: of the rows of a batch, or an average of such means that moves;
        ``same``: follows from other states alone. Empty for metrics of Keras, and for classes without source.
    """
    return _rules_of(kind, kind)


@functools.cache
def _rules_of(kind: type, beyond: type) -> Mapping[str, Rule]:
    """Of the `update_state` of the first class in the order of ``kind``, from ``beyond`` on."""
    order = kind.__mro__[kind.__mro__.index(beyond) :]
    owner = next((base for base in order if "update_state" in vars(base)), None)
    tree = _parsed(vars(owner)["update_state"]) if owner else None
    if owner is None or tree is None or owner.__module__.partition(".")[0] in ("keras", "tf_keras"):
        return {}
    update = _Update(kind, tree)
    found: dict[str, Rule] = {name: update.rule_of(name) for name in {*update.assigned, *update.added}}
    if not update.calls_super:
        return found
    inherited = _rules_of(kind, order[order.index(owner) + 1])
    twice: dict[str, Rule] = {name: "unknown" for name in found if inherited.get(name, found[name]) != found[name]}
    return {**inherited, **found, **twice}


class _Update:
    """The source of an `update_state`.

    Attributes:
        assigned: by attribute of the metric, the values that are assigned to it.
        added: attributes that are added to.
        calls_super: whether it calls that of another class.
    """

    def __init__(self, kind: type, tree: ast.FunctionDef) -> None:
        self._reads = _Reads(kind, tree)
        self.assigned: dict[str, list[ast.expr]] = {}
        self.added: set[str] = set()
        self.calls_super = any(isinstance(node, ast.Call) and _called(node) == "super" for node in ast.walk(tree))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            self._note(call)

    def _note(self, call: ast.Call) -> None:
        if not isinstance(call.func, ast.Attribute):
            return
        name, values = self._state(call.func.value), [*call.args, *(keyword.value for keyword in call.keywords)]
        if name and call.func.attr == "assign" and values:
            self.assigned.setdefault(name, []).append(values[0])
        elif name and call.func.attr.startswith(("assign_", "scatter_")):
            self.added.add(name)

    def rule_of(self, name: str) -> Rule:
        """Of all that is assigned to an attribute."""
        rules: set[Rule] = {self._rule(value, name) for value in self.assigned.get(name, ())}
        rules |= {"sum"} if name in self.added else set()
        rule: Rule = rules.pop() if len(rules) == 1 else "unknown"
        helped = self._reads.by_methods & {name, _ALL}  # a method may assign it too
        return "unknown" if helped and rule != "sum" else rule

    def _rule(self, value: ast.expr, name: str) -> Rule:
        if self._is_added_to(value, name):
            return "sum"
        for kind in ("max", "min"):
            if self._may_read(value, name) and self._is_extreme(value, name, kind):
                return kind
        if self._is_moved(value, name):
            return "mean"
        if self._may_read(value, name):
            return "unknown"
        if self._is_mean(value):
            return "mean"
        return "unknown" if self._reads.data(value) else "same"

    def _is_added_to(self, value: ast.expr, name: str) -> bool:
        value = self._plain(value)
        if self._state(value) == name:
            return True
        parts, sign = _operands(value), _operator(value)
        if len(parts) != 2 or sign not in ("Add", "Sub", "add", "subtract"):
            return False
        orders = [parts, parts[::-1]] if sign in ("Add", "add") else [parts]
        return any(self._is_added_to(one, name) and not self._may_read(other, name) for one, other in orders)

    def _is_extreme(self, value: ast.expr, name: str, kind: str) -> bool:
        """Whether it is the extreme of rows and of the state, or of one of them."""
        value = self._plain(value)
        if self._state(value) == name or isinstance(value, ast.Constant):
            return True
        if not isinstance(value, ast.Call) or _EXTREMES.get(_called(value)) != kind:
            return False
        parts = _operands(value)
        if _called(value) in _BY_ELEMENT or len(parts) > 1 or self._may_read(value, name):
            return bool(parts) and all(self._is_extreme(part, name, kind) for part in parts)
        return True

    def _is_moved(self, value: ast.expr, name: str) -> bool:
        """`a * state + b * mean`, or `state + b * (mean - state)`."""
        value = self._plain(value)
        parts = [self._plain(part) for part in _operands(value)]
        if len(parts) != 2 or _operator(value) not in ("Add", "Sub", "add", "subtract"):
            return False
        for one, other in (parts, parts[::-1]):
            scaled = self._state(one) == name or self._is_scaled(one, lambda part: self._state(part) == name)
            moved = self._is_mean(other) or self._is_scaled(other, lambda part: self._is_distance(part, name))
            if scaled and moved:
                return True
        return False

    def _is_distance(self, value: ast.expr, name: str) -> bool:
        """`mean - state` or `state - mean`."""
        parts = [self._plain(part) for part in _operands(value)]
        states = [self._state(part) == name for part in parts]
        means = [self._is_mean(part) for part in parts]
        return _operator(value) in ("Sub", "subtract") and sorted(zip(states, means, strict=True)) == [
            (False, True),
            (True, False),
        ]

    def _is_scaled(self, value: ast.expr, which: Any) -> bool:
        """Whether it is a product of something with numbers that are no data."""
        value = self._plain(value)
        if which(value):
            return True
        parts, sign = _operands(value), _operator(value)
        if len(parts) != 2 or sign not in ("Mult", "Div", "multiply", "divide"):
            return False
        orders = [parts, parts[::-1]] if sign in ("Mult", "multiply") else [parts]
        return any(self._is_scaled(one, which) and self._is_number(other) for one, other in orders)

    def _is_mean(self, value: ast.expr) -> bool:
        """Whether it is a mean of rows, or one of these scaled and shifted by numbers."""
        value = self._plain(value)
        if isinstance(value, ast.Call) and _called(value) in _MEANS:
            return not self._states_in(value)
        parts = _operands(value)
        if len(parts) == 2 and _operator(value) in ("Add", "Sub", "add", "subtract"):
            means = [self._is_mean(part) for part in parts]
            return any(means) and all(m or self._is_number(p) for m, p in zip(means, parts, strict=True))
        return bool(parts) and self._is_scaled(value, lambda part: part is not value and self._is_mean(part))

    def _is_number(self, value: ast.expr) -> bool:
        """Whether it is equal on all workers: neither data nor a state."""
        return not self._reads.data(value) and not self._states_in(value)

    def _states_in(self, value: ast.AST) -> bool:
        return bool(self._reads.attributes(value) & {*self.assigned, *self.added, _ALL})

    def _may_read(self, value: ast.AST, name: str) -> bool:
        return bool(self._reads.attributes(value) & {name, _ALL})

    def _state(self, value: ast.AST) -> str:
        """The name of the attribute of the metric that a value is, without casts; else empty."""
        return self._reads.attribute(self._plain(value)) if isinstance(value, ast.expr) else ""

    def _plain(self, value: ast.expr) -> ast.expr:
        """What a name that is bound once stands for, without casts and reads."""
        seen: set[str] = set()
        while True:
            bound = self._reads.bound.get(value.id, ()) if isinstance(value, ast.Name) else ()
            if isinstance(value, ast.Name) and len(bound) == 1 and value.id not in seen:
                seen.add(value.id)  # `y = cast(y)` is bound to itself
                value = bound[0]
            elif isinstance(value, ast.Call) and _called(value) in _CASTS and value.args:
                value = value.args[0]
            elif isinstance(value, ast.Call) and _called(value) in _READS and isinstance(value.func, ast.Attribute):
                value = value.func.value
            elif isinstance(value, ast.Attribute) and value.attr in _READS:
                value = value.value
            else:
                return value


class _Reads:
    """What expressions of a method may read, through local names, other methods and properties.

    Attributes:
        bound: by local name, the values that it is bound to.
        by_methods: attributes that the methods which it calls mention.
    """

    def __init__(self, kind: type, tree: ast.FunctionDef, seen: frozenset[str] = frozenset()) -> None:
        self._kind, self._seen = kind, seen | {tree.name}
        parameters = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
        extra = [one for one in (tree.args.vararg, tree.args.kwarg) if one]
        self._me = parameters[0].arg if parameters else ""
        self._data = {one.arg for one in [*parameters[1:], *extra]}
        self.bound: dict[str, list[ast.expr]] = {}
        self._functions: dict[str, ast.FunctionDef] = {}  # that it defines
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node is not tree:
                self._functions[node.name] = node
            for name, value in _bound(node):
                self.bound.setdefault(name, []).append(value)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.by_methods = set[str]().union(*(self._of_method(call) for call in calls))
        if any(isinstance(node, ast.Name) and node.id == self._me for call in calls for node in call.args):
            self.by_methods.add(_ALL)  # a function that gets the metric may do anything with it

    def attribute(self, node: ast.AST) -> str:
        """The attribute of the metric that a node is; else empty."""
        mine = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self._me
        return node.attr if isinstance(node, ast.Attribute) and mine else ""

    def attributes(self, value: ast.AST, seen: frozenset[str] = frozenset()) -> set[str]:
        """The attributes of the metric that a value depends on."""
        found: set[str] = set()
        whole = {id(node.value) for node in ast.walk(value) if isinstance(node, ast.Attribute)}
        for node in ast.walk(value):
            name = self.attribute(node)
            if name:
                found |= {name} | self._of_property(name)
            if isinstance(node, ast.Call):
                found |= self._of_method(node)
            if isinstance(node, ast.Name) and node.id == self._me and id(node) not in whole:
                found.add(_ALL)
            if isinstance(node, ast.Name) and node.id not in seen:
                for bound in self._behind(node.id):
                    found |= self.attributes(bound, seen | {node.id})
        return found

    def data(self, value: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value may depend on the rows of a batch."""
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id not in seen:
                behind = self._behind(node.id)
                if node.id in self._data or any(self.data(one, seen | {node.id}) for one in behind):
                    return True
        return False

    def _behind(self, name: str) -> Sequence[ast.AST]:
        """What a local name is bound to, or the statements of a function that is defined inside."""
        function = self._functions.get(name)
        return [*self.bound.get(name, ()), *(function.body if function else ())]

    def _of_method(self, call: ast.Call) -> set[str]:
        name = self.attribute(call.func)
        if not name:
            return {_ALL} if _called(call) == "super" and isinstance(call.func, ast.Name) else set()
        function = inspect.getattr_static(self._kind, name, None)
        return (
            set() if function is None else self._of_source(name, function)
        )  # else a function or a layer that it holds

    def _of_property(self, name: str) -> set[str]:
        found = inspect.getattr_static(self._kind, name, None)
        return self._of_source(name, found.fget) if isinstance(found, property) else set()

    def _of_source(self, name: str, function: Any) -> set[str]:
        """The attributes that a method mentions, and those that it calls."""
        tree = None if name in self._seen else _parsed(function)
        if tree is None:
            return set() if name in self._seen else {_ALL}
        reads = _Reads(self._kind, tree, self._seen)
        return set[str]().union(*(reads.attributes(statement) for statement in tree.body))


@functools.cache
def _parsed(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(function, "__func__", function))))
    except (OSError, TypeError, SyntaxError):
        return None
    found = tree.body[0]
    return found if isinstance(found, ast.FunctionDef) else None


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement binds, with what they depend on."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr | ast.comprehension):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.iter if isinstance(node, ast.For | ast.comprehension) else node.value
        one = value is not None and not isinstance(node, ast.For | ast.comprehension | ast.AugAssign)
        for target in targets:
            for name in (found for found in ast.walk(target) if isinstance(found, ast.Name)):
                if value is not None:
                    yield name.id, value
                if not one or target is not name:  # one of several values, or one after another: never one value
                    yield name.id, name


def _operands(value: ast.expr) -> Sequence[ast.expr]:
    """Of a sum, a product or a call; of a call with one list, its elements."""
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if not isinstance(value, ast.Call):
        return []
    keywords = [keyword.value for keyword in value.keywords if keyword.arg in ("x1", "x2", "x", "y", "a", "b")]
    given = [*value.args[:2], *keywords] if _called(value) in _BY_ELEMENT else [*value.args[:1], *keywords]
    if _called(value) in ("add", "subtract", "multiply", "divide") or isinstance(value.func, ast.Name):
        given = [*value.args, *keywords]
    first = given[0] if len(given) == 1 else None
    if isinstance(first, ast.Call) and _called(first) in _LISTS and first.args:
        first = first.args[0]
    return list(first.elts) if isinstance(first, ast.List | ast.Tuple) else given


def _operator(value: ast.expr) -> str:
    """The name of the operator of a sum or product, or of the function that is called."""
    return type(value.op).__name__ if isinstance(value, ast.BinOp) else _called(value)


def _called(value: ast.AST) -> str:
    """The last part of the name of what is called."""
    function = value.func if isinstance(value, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
