"""Conversion of `multi_gpu_model` to the model itself, which `syrtos run` trains on all workers."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from syrtos_migrate.transformer import Conversion, argument, method

_NAMES = ("multi_gpu_model", "multi_gpu_utils", "training_utils")


class MultiGpu(Conversion):
    """Replaces calls of `multi_gpu_model` by their first argument."""

    WORDS = _NAMES

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._parallel: set[str] = set()

    def visit_Assign(self, node: cst.Assign) -> None:
        """Remembers the names of parallel models."""
        if isinstance(node.value, cst.Call) and method(node.value) == "multi_gpu_model":
            self._parallel.update(
                target.target.value
                for target in node.targets
                if isinstance(target.target, cst.Name)
            )

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Replaces a call of the function by its model."""
        if method(original_node) != "multi_gpu_model" or not updated_node.args:
            return updated_node
        model = argument(updated_node, "model", 0)
        return updated_node if model is None else model.value

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        """Replaces `parallel.layers[-2]`, which was the model, by `parallel`."""
        inner = m.Subscript(
            m.Attribute(m.Name(), m.Name("layers")),
            [m.SubscriptElement(m.Index(m.UnaryOperation(m.Minus(), m.Integer("2"))))],
        )
        found = (
            original_node.value.value
            if m.matches(original_node, inner) and isinstance(original_node.value, cst.Attribute)
            else None
        )
        return (
            found if isinstance(found, cst.Name) and found.value in self._parallel else updated_node
        )

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        """Removes the import of the function."""
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        kept = [name for name in updated_node.names if name.evaluated_name not in _NAMES]
        if not kept:
            return cst.RemoveFromParent()
        if len(kept) == len(updated_node.names):
            return updated_node
        return updated_node.with_changes(
            names=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
        )

    def leave_Assign(
        self, original_node: cst.Assign, updated_node: cst.Assign
    ) -> cst.Assign | cst.RemovalSentinel:
        """Removes `model = multi_gpu_model(model)`, which has become `model = model`."""
        target = updated_node.targets[0].target
        same = (
            isinstance(original_node.value, cst.Call)
            and method(original_node.value) == "multi_gpu_model"
            and target.deep_equals(updated_node.value)
        )
        return cst.RemoveFromParent() if same else updated_node
