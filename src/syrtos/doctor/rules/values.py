"""A rule about the file names and arguments that Keras 3 refuses or ignores."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, of_optimizer
from syrtos.doctor.rules.names import is_legacy, speaks_keras_2
from syrtos.doctor.script import Script, argument, method

_RULE = "dead-api"
# The names by which programs for SageMaker tell the folder of a SavedModel.
_MODEL_DIR = re.compile(r"SM_MODEL_DIR|model_dir|/opt/ml/model")


def unsupported_values(program: ScriptProgram) -> Iterator[Finding]:
    """Finds values that Keras 3 does not support.

    These are file names that it refuses, the empty `keras.optimizers.legacy`, and `decay`, which is
    ignored.
    """
    if is_legacy(program):
        return
    for script, call in program.calls():
        path, name = script.meaning(call.func), method(call)
        if path == "keras.callbacks.ModelCheckpoint":
            yield from _check_checkpoint(script, call)
        elif name in ("save_weights", "load_weights") and isinstance(call.func, ast.Attribute):
            yield from _check_weights(script, call, name)
        elif (
            name == "save"
            and isinstance(call.func, ast.Attribute)
            and "model" in ast.unparse(call.func.value).lower()
            and len(call.args) + len(call.keywords) == 1
        ):
            yield from _check_save(script, call)
        elif path.startswith("keras.optimizers.legacy.") and not speaks_keras_2(program):
            yield at(
                script,
                call,
                _RULE,
                Severity.BREAKS,
                "`keras.optimizers.legacy` is empty in Keras 3",
                f"write `keras.optimizers.{name}`",
            )
        elif (
            of_optimizer(script, call)
            and path.startswith("keras.")
            and argument(call, "decay") is not None
            and not speaks_keras_2(program)
        ) and script.constant(argument(call, "decay")) != 0:
            yield at(
                script,
                call,
                _RULE,
                Severity.WRONG,
                "Keras 3 ignores `decay`: the learning rate stays as it is",
                "use `keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)` as the learning"
                " rate",
            )


def _known_end(script: Script, node: ast.expr | None) -> str | None:
    """Returns the end of a path if it is known, else None.

    The path may be a literal, an f-string, a sum, `os.path.join`, or a name.
    """
    if isinstance(node, ast.JoinedStr) and node.values:
        return _known_end(script, node.values[-1])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        return _known_end(script, node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _known_end(script, node.left)
    if isinstance(node, ast.Call) and method(node) in ("join", "format", "str", "Path"):
        return _known_end(
            script,
            (
                node.func.value
                if method(node) == "format" and isinstance(node.func, ast.Attribute)
                else node.args[-1]
                if node.args
                else None
            ),
        )
    if isinstance(node, ast.Name):
        ends = {
            _known_end(script, value)
            for value in script.assigned_values.get(node.id, [])
            if not isinstance(value, ast.Name)
        }
        return ends.pop() if len(ends) == 1 else None
    found = script.constant(node)
    return found if isinstance(found, str) else None


def _check_checkpoint(script: Script, call: ast.Call) -> Iterator[Finding]:
    path = _known_end(script, argument(call, "filepath", 0))
    weights = script.constant(argument(call, "save_weights_only", 3)) is True
    if path is None:
        return
    wanted = ".weights.h5" if weights else ".keras"
    if not path.endswith(wanted) and not (path.endswith(".h5") and not weights):
        yield at(
            script,
            call,
            _RULE,
            Severity.BREAKS,
            f"ModelCheckpoint's file must end in `{wanted}`",
            f"write a name such as `model{wanted}`",
        )


def _check_weights(script: Script, call: ast.Call, name: str) -> Iterator[Finding]:
    path = _known_end(script, argument(call, "filepath", 0))
    allowed = (
        (".weights.h5",)
        if name == "save_weights"
        else (".weights.h5", ".h5", ".keras", ".hdf5", ".json", ".orbax")
    )
    clear = name == "save_weights" or "model" in ast.unparse(call.func).lower()
    if path and not path.endswith(allowed) and clear and name not in script.functions:
        yield at(
            script,
            call,
            _RULE,
            Severity.BREAKS,
            f"the file of `{name}` must end in `.weights.h5`",
            "write a name such as `model.weights.h5`",
        )


def _check_save(script: Script, call: ast.Call) -> Iterator[Finding]:
    given = argument(call, "filepath", 0)
    path = _known_end(script, given)
    if given is None or any(map(_MODEL_DIR.search, script.texts_with_values(given))):
        # In a training job such a folder gets a SavedModel.
        return
    if path and not path.endswith((".keras", ".h5", ".hdf5")):
        yield at(
            script,
            call,
            _RULE,
            Severity.BREAKS,
            "`model.save` writes files that end in `.keras` (or `.h5`), no folders",
            "write `model.save('model.keras')`, or `model.export(folder)` for a SavedModel",
        )
