"""Rules about names and arguments that Keras 3 and TensorFlow 2 do not have."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources

from syrtos.doctor import installed_words, public_names
from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, of_optimizer
from syrtos.doctor.script import Script, argument, canonical, method

_RULE, _OLD = "dead-api", "tf1-session"
# What `syrtos run` answers for; docs/dialects.md has every name.
_SERVED = (
    "tensorflow.estimator", "tensorflow.compat.v1.estimator", "keras.estimator", "keras.utils.multi_gpu_model", "keras.utils.multi_gpu_utils",
    "keras.utils.training_utils",
    "tensorflow.distribute", "tensorflow.contrib.estimator", "tensorflow.compat.v1.layers",
)  # fmt: skip
# What it refuses of these: Estimators that bring their own models.
_REFUSED = re.compile(r"estimator\.((DNN|Linear|BoostedTrees|Baseline)\w*|\w+Head|tpu)$")
# What scripts of Horovod, SMDDP, multi_gpu_model and `tf.distribute` find too:
# `syrtos.dialects.keras2`.
_SPELLINGS = frozenset(
    {
        "reset_states",
        "fit_generator",
        "evaluate_generator",
        "predict_generator",
        "experimental_run_v2",
    }
)
_ALLOWED = {
    "optimizer": {"lr", "decay"}, "fit": {"workers", "use_multiprocessing", "max_queue_size"}, "evaluate": {"workers", "use_multiprocessing", "max_queue_size"},
    "predict": {"workers", "use_multiprocessing", "max_queue_size"}, "compile": {"experimental_run_tf_function"}, "BatchNormalization": {"fused"},
}  # fmt: skip
_SPELLED = (
    "keras.backend.get_value",
    "keras.backend.set_value",
    "keras.optimizers.experimental",
    "keras.optimizers.legacy",
    "keras.layers.ThresholdedReLU",
    "keras.utils.experimental",
)
_ASKS = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "CentralStorageStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "multi_gpu_model",
)
_GONE = (
    "tensorflow_addons",
    "tensorflow.examples",
    "tensorflow_estimator",
    "keras_contrib",
    "tensorflow_hub.estimator",
)
_SESSIONS = (
    "tensorflow.compat.v1.Session",
    "tensorflow.compat.v1.InteractiveSession",
    "tensorflow.compat.v1.train.MonitoredTrainingSession",
)


@functools.cache
def _replaced_names() -> Mapping[str, Mapping[str, str | Mapping[str, str]]]:
    return tomllib.loads(resources.files("syrtos.doctor").joinpath("replaced.toml").read_text())


def instead(path: str) -> str | None:
    """Returns the text that replaces a dotted path; None if it is not known."""
    names, parts = _replaced_names()["names"], canonical(path).split(".")
    for length in range(len(parts), 1, -1):
        if found := names.get(".".join(parts[:length])):
            return str(found)
    return None


def speaks_keras_2(program: ScriptProgram) -> bool:
    """Returns whether syrtos teaches Keras 3 the spellings of Keras 2 for this script."""
    return bool(program.dialect) or program.uses(*_ASKS)


def is_legacy(program: ScriptProgram) -> bool:
    """Returns whether the script trains with Keras 2 itself."""
    return any(
        path.split(".")[0] == "tf_keras"
        for script in program.scripts
        for path in script.imported_paths.values()
    ) or any("TF_USE_LEGACY_KERAS" in script.text for script in program.scripts)


def dead_names(program: ScriptProgram) -> Iterator[Finding]:
    """Finds names of modules, functions and classes that are gone, each once for every file."""
    legacy, spells = is_legacy(program), speaks_keras_2(program)
    for script in program.scripts:
        seen: set[str] = set()
        for node, path in _paths(script):
            gone = next(
                (path for root in _GONE if path == root or path.startswith(root + ".")), None
            ) or public_names.missing_part(path)
            meaning = canonical(gone or "")
            if (
                gone is None
                or gone in seen
                or meaning.startswith(_SERVED)
                or (legacy and meaning.startswith("keras"))
                or is_tried(script, node)
            ):
                continue
            if spells and (meaning.startswith(_SPELLED) or _is_function(meaning)):
                continue
            seen.add(gone)
            yield _describe_removed(script, node, path, gone)


def _paths(script: Script) -> Iterator[tuple[ast.AST, str]]:
    """Yields the dotted paths that a file imports or reads, with their nodes, in text order."""
    for node in sorted(
        ast.walk(script.tree),
        key=lambda each: (getattr(each, "lineno", 0), getattr(each, "col_offset", 0)),
    ):
        if isinstance(node, ast.Import):
            yield from ((node, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (
                (node, f"{node.module}.{name.name}" if name.name != "*" else node.module)
                for name in node.names
            )
        elif (
            isinstance(node, ast.Attribute)
            and not isinstance(script.parents.get(node), ast.Attribute)
            and (path := script.written_path(node))
        ) and not isinstance(node.ctx, ast.Store):
            yield node, path


def _describe_removed(script: Script, node: ast.AST, path: str, gone: str) -> Finding:
    shown = gone.replace("tensorflow.", "tf.", 1)
    known = instead(path)
    moved = public_names.near(path)
    like = public_names.suggestion(canonical(gone))
    fix = (
        f"write {known}"
        if known
        and not known.startswith(("leave", "syrtos", "tf.contrib", "train", "a ", "the ", "pass"))
        else known
    )
    fix = (
        fix
        or installed_words.expired_names().get(gone)
        or (
            f"write `{moved[0]}`"
            if moved
            else (
                f"It looks like a misspelling of `{shown.rpartition('.')[0]}.{like}`"
                if like
                else (
                    f"`{path.replace('tensorflow.', 'tf.', 1)}` has no counterpart of the same"
                    " name: look for it in the documentation of Keras 3"
                )
            )
        )
    )
    if public_names.is_of_tensorflow_1(gone):
        more = (
            known
            or f"train a keras.Model by `fit`; helpers alone are at `tf.compat.v1.{gone.removeprefix('tensorflow.')}`"
        )
        return at(
            script,
            node,
            _OLD,
            Severity.BREAKS,
            f"`{shown}` belongs to TensorFlow 1",
            f"write {more}" if known and known.startswith("`") else more,
        )
    if gone.split(".")[0] in ("tensorflow_addons", "keras_contrib"):
        return at(
            script,
            node,
            _RULE,
            Severity.BREAKS,
            f"the package `{gone.split('.')[0]}` ended with Keras 2",
            "most of it is in Keras 3: AdamW, Lamb, GroupNormalization, ...",
        )
    return at(
        script,
        node,
        _RULE,
        Severity.BREAKS,
        f"`{shown}` does not exist in the installed version",
        str(fix),
    )


def _is_function(path: str) -> bool:
    """Returns whether a path is a loss or metric function, which `keras2` adds to `tf.keras`."""
    return (
        path.startswith(("keras.losses.", "keras.metrics.")) and path.rpartition(".")[2].islower()
    )


def is_tried(script: Script, node: ast.AST) -> bool:
    """Returns whether the script expects that a name may be missing.

    The name is in a `try`, or under a condition about the version.
    """
    for outer in script.around(node):
        if isinstance(outer, ast.Try) and any(_catches(handler) for handler in outer.handlers):
            return True
        if isinstance(outer, ast.If | ast.IfExp) and any(
            word in ast.unparse(outer.test)
            for word in ("version", "hasattr", "VERSION", "find_spec", "PY2", "PY3")
        ):
            return True
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else "Exception"
    return any(
        word in caught
        for word in ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
    )


def old_words(program: ScriptProgram) -> Iterator[Finding]:
    """Finds methods and arguments that are gone."""
    if is_legacy(program):
        return
    attributes, arguments = _replaced_names()["attributes"], _replaced_names()["arguments"]
    spells = speaks_keras_2(program)
    for script in program.scripts:
        for node in ast.walk(script.tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in attributes
                and node.attr not in script.functions
                and not (spells and node.attr in _SPELLINGS)
                and not is_tried(script, node)
            ) and not (script.written_path(node) or "").startswith("tensorflow.compat.v1"):
                yield at(
                    script,
                    node,
                    _RULE,
                    Severity.BREAKS,
                    f"`{node.attr}` is gone",
                    f"use {attributes[node.attr]}",
                )
        for call in script.calls:
            for kind in _kinds(script, call):
                yield from _arguments(script, call, kind, arguments.get(kind, {}), spells)


def _kinds(script: Script, call: ast.Call) -> Iterator[str]:
    """Yields the headings in `replaced.toml` under which the arguments of a call are listed."""
    path, name = script.meaning(call.func), method(call)
    if of_optimizer(script, call):
        if path.startswith("keras."):
            yield "optimizer"
    elif path.startswith("keras.layers."):
        yield from ("layer", name)
    elif path.startswith("keras.") or (
        isinstance(call.func, ast.Attribute)
        and name
        in (
            "fit",
            "evaluate",
            "predict",
            "compile",
            "save",
            "save_weights",
        )
    ):
        yield name


def _arguments(
    script: Script, call: ast.Call, kind: str, known: object, spells: bool
) -> Iterator[Finding]:
    assert isinstance(known, Mapping)
    for keyword in call.keywords:
        if keyword.arg not in known or (spells and keyword.arg in _ALLOWED.get(kind, ())):
            continue
        if (kind, keyword.arg) == ("save", "save_format") and script.constant(keyword.value) in (
            "keras",
            "h5",
        ):
            continue
        if kind == "layer" and method(call) == "Embedding" and keyword.arg == "output_dim":
            continue
        if kind in ("fit", "predict", "evaluate") and not _on_model(call, keyword.arg or ""):
            continue
        yield at(
            script,
            call,
            _RULE,
            Severity.BREAKS,
            f"`{method(call)}` takes no `{keyword.arg}` in Keras 3",
            f"use {known[keyword.arg]}",
        )


def _on_model(call: ast.Call, name: str) -> bool:
    """Returns whether a call may be one of a Keras model's methods."""
    # `workers` and the like are arguments of other things too
    return (
        isinstance(call.func, ast.Attribute) and "tuner" not in ast.unparse(call.func.value).lower()
    )


