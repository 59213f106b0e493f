"""The ranks and numbers of workers in Horovod or SMDDP scripts' text, and what they divide."""

from __future__ import annotations

import ast

import libcst as cst
from libcst import matchers as m

from syrtos_migrate import conversion_checks
from syrtos_migrate.conversion_checks import RANKS, SIZES
from syrtos_migrate.transformer import Conversion, argument, code, method

ROOTS = ("horovod.", "smdistributed.dataparallel.")
_FITS = ("fit", "fit_generator")


class RanksAndSizes(Conversion):
    """A conversion that knows a script's names and calls for ranks and for numbers of workers."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._sizes: set[str] = set()  # names that hold the number of workers
        self._ranks: set[str] = set()
        self._values: dict[str, cst.BaseExpression] = {}  # what names are given last
        self._true: set[str] = set()  # names that say whether this is rank 0
        # where the number of workers divides data
        self._shards: set[cst.CSTNode] = set()
        self._sharded: set[cst.CSTNode] = set()  # the calls and slices that do so
        self._divided = False
        # each worker goes over all of the data in an epoch: one process does in as many epochs as
        # there are workers
        self._grows = False
        self._speaks = False  # Horovod or SMDDP

    # -- what stands where -------------------------------------------------------------------------

    def visit_Module(self, node: cst.Module) -> None:
        """Notes the names that hold ranks and sizes, and the sizes that divide data."""
        imports = m.findall(node, m.Import() | m.ImportFrom())
        self._speaks = any(
            f"{root}" in f"{code(each)}."
            for each in imports
            for root in ("horovod", "smdistributed")
        )
        for assign in m.findall(node, m.Assign()):
            assert isinstance(assign, cst.Assign)
            names = {
                target.target.value
                for target in assign.targets
                if isinstance(target.target, cst.Name)
            }
            if self._calls(assign.value, SIZES):
                self._sizes |= names
            elif self._calls(assign.value, RANKS):
                self._ranks |= names
            self._values.update(dict.fromkeys(names, assign.value))
            if isinstance(assign.value, cst.Comparison) and self._calls(assign.value.left, RANKS):
                self._true |= names
        self._find_shards(node)
        calls = [call for call in m.findall(node, m.Call()) if isinstance(call, cst.Call)]
        fits = [call for call in calls if method(call) in _FITS and trains(call)]
        divided = any(method(call) in ("take", *_FITS) and self._has_size(call) for call in calls)
        self._divided = bool(self._shards) or divided
        self._grows = not self._divided and any(steps_of(call) is None for call in fits)
        if self._speaks:
            self._note_loops(
                node, [call for call in calls if method(call).endswith("GradientTape")], bool(fits)
            )
            self._note_differences(calls)

    def _note_loops(self, node: cst.Module, tapes: list[cst.Call], fits: bool) -> None:
        if tapes and not fits and not self._divided and ".repeat(" not in code(node):
            self.leave_alone(
                tapes[0],
                "each worker went over all of the data, in a loop: repeat the data set WORKERS"
                " times, so that as many updates are made",
            )

    def _note_differences(self, calls: list[cst.Call]) -> None:
        for call in calls:
            reduction = argument(call, "reduction")
            if (
                reduction is not None
                and code(reduction.value).strip("'\"").lower().rpartition(".")[2] == "sum"
            ):
                self.leave_alone(
                    call, "this loss is a sum over the batch of one worker: divide it by WORKERS"
                )
            if self._grows and method(call) == "LearningRateScheduler":
                self.leave_alone(
                    call,
                    "this schedule counts epochs, of which there are WORKERS times as many, each"
                    " WORKERS times as short",
                )
        normalized = [call for call in calls if method(call) == "BatchNormalization"]
        if normalized:
            self.note(
                normalized[0],
                "one process normalizes over the batches of all workers, not over those of one",
            )

    def _find_shards(self, node: cst.Module) -> None:
        """Finds calls and slices that have both a rank and a size, as `understood` does.

        Examples are `shard(size, rank)`, `load(rank, size)` and `x[rank::size]`.
        """
        for outer in m.findall(node, m.Call() | m.Slice()):
            if isinstance(outer, cst.Slice):
                parts = [outer.lower, outer.upper, outer.step]
            elif (
                isinstance(outer, cst.Call)
                and not self._exchange_function(outer)
                and method(outer) not in ("fit", "print", "format", "append")
            ):
                parts = [each.value for each in outer.args]
            else:
                continue
            given = [each for each in parts if each is not None]
            if any(map(self._is_rank, given)):
                self._shards.update(each for each in given if self._is_size(each))
                self._sharded.update({outer} if any(map(self._is_size, given)) else ())

    def _exchange_function(self, node: cst.CSTNode) -> str:
        """Returns the name of the Horovod or SMDDP function that a node calls; empty for others."""
        if not isinstance(node, cst.Call):
            return ""
        path = self.name(node.func)
        return path.rpartition(".")[2] if path.startswith(ROOTS) else ""

    def _calls(self, node: cst.CSTNode, names: frozenset[str]) -> bool:
        return self._exchange_function(node) in names

    def _is_size(self, node: cst.CSTNode) -> bool:
        return self._calls(node, SIZES) or (
            isinstance(node, cst.Name) and node.value in self._sizes
        )

    def _is_rank(self, node: cst.CSTNode) -> bool:
        return self._calls(node, RANKS) or (
            isinstance(node, cst.Name) and node.value in self._ranks
        )

    def _has_size(self, node: cst.CSTNode) -> bool:
        return any(self._is_size(inner) for inner in m.findall(node, m.Call() | m.Name()))


def steps_of(call: cst.Call) -> cst.Arg | None:
    """Returns the argument of `fit` or `fit_generator` that counts steps."""
    return argument(call, "steps_per_epoch", 1 if method(call) == "fit_generator" else None)


def trains(call: cst.Call) -> bool:
    """Returns whether a call named `fit` is that of a Keras model, not of an encoder of labels."""
    parsed = ast.parse(code(call).strip(), mode="eval").body
    return isinstance(parsed, ast.Call) and conversion_checks.trains(parsed)
