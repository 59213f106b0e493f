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
# Whose rows are made of the same rows of what they are given.
_ELEMENTWISE = frozenset(
    {
        *_CASTS, "abs", "absolute", "add", "clip", "clip_by_value", "divide", "divide_no_nan", "equal", "exp", "expand_dims", "greater", "less", "log",
        "log1p", "maximum", "minimum", "multiply", "negative", "not_equal", "pow", "power", "relu", "sigmoid", "sign", "sqrt", "square", "squared_difference",
        "subtract", "tanh", "where", "float32", "is_nan", "isnan", "isfinite", "logical_and", "logical_not", "logical_or",
    }
)  # fmt: skip
_REDUCING = frozenset(
    {*_MEANS, *_EXTREMES, "sum", "reduce_sum", "norm", "argmax", "argmin", "any", "all"} - {*_BY_ELEMENT}
)
_OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_LISTS = ("stack", "concatenate", "concat")
_ALL = "*"  # among the attributes that something may read: any of them


def rules_of(kind: type) -> Mapping[str, Rule]:
    """By attribute, what the states are that a class of metrics assigns.

    Returns:
        ``sum``: what rows add; ``max``, ``min``: of all rows; ``mean``: of the rows of a batch, a sum of such means, or an average that moves;
        ``same``: counts batches, or follows from other states alone. Empty for metrics of Keras, and for classes without source.
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
    found: dict[str, Rule] = {name: update.rule_of(name) for name in update.states}
    if not update.calls_super:
        return found
    inherited = _rules_of(kind, order[order.index(owner) + 1])
    twice: dict[str, Rule] = {name: "unknown" for name in found if inherited.get(name, found[name]) != found[name]}
    return {**inherited, **found, **twice}


class _Update:
    """The source of an `update_state`.

    Attributes:
        assigned: by attribute of the metric, the values that are assigned to it; what is added to it, as a sum with it.
        calls_super: whether it calls that of another class.
    """

    def __init__(self, kind: type, tree: ast.FunctionDef) -> None:
        self._kind, self._reads = kind, _Reads(kind, tree)
        self.assigned: dict[str, list[ast.expr]] = {}
        self._sometimes: set[str] = set()  # assigned in a loop, or where data says so
        self._added: set[str] = set()
        self.calls_super = any(isinstance(node, ast.Call) and _called(node) == "super" for node in ast.walk(tree))
        depending = [node for node in ast.walk(tree) if node is not tree and self._depends_on_data(node)]
        inside = {id(call) for node in depending for call in ast.walk(node)}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            self._note(call, id(call) in inside)

    def _depends_on_data(self, node: ast.AST) -> bool:
        """Whether workers may run what is inside at different times, or more than once."""
        if isinstance(node, ast.If | ast.IfExp):
            return self._reads.data(node.test)
        return isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.Lambda | ast.comprehension)

    def _note(self, call: ast.Call, sometimes: bool) -> None:
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        name, values = self._state(target), [*call.args, *(keyword.value for keyword in call.keywords)]
        if target is None or not name or not values:
            return
        sign = {"assign_add": ast.Add(), "assign_sub": ast.Sub()}.get(_called(call))
        if _called(call) == "assign" or sign:
            value = ast.BinOp(target, sign, values[0]) if sign else values[0]
            self.assigned.setdefault(name, []).append(value)
            self._sometimes |= {name} if sometimes else set()
        elif _called(call).startswith("scatter_"):
            self._added.add(name)

    @property
    def states(self) -> set[str]:
        """The attributes that it assigns."""
        return {*self.assigned, *self._added}

    def rule_of(self, name: str) -> Rule:
        """Of all that is assigned to an attribute."""
        rules: set[Rule] = {self._rule(value, name) for value in self.assigned.get(name, ())}
        rules |= {"sum"} if name in self._added else set()
        rule: Rule = rules.pop() if len(rules) == 1 else "unknown"
        if name in self._sometimes and rule in ("mean", "same"):
            # what is added in a loop, or by a condition, is counted row by row
            return "sum" if all(self._is_added_to(value, name) for value in self.assigned[name]) else "unknown"
        helped = self._reads.by_methods & {name, _ALL}  # a method may assign it too
        return "unknown" if helped and rule != "sum" else rule

    def _rule(self, value: ast.expr, name: str) -> Rule:
        if self._is_moved(value, name):
            return "mean"
        if self._is_added_to(value, name):
            return self._rule_of_sum(value, name)
        for kind in ("max", "min"):
            if self._may_read(value, name) and self._is_extreme(value, name, kind):
                return kind
        if self._may_read(value, name):
            return "unknown"
        if self._is_mean(value):
            return "mean"
        return "unknown" if self._reads.data(value) else "same"

    def _rule_of_sum(self, value: ast.expr, name: str) -> Rule:
        """Of a state to which something is added: a number in each batch, a mean of its rows, or more for more rows."""
        value = self._plain(value)
        parts = [part for part in map(self._plain, _operands(value)) if self._state(part) != name]
        if len(parts) != 1 or self._is_added_to(parts[0], name):
            return "sum"
        added = parts[0]
        if self._is_mean(added):
            return "mean"
        if not self._reads.data(added) and not self._reads.attributes(added) & {_ALL}:
            return "same"
        return "unknown" if _called(added) in _EXTREMES else "sum"

    def _is_added_to(self, value: ast.expr, name: str) -> bool:
        value = self._plain(value)
        if self._state(value) == name:
            return True
        orders = _orders(value, "add", "subtract")
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
        return self._is_over_rows(value)

    def _is_over_rows(self, call: ast.Call) -> bool:
        """Whether a reduction is one of all rows of a batch, each by itself."""
        method = isinstance(call.func, ast.Attribute) and not call.args and self._reads.data(call.func.value)
        reduced = call.func.value if method and isinstance(call.func, ast.Attribute) else next(iter(call.args), None)
        return reduced is not None and _axes(call, not method) in (None, 0) and self._is_by_row(reduced)

    def _is_by_row(self, value: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Whether each row of a value depends on the same row of the data alone, or the value on no data."""
        if isinstance(value, ast.Name):
            bound = () if value.id in seen else self._reads.behind(value.id)
            return all(self._is_by_row(one, seen | {value.id}) for one in bound)
        if not self._reads.data(value):
            return self._is_number(value)
        if isinstance(value, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Constant):
            return all(self._is_by_row(part, seen) for part in _children(value))
        if isinstance(value, ast.Subscript):
            first = value.slice.elts[0] if isinstance(value.slice, ast.Tuple) else value.slice
            whole = isinstance(first, ast.Slice) and not (first.lower or first.upper or first.step)
            return (whole or _is_ellipsis(first)) and self._is_by_row(value.value, seen)
        if not isinstance(value, ast.Call):
            return False
        parts = [*value.args, *(keyword.value for keyword in value.keywords)]
        method = self._reads.attribute(value.func)
        if method:
            key = f".{method}"  # which no local name is
            known = key not in seen and self._method_is_by_row(method, seen | {key})
            return known and all(self._is_by_row(part, seen) for part in parts)
        in_rows = _called(value) in _REDUCING and isinstance(_axes(value), int) and _axes(value) != 0
        return (in_rows or _called(value) in _ELEMENTWISE) and all(self._is_by_row(part, seen) for part in parts)

    def _method_is_by_row(self, name: str, seen: frozenset[str]) -> bool:
        tree = _parsed(inspect.getattr_static(self._kind, name, None))
        returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)] if tree else []
        if tree is None or not returned:
            return False
        inner = _Update(self._kind, tree)
        return all(value is not None and inner._is_by_row(value, seen) for value in returned)

    def _is_moved(self, value: ast.expr, name: str) -> bool:
        """`a * state + b * mean`, or `state + b * (mean - state)`."""
        value = self._plain(value)
        parts = [self._plain(part) for part in _operands(value)]
        if len(parts) != 2 or _operator(value) not in ("add", "subtract"):
            return False
        for one, other in (parts, parts[::-1]):
            scaled = self._is_scaled(one, lambda part: self._state(part) == name)
            moved = self._is_mean(other) or self._is_scaled(other, lambda part: self._is_distance(part, name))
            if scaled and moved:
                return True
        return False

    def _is_distance(self, value: ast.expr, name: str) -> bool:
        """`mean - state` or `state - mean`."""
        parts = [self._plain(part) for part in _operands(value)]
        states = [self._state(part) == name for part in parts]
        means = [self._is_mean(part) for part in parts]
        return _operator(value) == "subtract" and sorted(zip(states, means, strict=True)) == [
            (False, True),
            (True, False),
        ]

    def _is_scaled(self, value: ast.expr, which: Any) -> bool:
        """Whether it is a product of something with numbers that are no data."""
        value = self._plain(value)
        if which(value):
            return True
        orders = _orders(value, "multiply", "divide")
        return any(self._is_scaled(one, which) and self._is_number(other) for one, other in orders)

    def _is_mean(self, value: ast.expr) -> bool:
        """Whether it is a mean of rows, or one of these scaled and shifted by numbers."""
        value = self._plain(value)
        if isinstance(value, ast.Call) and _called(value) in _MEANS:
            return self._is_over_rows(value)
        parts = _operands(value)
        if len(parts) == 2 and _operator(value) in ("add", "subtract"):
            means = [self._is_mean(part) for part in parts]
            return any(means) and all(m or self._is_number(p) for m, p in zip(means, parts, strict=True))
        return bool(parts) and self._is_scaled(value, lambda part: part is not value and self._is_mean(part))

    def _is_number(self, value: ast.AST) -> bool:
        """Whether it is equal on all workers: neither data nor a state."""
        return not self._reads.data(value) and not self._states_in(value)

    def _states_in(self, value: ast.AST) -> bool:
        return bool(self._reads.attributes(value) & {*self.states, _ALL})

    def _may_read(self, value: ast.AST, name: str) -> bool:
        return bool(self._reads.attributes(value) & {name, _ALL})

    def _state(self, value: ast.AST | None) -> str:
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
        # but for the `update_state` of another class, whose rules are known
        self.by_methods = set[str]().union(*(self._of_method(call) for call in calls if _called(call) != "super"))
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
                for bound in self.behind(node.id):
                    found |= self.attributes(bound, seen | {node.id})
        return found

    def data(self, value: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value may depend on the rows of a batch."""
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id not in seen:
                behind = self.behind(node.id)
                if node.id in self._data or any(self.data(one, seen | {node.id}) for one in behind):
                    return True
        return False

    def behind(self, name: str) -> Sequence[ast.AST]:
        """What a local name is bound to, or the statements of a function that is defined inside."""
        function = self._functions.get(name)
        return [*self.bound.get(name, ()), *(function.body if function else ())]

    def _of_method(self, call: ast.Call) -> set[str]:
        name = self.attribute(call.func)
        if not name:
            return {_ALL} if _called(call) == "super" and isinstance(call.func, ast.Name) else set()
        function = inspect.getattr_static(self._kind, name, None)
        if function is None:  # a function or a layer that it holds
            return set()
        return self._of_source(name, function)

    def _of_property(self, name: str) -> set[str]:
        found = inspect.getattr_static(self._kind, name, None)
        return self._of_source(name, found.fget) if isinstance(found, property) else set()

    def _of_source(self, name: str, function: Any) -> set[str]:
        """The attributes that a method mentions, and those that it calls."""
        if name in self._seen:
            return set()
        tree = _parsed(function)
        if tree is None:
            return {_ALL}
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
            for name in (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
                if value is not None:
                    yield name.id, value
                if not one or target is not name:  # one of several values, or one after another: never one value
                    yield name.id, name


def _axes(call: ast.Call, positional: bool = True) -> Any:
    """The axis that a call reduces: an integer, None for all of them, and a text where it is something else."""
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("axis", "dim", "axes")]
    axis = named[0] if named else call.args[1] if positional and len(call.args) > 1 else ast.Constant(None)
    try:
        found = ast.literal_eval(axis)
    except ValueError:
        return "unknown"
    return found if found is None or type(found) is int else "unknown"


def _children(value: ast.AST) -> list[ast.AST]:
    """The values in an expression, without its operators."""
    return [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]


def _is_ellipsis(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value is Ellipsis


def _operands(value: ast.expr) -> Sequence[ast.expr]:
    """Of a sum, a product or a call; of a call with one list, its elements."""
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if not isinstance(value, ast.Call):
        return []
    keywords = [keyword.value for keyword in value.keywords if keyword.arg in ("x1", "x2", "x", "y", "a", "b")]
    given = [*value.args[:2], *keywords] if _called(value) in _BY_ELEMENT else [*value.args[:1], *keywords]
    if _called(value) in _OPERATORS.values() or isinstance(value.func, ast.Name):
        given = [*value.args, *keywords]
    first = given[0] if len(given) == 1 else None
    if isinstance(first, ast.Call) and _called(first) in _LISTS and first.args:
        first = first.args[0]
    return list(first.elts) if isinstance(first, ast.List | ast.Tuple) else given


def _orders(value: ast.expr, commuting: str, other: str) -> list[Sequence[ast.expr]]:
    """The two operands of one of these operators, in both orders where it commutes; none for anything else."""
    parts = _operands(value)
    if len(parts) != 2 or _operator(value) not in (commuting, other):
        return []
    return [parts, parts[::-1]] if _operator(value) == commuting else [parts]


def _operator(value: ast.expr) -> str:
    """The name of the function that is called, or of the one that does what an operator does."""
    return _OPERATORS.get(type(value.op), "") if isinstance(value, ast.BinOp) else _called(value)


def _called(value: ast.AST) -> str:
    """The last part of the name of what is called."""
    function = value.func if isinstance(value, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