def sessions(program: ScriptProgram) -> Iterator[Finding]:
    """Finds training in sessions of TensorFlow 1, in which nothing is exchanged."""
    for script, call in program.calls():
        if (script.written_path(call.func) or "") in _SESSIONS and program.uses(
            "minimize", "apply_gradients"
        ):
            yield at(
                script,
                call,
                _OLD,
                Severity.WRONG,
                "this session trains on each worker by itself: its gradients are not exchanged",
                "train a keras.Model by `model.fit`, or keep the graph as the `model_fn` of a"
                " tf.estimator.Estimator, which syrtos serves",
            )
            return


def refused_estimators(program: ScriptProgram) -> Iterator[Finding]:
    """Finds Estimators with models of their own, which syrtos does not serve."""
    for script, call in program.calls():
        if found := _REFUSED.search(
            (script.written_path(call.func) or "").replace("tensorflow.compat.v1", "tensorflow")
        ):
            yield at(
                script,
                call,
                _RULE,
                Severity.BREAKS,
                f"`tf.{found.group(0)}` is gone: TensorFlow 2.16 removed it, and syrtos serves"
                " tf.estimator.Estimator alone",
                "write its model as a keras.Model (for its columns: keras.utils.FeatureSpace) and"
                " train it by `fit`",
            )


