"""Conversion of names and arguments of Keras 2 to the spelling of Keras 3."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m

from syrtos.doctor import public_names
from syrtos_migrate.transformer import (
    Conversion,
    argument,
    code,
    method,
    replace_argument,
    without,
)

_METHODS = {
    "fit_generator": "fit",
    "evaluate_generator": "evaluate",
    "predict_generator": "predict",
    "experimental_run_v2": "run",
}
_GONE = {
    "fit": ("workers", "use_multiprocessing", "max_queue_size"), "evaluate": ("workers", "use_multiprocessing", "max_queue_size"),
    "predict": ("workers", "use_multiprocessing", "max_queue_size"), "compile": ("experimental_run_tf_function", "sample_weight_mode"),
    "ModelCheckpoint": ("period",),
    "TensorBoard": ("write_grads", "batch_size"), "save": ("save_format",), "save_weights": ("save_format",), "BatchNormalization": ("fused",),
}  # fmt: skip
_WORDS = {
    "compile",
    "fit",
    "evaluate",
    "predict",
    "save",
    "save_weights",
    "ModelCheckpoint",
    "TensorBoard",
    "BatchNormalization",
}
_RENAMED = {
    "border_mode": "padding", "W_regularizer": "kernel_regularizer", "b_regularizer": "bias_regularizer", "subsample": "strides", "nb_epoch": "epochs",
    "dim_ordering": "data_format", "init": "kernel_initializer",
}  # fmt: skip
_SESSIONS = re.compile(
    r"keras\.backend\.(set_session|get_session)$|keras\.backend\.tensorflow_backend\."
)
_RATES = re.compile(r"\b(ReduceLROnPlateau|LearningRate(Scheduler|Warmup|Schedule)\w*)\(")
# Positional arguments of methods whose successors have others there.
_POSITIONS = {
    "fit_generator": (
        "x",
        "steps_per_epoch",
        "epochs",
        "verbose",
        "callbacks",
        "validation_data",
        "validation_steps",
    ),
    "evaluate_generator": ("x", "steps"),
    "predict_generator": ("x", "steps"),
}
_COUNTS = {
    "samples_per_epoch": "counted samples; `steps_per_epoch` counts batches",
    "nb_val_samples": "counted samples; `validation_steps` counts batches",
    "val_samples": "counted samples; `steps` counts batches",
    "period": "saved every so many epochs; `save_freq` counts batches",
}
_ORDERS = {"th": "channels_first", "tf": "channels_last"}
_CONFIGS = ("tensorflow.ConfigProto", "tensorflow.compat.v1.ConfigProto")


class Spellings(Conversion):
    """Replaces words of Keras 2 that have changed, and removes those that are no longer needed."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._configs: set[str] = set()
        self._optimizers: set[str] = set()
        self._changes_rates = False

    def visit_Module(self, node: cst.Module) -> None:
        """Notes whether a callback sets learning rates."""
        self._changes_rates = bool(_RATES.search(code(node)))

    def visit_Assign(self, node: cst.Assign) -> None:
        """Remembers the names of optimizers, and of configurations of sessions."""
        if isinstance(node.value, cst.Call) and self.meaning(node.value.func).startswith(
            "keras.optimizers."
        ):
            self._optimizers.update(code(target.target) for target in node.targets)
        if isinstance(node.value, cst.Call) and self.name(node.value.func) in _CONFIGS:
            self._configs.update(
                target.target.value
                for target in node.targets
                if isinstance(target.target, cst.Name)
            )

    def leave_Assign(
        self, original_node: cst.Assign, updated_node: cst.Assign
    ) -> cst.Assign | cst.RemovalSentinel:
        """Removes configurations of sessions, and assignments to their attributes."""
        target = original_node.targets[0].target
        return (
            cst.RemoveFromParent() if code(target).split(".")[0] in self._configs else updated_node
        )

    def leave_Expr(
        self, original_node: cst.Expr, updated_node: cst.Expr
    ) -> cst.Expr | cst.RemovalSentinel:
        """Removes calls that set or get a session, or that enable eager execution."""
        call = original_node.value
        sets = isinstance(call, cst.Call) and (
            _SESSIONS.search(self.meaning(call.func))
            or self.name(call.func).endswith("enable_eager_execution")
        )
        return cst.RemoveFromParent() if sets else updated_node

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseSmallStatement]:
        """Imports each name from the module that it is in today."""
        module = code(original_node.module) if original_node.module else ""
        if (
            not module.startswith(("keras", "tensorflow"))
            or isinstance(original_node.names, cst.ImportStar)
            or original_node.relative
        ):
            return updated_node
        if all(
            public_names.missing_part(f"{module}.{name.evaluated_name}") is None
            for name in original_node.names
        ):
            return updated_node
        root = "tensorflow.keras" if module.startswith("tensorflow") else "keras"
        homes: dict[str, list[cst.ImportAlias]] = {}
        renamed = (
            updated_node.names
            if not isinstance(updated_node.names, cst.ImportStar)
            else original_node.names
        )
        for name, now in zip(original_node.names, renamed, strict=True):
            home = self._home(module, name.evaluated_name, root)
            homes.setdefault(home, []).append(now.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        return cst.FlattenSentinel(
            [cst.ImportFrom(_dotted(home), names) for home, names in homes.items()]
        )

    def _home(self, module: str, name: str, root: str) -> str:
        if public_names.missing_part(f"{module}.{name}") is None:
            return module
        if name == "ImageDataGenerator":
            return "tensorflow.keras.preprocessing.image"
        if name == "np_utils":
            return root
        found = public_names.near(f"{module}.{name}")
        return found[0].rpartition(".")[0].replace("keras", root, 1) if found else module

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Renames methods and arguments, and removes arguments that are gone."""
        name = method(original_node)
        self._leave_counts(original_node)
        if name in _METHODS and isinstance(updated_node.func, cst.Attribute):
            names = _POSITIONS.get(name, ())
            if any(each.star for each in original_node.args) or sum(
                each.keyword is None for each in original_node.args
            ) > max(len(names), 1):
                self.leave_alone(
                    original_node, f"`{name}` with so many arguments without names, or with a star"
                )
                return updated_node
            updated_node = _name_arguments(updated_node, names)
            updated_node = updated_node.with_changes(
                func=updated_node.func.with_changes(attr=cst.Name(_METHODS[name]))
            )
            name = _METHODS[name]
        if name == "reset_states" and isinstance(updated_node.func, cst.Attribute):
            if "model" in code(updated_node.func.value).lower():
                self.leave_alone(
                    original_node,
                    "a model has no `reset_states`: call `reset_state()` of its recurrent layers",
                )
            return updated_node.with_changes(
                func=updated_node.func.with_changes(attr=cst.Name("reset_state"))
            )
        if (
            name == "variables"
            and not updated_node.args
            and isinstance(original_node.func, cst.Attribute)
            and self._is_optimizer(original_node.func.value)
        ):
            return updated_node.func
        meaning = self.meaning(original_node.func)
        if meaning.startswith("keras.optimizers."):
            updated_node = self._optimizer(original_node, updated_node)
        if name in _WORDS and (
            isinstance(original_node.func, cst.Attribute) or meaning.startswith("keras.")
        ):
            updated_node = without(updated_node, *_GONE.get(name, ()))
        if name in ("fit",) or meaning.startswith("keras.layers."):
            updated_node = updated_node.with_changes(
                args=[_rename(each) for each in updated_node.args]
            )
        return updated_node

    def _leave_counts(self, call: cst.Call) -> None:
        """Leaves arguments of Keras 1 and 2 to the user if the meaning of their numbers changed."""
        for name, text in _COUNTS.items():
            if (found := argument(call, name)) is not None and not m.matches(
                found.value, m.Integer("1")
            ):
                self.leave_alone(call, f"`{name}={code(found.value)}` {text}")
        if (
            method(call) == "Convolution2D"
            and argument(call, "nb_row", 2) is not None
            and argument(call, "kernel_size") is None
        ):
            self.leave_alone(
                call,
                "three numbers are filters, rows and columns in Keras 1; today write"
                " `Conv2D(filters, (rows, columns))`",
            )

    def _optimizer(self, original: cst.Call, call: cst.Call) -> cst.Call:
        args = [
            (
                each.with_changes(keyword=cst.Name("learning_rate"))
                if each.keyword and each.keyword.value == "lr"
                else each
            )
            for each in call.args
        ]
        call = call.with_changes(args=args)
        decay, rate = argument(call, "decay"), argument(call, "learning_rate", 0)
        if decay is None:
            return call
        if m.matches(decay.value, m.Float() | m.Integer()) and float(code(decay.value)) == 0:
            return without(call, "decay")
        if rate is None:
            self.leave_alone(original, "`decay` without a learning rate")
            return call
        if self._changes_rates:
            self.leave_alone(
                original,
                "`decay`, and a callback that sets the learning rate: a schedule can't be set",
            )
            return call
        keras = code(call.func).rpartition("optimizers")[0] or "keras."
        self.wants |= {"keras"} if keras == "keras." else set()
        # Keras 2 divided the rate by 1 + decay * step.
        schedule = cst.parse_expression(
            f"{keras}optimizers.schedules.InverseTimeDecay({code(rate.value)}, 1,"
            f" {code(decay.value)})"
        )
        return without(replace_argument(call, rate, schedule), "decay")

    def _is_optimizer(self, node: cst.BaseExpression) -> bool:
        """Returns whether a node is `model.optimizer`, or a name given an optimizer of Keras."""
        return code(node).endswith(".optimizer") or code(node) in self._optimizers

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Rewrites optimizers of `legacy` and `experimental`, `optimizer.lr` and `tf.AUTOTUNE`."""
        meaning, name = self.meaning(original_node), updated_node.attr.value
        if meaning.startswith(
            ("keras.optimizers.legacy.", "keras.optimizers.experimental.")
        ) and isinstance(updated_node.value, cst.Attribute):
            return updated_node.with_changes(value=updated_node.value.value)
        if name == "lr" and self._is_optimizer(original_node.value):
            return updated_node.with_changes(attr=cst.Name("learning_rate"))
        if name == "AUTOTUNE" and self.name(original_node) == "tensorflow.AUTOTUNE":
            return updated_node.with_changes(
                value=cst.Attribute(updated_node.value, cst.Name("data"))
            )
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Renames `np_utils` to `utils`."""
        return (
            cst.Name("utils")
            if original_node.value == "np_utils"
            and self.meaning(original_node) == "keras.utils.np_utils"
            else updated_node
        )

    def leave_ImportAlias(
        self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias
    ) -> cst.ImportAlias:
        """Renames `np_utils` to `utils` in imports."""
        return (
            updated_node.with_changes(name=cst.Name("utils"))
            if code(original_node.name) == "np_utils"
            else updated_node
        )


def _rename(argument: cst.Arg) -> cst.Arg:
    if argument.keyword is None or argument.keyword.value not in _RENAMED:
        return argument
    if argument.keyword.value == "dim_ordering" and (
        order := _ORDERS.get(code(argument.value).strip("'\""))
    ):
        argument = argument.with_changes(value=cst.SimpleString(f'"{order}"'))
    assert argument.keyword is not None
    return argument.with_changes(keyword=cst.Name(_RENAMED[argument.keyword.value]))


def _name_arguments(call: cst.Call, names: Sequence[str]) -> cst.Call:
    """Returns the call with positional arguments after the first named, and `generator` as `x`."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    args = [
        (
            each.with_changes(keyword=cst.Name(name), equal=equal)
            if number and each.keyword is None and not each.star
            else each
        )
        for number, (each, name) in enumerate(
            zip(call.args, [*names, *[""] * len(call.args)], strict=False)
        )
    ]
    return call.with_changes(
        args=[
            (
                each.with_changes(keyword=cst.Name("x"))
                if each.keyword and each.keyword.value == "generator"
                else each
            )
            for each in args
        ]
    )


def _dotted(path: str) -> cst.Name | cst.Attribute:
    found = cst.parse_expression(path)
    assert isinstance(found, cst.Name | cst.Attribute)
    return found
