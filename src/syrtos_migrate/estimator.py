"""Conversion of Estimators made of Keras models to the models' `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from syrtos_migrate.transformer import Conversion, argument, code, method

_SPECS = {"TrainSpec": "max_steps", "EvalSpec": "steps"}


class Estimators(Conversion):
    """Replaces the Estimator that `model_to_estimator` makes by its model.

    `train`, `evaluate`, `predict` and `train_and_evaluate` become calls of the model, on the data
    set that the input function returns.
    """

    WORDS = ("estimator",)

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        # the name of an estimator: the text of its model
        self._models: dict[str, str] = {}
        # the name of a TrainSpec or EvalSpec: its data set
        self._specs: dict[str, str] = {}
        self._gone: set[str] = set()

    def visit_Module(self, node: cst.Module) -> None:
        """Notes estimators, specs and configurations."""
        for assign in m.findall(node, m.Assign(value=m.Call())):
            assert isinstance(assign, cst.Assign)
            assert isinstance(assign.value, cst.Call)
            name, call = code(assign.targets[0].target), assign.value
            if method(call) == "model_to_estimator" and (model := argument(call, "keras_model", 0)):
                self._models[name] = code(model.value)
            elif method(call) in _SPECS and (made := self._data(call, _SPECS[method(call)])):
                self._specs[name] = made
            elif method(call) == "RunConfig":
                self._gone.add(name)

    def _data(self, call: cst.Call, steps: str) -> str | None:
        """Returns the text of a call's data set, with the given number of steps taken.

        The data set is what the input function returns. Returns None if there is no input function,
        or one that can't be called without arguments.
        """
        function, count = argument(call, "input_fn", 0), argument(call, steps, 1)
        if function is None:
            return None
        for name in ("hooks", "saving_listeners", "exporters"):
            if (found := argument(call, name)) is not None and code(found.value) not in (
                "None",
                "[]",
            ):
                self.leave_alone(call, f"`{name}` of an Estimator: write them as Keras callbacks")
        if isinstance(function.value, cst.Lambda) and not function.value.params.params:
            made = code(function.value.body)
        elif isinstance(function.value, cst.Name | cst.Attribute):
            made = f"{code(function.value)}()"
        else:
            return None
        return (
            made
            if count is None or code(count.value) == "None"
            else f"{made}.take({code(count.value)})"
        )

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Replaces calls of an estimator by calls of its model."""
        name = method(original_node)
        if name == "train_and_evaluate" and len(original_node.args) == 3:
            return self._convert_train_and_evaluate(original_node, updated_node)
        on = code(original_node.func.value) if isinstance(original_node.func, cst.Attribute) else ""
        if on in self._models and name in ("train", "evaluate", "predict"):
            return self._convert_call(original_node, updated_node, on, name)
        if name in (
            "Estimator",
            "DNNClassifier",
            "DNNRegressor",
            "LinearClassifier",
            "LinearRegressor",
            "BoostedTreesClassifier",
        ) and "estimator." in self.name(original_node.func):
            self.leave_alone(
                original_node,
                f"`{name}`: a `model_fn` has to be written as a keras.Model by hand (syrtos runs"
                " tf.estimator.Estimator as it is)",
            )
        elif on in self._models:
            self.leave_alone(original_node, f"`{on}.{name}` of an Estimator")
        return updated_node

    def _convert_call(
        self, original: cst.Call, call: cst.Call, on: str, name: str
    ) -> cst.BaseExpression:
        data = self._data(
            original,
            "max_steps" if name == "train" and argument(original, "max_steps") else "steps",
        )
        if data is None:
            self.leave_alone(
                original, f"`{name}` without an input function that takes no arguments"
            )
            return call
        if name == "predict":
            self.leave_alone(
                original,
                "`predict` gives dictionaries, one for each row; `model.predict` gives arrays",
            )
        if name == "train" and argument(original, "max_steps") is not None:
            self.leave_alone(
                original,
                "`max_steps` counts the steps of earlier calls and runs too: `fit` has no such"
                " count",
            )
        self.note(
            original,
            "the input function must return a tf.data.Dataset; nothing is written to, or resumed"
            " from, `model_dir`: use keras.callbacks.BackupAndRestore",
        )
        texts = {
            "train": f"{self._models[on]}.fit({data})",
            "evaluate": f"{self._models[on]}.evaluate({data}, return_dict=True)",
            "predict": f"{self._models[on]}.predict({data})",
        }
        return cst.parse_expression(texts[name])

    def _convert_train_and_evaluate(self, original: cst.Call, call: cst.Call) -> cst.BaseExpression:
        estimator, train, test = (code(each.value) for each in original.args)
        if estimator not in self._models or train not in self._specs or test not in self._specs:
            self.leave_alone(
                original,
                "`train_and_evaluate` of an Estimator that is not made of a Keras model in this"
                " file, or whose specs are not",
            )
            return call
        self.note(
            original,
            "evaluates at the end of training, where `train_and_evaluate` does at checkpoints too",
        )
        return cst.parse_expression(
            f"{self._models[estimator]}.fit({self._specs[train]},"
            f" validation_data={self._specs[test]})"
        )

    def leave_Assign(
        self, original_node: cst.Assign, updated_node: cst.Assign
    ) -> cst.Assign | cst.RemovalSentinel:
        """Removes assignments of estimators, specs and configurations."""
        name = code(original_node.targets[0].target)
        return (
            cst.RemoveFromParent()
            if name in {*self._models, *self._specs, *self._gone} and self._is_made(original_node)
            else updated_node
        )

    def _is_made(self, assign: cst.Assign) -> bool:
        return isinstance(assign.value, cst.Call) and method(assign.value) in (
            "model_to_estimator",
            "RunConfig",
            *_SPECS,
        )