def renamed_metrics(program: ScriptProgram) -> Iterator[Finding]:
    """Finds uses of `acc`, the former name of `accuracy` in the logs."""
    named = {
        value.value
        for script, call in program.calls()
        if method(call) == "compile" and (m := argument(call, "metrics", 2))
        for value in ast.walk(m)
        if isinstance(value, ast.Constant)
    }
    if "acc" in named or "accuracy" not in named:
        return
    for script in program.scripts:
        for node in ast.walk(script.tree):
            key = (
                node.slice
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
                else None
            )
            if (
                isinstance(key, ast.Constant)
                and key.value in ("acc", "val_acc")
                and "hist" in ast.unparse(node).lower()
            ):
                yield at(
                    script,
                    node,
                    _RULE,
                    Severity.BREAKS,
                    f"the logs have no `{key.value}` (KeyError)",
                    f"write `{str(key.value).replace('acc', 'accuracy')}`",
                )
            elif (
                isinstance(node, ast.keyword)
                and node.arg == "monitor"
                and isinstance(node.value, ast.Constant)
                and node.value.value in ("acc", "val_acc")
            ):
                yield at(
                    script,
                    node.value,
                    _RULE,
                    Severity.WRONG,
                    f"the logs have no `{node.value.value}`, so this callback does nothing",
                    f"write `{str(node.value.value).replace('acc', 'accuracy')}`",
                )
