"""The base of all conversions: names with their meaning, places, notes, removed statements."""

from __future__ import annotations

from typing import ClassVar

import libcst as cst
from libcst import matchers as m
from libcst.metadata import (
    CodeRange,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
)

from syrtos.doctor.script import canonical


class Conversion(m.MatcherDecoratableTransformer):
    """A change of a module, with remarks on it.

    Attributes:
        notes: pairs of a line of the script and what has become different.
        left: pairs of a line of the script and what can't be converted.
        wants: what the converted module must define: ``keras``, ``WORKERS``, ``syrtos``,
            ``learning_rate_callbacks``.
    """

    # a module without any of them has nothing to convert
    WORDS: ClassVar[tuple[str, ...]] = ("",)
    METADATA_DEPENDENCIES = (QualifiedNameProvider, PositionProvider, ParentNodeProvider)

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers
        self.notes: list[tuple[int, str]] = []
        self.left: list[tuple[int, str]] = []
        self.wants: set[str] = set()

    def name(self, node: cst.CSTNode) -> str:
        """Returns the dotted path, as spelled, of a name, an attribute or a called function.

        The path is empty if it is unknown.
        """
        found = self.get_metadata(QualifiedNameProvider, node, set())
        # Of a set: the first by the alphabet, so that each conversion of a script is the same.
        return min((each.name for each in found), default="")

    def meaning(self, node: cst.CSTNode) -> str:
        """Returns the dotted path of a node as `name` does, but with Keras as ``keras``."""
        return canonical(self.name(node))

    def line(self, node: cst.CSTNode) -> int:
        """Returns the line of a node, from 1."""
        place = self.get_metadata(PositionProvider, node)
        assert isinstance(place, CodeRange)
        return place.start.line

    def note(self, node: cst.CSTNode, text: str) -> None:
        """Notes a change in what the script does."""
        self.notes.append((self.line(node), text))

    def leave_alone(self, node: cst.CSTNode, text: str) -> None:
        """Notes that a node can't be converted, and why."""
        self.left.append((self.line(node), text))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        """Removes a line that has lost all its statements."""
        return updated_node if updated_node.body else cst.RemoveFromParent()

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        """Puts `pass` into a block that has lost all its statements."""
        return updated_node if updated_node.body else updated_node.with_changes(body=[PASS])

    def leave_For(
        self, original_node: cst.For, updated_node: cst.For
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        """Removes a loop that does nothing any more."""
        return (
            cst.RemoveFromParent()
            if is_empty(updated_node.body) and not is_empty(original_node.body)
            else updated_node
        )


PASS = cst.SimpleStatementLine([cst.Pass()])


def convert(module: cst.Module, conversion: Conversion) -> cst.Module:
    """Returns the module after one conversion."""
    return MetadataWrapper(module).visit(conversion)


def is_empty(suite: cst.BaseSuite) -> bool:
    """Returns whether a block does nothing."""
    return isinstance(suite, cst.IndentedBlock) and all(
        m.matches(line, m.SimpleStatementLine([m.Pass()])) for line in suite.body
    )


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """Returns the argument of a call, by its name or position; None if it is not given."""
    for each in call.args:
        if each.keyword is not None and each.keyword.value == name:
            return each
    plain = [each for each in call.args if each.keyword is None and not each.star]
    return plain[position] if position is not None and position < len(plain) else None


def without(call: cst.Call, *names: str) -> cst.Call:
    """Returns the call without arguments of these names."""
    kept = [each for each in call.args if each.keyword is None or each.keyword.value not in names]
    if len(kept) == len(call.args):
        return call
    # what follows the last argument, a comma or the end of the line, follows the one that is last
    # now
    last = (
        [
            kept[-1].with_changes(
                comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
            )
        ]
        if kept
        else []
    )
    return call.with_changes(args=[*kept[:-1], *last])


def replace_argument(call: cst.Call, old: cst.Arg, value: cst.BaseExpression) -> cst.Call:
    """Returns the call with another value in an argument."""
    return call.with_changes(
        args=[each.with_changes(value=value) if each is old else each for each in call.args]
    )


def with_keyword(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """Returns the call with one more argument."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    if not call.args:
        return call.with_changes(args=[cst.Arg(value, cst.Name(name), equal)])
    last = call.args[-1]
    comma = (
        call.args[-2].comma
        if len(call.args) > 1
        else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    )
    added = last.with_changes(value=value, keyword=cst.Name(name), equal=equal)
    return call.with_changes(
        args=[
            *call.args[:-1],
            last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")),
            added,
        ]
    )


def method(call: cst.Call) -> str:
    """Returns the name of the function or method that is called."""
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value
    return call.func.value if isinstance(call.func, cst.Name) else ""


def code(node: cst.CSTNode) -> str:
    """Returns the text of a node."""
    return cst.Module([]).code_for_node(node)


def times(expression: cst.BaseExpression, name: str) -> cst.BaseExpression:
    """Returns the expression ``expression * name``."""
    simple = isinstance(
        expression, cst.Name | cst.Attribute | cst.Integer | cst.Float | cst.Call | cst.Subscript
    )
    left = (
        expression
        if simple or expression.lpar
        else expression.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    )
    return cst.BinaryOperation(left, cst.Multiply(), cst.Name(name))
