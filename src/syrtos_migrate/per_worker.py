"""Conversion of scripts of Horovod and SMDDP to plain Keras with one batch for all workers.

Each worker of such a script has a batch of its own. N workers with batches of b samples whose
gradients are averaged compute the mean over N·b samples. One process does the same with
`batch_size=b * WORKERS`. Where each worker took every N-th record, the batches of all of them in
one step are the next N·b records of the whole.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m
from libcst.metadata import ParentNodeProvider

from syrtos_migrate.conversion_checks import RANKS, SIZES
from syrtos_migrate.ranks_and_sizes import ROOTS, RanksAndSizes, steps_of, trains
from syrtos_migrate.transformer import (
    argument,
    code,
    method,
    replace_argument,
    times,
    with_keyword,
)

_VANISH = frozenset(
    {
        "init",
        "shutdown",
        "broadcast_variables",
        "broadcast_global_variables",
        "barrier",
        "join",
        "start_timeline",
        "stop_timeline",
        "BroadcastGlobalVariablesCallback",
        "MetricAverageCallback",
    }
)
_VALUES = frozenset(
    {
        "allreduce",
        "oob_allreduce",
        "allgather",
        "broadcast",
        "broadcast_object",
        "grouped_allreduce",
    }
)
_CALLBACKS = {
    "LearningRateWarmupCallback": "LearningRateWarmup",
    "LearningRateScheduleCallback": "LearningRateSchedule",
}
# Arguments of these callbacks that count epochs, and their positions.
_EPOCHS = {
    "LearningRateWarmupCallback": {"warmup_epochs": 1},
    "LearningRateScheduleCallback": {"start_epoch": 2, "end_epoch": 3},
}
_FLAGS = frozenset(
    {
        "mpi_built",
        "nccl_built",
        "gloo_built",
        "mpi_enabled",
        "gloo_enabled",
        "mpi_threads_supported",
        "is_initialized",
    }
)
_BATCHED = {"batch": 0, "padded_batch": 0}
_LOADERS = frozenset(
    {
        "flow",
        "flow_from_directory",
        "flow_from_dataframe",
        "image_dataset_from_directory",
        "text_dataset_from_directory",
        "timeseries_dataset_from_array",
        "make_csv_dataset",
    }
)
_WRITES = (
    "open(",
    ".save(",
    "savefig(",
    ".to_csv(",
    "makedirs(",
    "mkdir(",
    "rmtree(",
    "json.dump(",
    "np.save",
    "extractall(",
    "urlretrieve(",
)
_SHARED = (".fit(", ".evaluate(", ".predict(")
_WORKERS = "WORKERS"


class PerWorker(RanksAndSizes):
    """Converts Horovod or SMDDP to plain Keras."""

    WORDS = ("horovod", "smdistributed")

    # -- calls -------------------------------------------------------------------------------------

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Replaces calls of Horovod and SMDDP, and multiplies the sizes of batches."""
        ours = self._exchange_function(original_node)
        if ours:
            return self._convert_call(ours, original_node, updated_node)
        if not self._speaks:
            return updated_node
        if (
            method(original_node) == "shard"
            and original_node in self._sharded
            and isinstance(updated_node.func, cst.Attribute)
        ):
            return updated_node.func.value
        return self._scale_batch(original_node, updated_node)

    def _convert_call(self, ours: str, original: cst.Call, call: cst.Call) -> cst.BaseExpression:
        if ours in SIZES:
            if original in self._shards:
                return cst.Integer("1")
            self.wants.add(_WORKERS)
            return cst.Name(_WORKERS)
        if ours in RANKS:
            return cst.Integer("0")
        if ours in _FLAGS:
            return cst.Name("False")
        if ours in _CALLBACKS:
            self.wants.add("learning_rate_callbacks")
            return self._callback(
                ours, original, call.with_changes(func=cst.Name(_CALLBACKS[ours]))
            )
        if ours in ("DistributedOptimizer", "DistributedGradientTape"):
            return self._unwrap(ours, original, call)
        if ours in _VALUES and call.args:
            op = argument(call, "op") or argument(call, "average")
            if op is not None and not _averages(op.value):
                self.leave_alone(
                    original,
                    f"`{ours}` with `{code(op)}`: say by hand what one process computes here",
                )
            return call.args[0].value
        if ours == "allgather_object" and call.args:
            return cst.List([cst.Element(call.args[0].value)])
        if ours == "load_model" and len(call.args) == 1:
            self.wants.add("keras")
            return call.with_changes(func=cst.parse_expression("keras.models.load_model"))
        if ours not in _VANISH:
            self.leave_alone(
                original,
                f"`{ours}` of {self.name(original.func).split('.')[0]} has no counterpart in plain"
                " Keras",
            )
        return call

    def _callback(self, ours: str, original: cst.Call, call: cst.Call) -> cst.BaseExpression:
        """Converts a callback of the learning rate.

        Epochs become WORKERS times as many if each was a worker's pass over all of the data.
        """
        if argument(call, "initial_lr", 0) is None:
            self.leave_alone(
                original,
                f"`{ours}` without `initial_lr`: give it the learning rate of the optimizer",
            )
        if not self._grows:
            return call
        multiplier = argument(call, "multiplier", 1)
        if (
            ours == "LearningRateScheduleCallback"
            and multiplier is not None
            and not isinstance(multiplier.value, cst.Integer | cst.Float)
        ):
            self.leave_alone(
                original, "this multiplier counts epochs, of which there are WORKERS times as many"
            )
        if ours == "LearningRateWarmupCallback" and argument(call, "warmup_epochs", 1) is None:
            # Horovod's default.
            call = with_keyword(call, "warmup_epochs", cst.Integer("5"))
        for name, position in _EPOCHS[ours].items():
            if (found := argument(call, name, position)) is not None and code(found.value) not in (
                "0",
                "None",
            ):
                self.wants.add(_WORKERS)
                call = replace_argument(call, found, times(found.value, _WORKERS))
        return call

    def _unwrap(self, ours: str, original: cst.Call, call: cst.Call) -> cst.BaseExpression:
        inner = argument(call, "optimizer" if ours == "DistributedOptimizer" else "gradtape", 0)
        op, passes = argument(call, "op"), argument(call, "backward_passes_per_step")
        if inner is None or (op is not None and not _averages(op.value)):
            self.leave_alone(
                original,
                f"`{ours}` with `{code(op) if op else 'no argument'}`: gradients that are not"
                " averaged have no counterpart in one process",
            )
            return call
        if argument(call, "compression") is not None:
            self.note(original, "gradients are no longer rounded to 16 bits")
        value = inner.value
        if passes is not None and code(passes.value) != "1":
            if not isinstance(value, cst.Call):
                self.leave_alone(
                    original,
                    "`backward_passes_per_step`: give the optimizer"
                    f" `gradient_accumulation_steps={code(passes.value)}` where it is made",
                )
                return call
            value = with_keyword(value, "gradient_accumulation_steps", passes.value)
        return value

    def _scale_batch(self, original: cst.Call, call: cst.Call) -> cst.Call:
        name = method(original)
        if name == "fit":
            return self._fit(original, call) if trains(original) else call
        position = _BATCHED.get(name) if isinstance(original.func, cst.Attribute) else None
        found = (
            argument(call, "batch_size", position)
            if position is not None or name in _LOADERS
            else None
        )
        if found is None or code(found.value) == "None":
            return call
        self.wants.add(_WORKERS)
        return replace_argument(call, found, times(found.value, _WORKERS))

    def _fit(self, original: cst.Call, call: cst.Call) -> cst.Call:
        size = argument(call, "batch_size", 2)
        if size is not None:
            self.wants.add(_WORKERS)
            call = replace_argument(call, size, times(size.value, _WORKERS))
        elif argument(call, "y", 1) is not None:
            self.wants.add(_WORKERS)
            # Keras's default.
            call = with_keyword(call, "batch_size", times(cst.Integer("32"), _WORKERS))
        if (steps := steps_of(call)) is not None:
            return self._divide_steps(original, call, steps)
        if not self._grows:
            return call
        self.wants.add(_WORKERS)
        self.note(
            original,
            "each worker went over all of the data in an epoch; the same number of updates is"
            " WORKERS times the epochs, each of one pass",
        )
        epochs = argument(call, "epochs", 3)
        if epochs is None:
            return with_keyword(call, "epochs", cst.Name(_WORKERS))
        return replace_argument(call, epochs, times(epochs.value, _WORKERS))

    def _divide_steps(self, original: cst.Call, call: cst.Call, steps: cst.Arg) -> cst.Call:
        """Divides steps by WORKERS if they were counted on one worker's part of the data."""
        # The data is all of it now, and a batch has the rows of all workers.
        before = steps_of(original)
        value = before.value if before else steps.value
        made = self._values.get(code(value), value)
        if (
            not self._shards
            or self._has_size(made)
            or not any(word in code(made) for word in ("len(", ".shape", "cardinality("))
        ):
            return call
        self.wants.add(_WORKERS)
        self.note(
            original,
            "the steps were counted on the part of one worker: they are divided by WORKERS",
        )
        counted = times(steps.value, _WORKERS)
        return replace_argument(call, steps, counted.with_changes(operator=cst.FloorDivide()))

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        """Leaves `parts[hvd.rank()]` to be done by hand."""
        # It is a part of the data, and one process needs all parts.
        chosen = [
            inner for each in original_node.slice for inner in m.findall(each, m.Call() | m.Name())
        ]
        if any(self._is_rank(inner) for inner in chosen) and not any(
            self._is_size(inner) for inner in chosen
        ):
            text = code(original_node)
            if "local_rank" not in text and not any(
                word in text.lower() for word in ("gpu", "device")
            ):
                self.leave_alone(
                    original_node,
                    f"`{text}` is the part of one worker: write what all parts are together",
                )
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Replaces a name of the number of workers by 1 where it divides data."""
        return cst.Integer("1") if original_node in self._shards else updated_node

    # -- statements --------------------------------------------------------------------------------

    def leave_Expr(
        self, original_node: cst.Expr, updated_node: cst.Expr
    ) -> cst.Expr | cst.RemovalSentinel:
        """Removes statements that are only for several processes."""
        call = original_node.value
        if self._exchange_function(call) in _VANISH:
            return cst.RemoveFromParent()
        if (
            isinstance(call, cst.Call)
            and method(call) == "append"
            and call.args
            and self._exchange_function(call.args[0].value) in _VANISH
        ):
            return cst.RemoveFromParent()
        if isinstance(call, cst.Call) and method(call) == "set_visible_devices":
            return cst.RemoveFromParent()
        return updated_node

    def leave_Element(
        self, original_node: cst.Element, updated_node: cst.Element
    ) -> cst.Element | cst.RemovalSentinel:
        """Removes callbacks that are only for several processes."""
        return (
            cst.RemoveFromParent()
            if self._exchange_function(original_node.value) in _VANISH
            else updated_node
        )

    def leave_Assign(
        self, original_node: cst.Assign, updated_node: cst.Assign
    ) -> cst.Assign | cst.RemovalSentinel:
        """Removes assignments that have no meaning for one process.

        They are `tape = hvd.DistributedGradientTape(tape)`, callbacks that are not needed any more,
        the compression, and the GPU of a rank.
        """
        target = updated_node.targets[0].target
        if isinstance(original_node.value, cst.Call) and target.deep_equals(updated_node.value):
            return cst.RemoveFromParent()
        if (
            code(target).endswith("visible_device_list")
            or self._exchange_function(original_node.value) in _VANISH
            or self._is_compression(original_node.value)
        ):
            return cst.RemoveFromParent()
        return updated_node

    def _is_compression(self, value: cst.BaseExpression) -> bool:
        """Returns whether a value chooses how gradients are compressed."""
        return any(
            self.name(inner).startswith(ROOTS) and ".Compression" in self.name(inner)
            for inner in m.findall(value, m.Attribute())
        )

    def leave_Import(
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.RemovalSentinel:
        """Removes Horovod and SMDDP from an import."""
        kept = [
            name
            for name in updated_node.names
            if not f"{code(name.name)}.".startswith(("horovod.", "smdistributed."))
        ]
        if not kept:
            return cst.RemoveFromParent()
        return updated_node.with_changes(
            names=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
        )

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        """Removes imports of names from Horovod and SMDDP."""
        module = code(original_node.module) if original_node.module else ""
        return (
            cst.RemoveFromParent()
            if f"{module}.".startswith(("horovod.", "smdistributed."))
            else updated_node
        )

    # -- conditions about ranks --------------------------------------------------------------------

    def _value_on_rank_0(self, test: cst.BaseExpression) -> bool | None:
        """Returns the value of a condition about ranks on rank 0; None for other conditions."""
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            left, operator, right = (
                test.left,
                test.comparisons[0].operator,
                test.comparisons[0].comparator,
            )
            if self._is_rank(right):
                left, right = right, left
            if self._is_rank(left) and isinstance(right, cst.Integer):
                equal = right.evaluated_value == 0
                if isinstance(operator, cst.Equal):
                    return equal
                if isinstance(operator, cst.NotEqual | cst.GreaterThan):
                    return not equal if isinstance(operator, cst.NotEqual) else False
            return None
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self._value_on_rank_0(test.expression)
            return None if inner is None else not inner
        if isinstance(test, cst.Name) and test.value in self._true:
            return True
        return False if self._is_rank(test) else None

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        """Removes the condition about ranks from `batch % 10 == 0 and hvd.rank() == 0`."""
        for this, other in (
            (original_node.left, updated_node.right),
            (original_node.right, updated_node.left),
        ):
            decided = self._value_on_rank_0(this)
            if decided is not None and isinstance(original_node.operator, cst.And) is decided:
                return other
        return updated_node

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        """Replaces `1 if hvd.rank() == 0 else 0` by the value on rank 0."""
        decided = self._value_on_rank_0(original_node.test)
        if decided is None:
            return updated_node
        return updated_node.body if decided else updated_node.orelse

    def leave_If(
        self, original_node: cst.If, updated_node: cst.If
    ) -> cst.BaseStatement | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement]:
        """Replaces a condition about ranks by the branch of rank 0."""
        decided = self._value_on_rank_0(original_node.test)
        suite = updated_node.body
        body = (
            suite.body
            if isinstance(suite, cst.IndentedBlock)
            else [cst.SimpleStatementLine(cst.ensure_type(suite, cst.SimpleStatementSuite).body)]
        )
        if (
            all(m.matches(line, m.SimpleStatementLine([m.Pass()])) for line in body)
            and updated_node.orelse is None
        ):
            return cst.RemoveFromParent()
        if decided is None or isinstance(
            self.get_metadata(ParentNodeProvider, original_node), cst.If
        ):
            # an `elif` keeps its condition, which holds the constant of rank 0
            return updated_node
        if decided:
            kept = self._of_rank_0([line for line in body if isinstance(line, cst.BaseStatement)])
            first = kept[0]
            assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
            return cst.FlattenSentinel(
                [
                    first.with_changes(
                        leading_lines=[*updated_node.leading_lines, *first.leading_lines]
                    ),
                    *kept[1:],
                ]
            )
        if isinstance(updated_node.orelse, cst.Else) and isinstance(
            updated_node.orelse.body, cst.IndentedBlock
        ):
            return cst.FlattenSentinel(updated_node.orelse.body.body)
        return (
            updated_node.orelse
            if isinstance(updated_node.orelse, cst.If)
            else cst.RemoveFromParent()
        )

    def _of_rank_0(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        found: list[cst.BaseStatement] = []
        for statement in body:
            text = code(statement)
            if (
                any(word in text for word in _WRITES)
                and not any(word in text for word in _SHARED)
                and ".save(" not in text.replace("np.save(", "")
            ):
                # The converted script runs on several workers too, and one of them is to write its
                # files.
                self.wants.add("syrtos")
                test = cst.parse_expression("syrtos.rank() == 0")
                found.append(cst.If(test, cst.IndentedBlock([statement])))
            else:
                found.append(statement)
        return found


def _averages(op: cst.BaseExpression) -> bool:
    """Returns whether an argument is `hvd.Average` or `True`, not a choice between several ops."""
    return isinstance(op, cst.Attribute | cst.Name) and code(op).rpartition(".")[2] in (
        "Average",
        "True",
    )
