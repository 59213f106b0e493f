"""Rules about steps on torch of which a part needs the whole batch.

The batch is gathered for that part, or no batch is split. In a run the first batch decides
(`syrtos.keras.split.first_batch`); the text of a script shows the usual kinds. On TensorFlow and
JAX a step is one program of the whole batch, of which no part is computed on a share by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from syrtos import settings
from syrtos.doctor import machine_packages
from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram
from syrtos.doctor.script import Script, argument, method

# Losses of Keras whose value is no mean over rows, in lower case.
_MIXING = frozenset({"dice", "tversky", "circle"})


def stateful_layers(program: ScriptProgram) -> Iterator[Finding]:
    """Finds layers that keep a state for each batch row, and models for batches of one size."""
    if not _computes_shares(program):
        return
    for script, call in program.calls():
        if script.constant(argument(call, "stateful")) is True and _is_of_keras(script, call):
            yield at(
                script,
                call,
                "not-split",
                Severity.SLOW,
                "the layer keeps a state for each row of a batch, so batches are not split: each"
                " worker computes whole batches, and the result is that of one process, and so is"
                " the speed",
                "leave `stateful=True` away if a row does not continue the same row of the batch"
                " before; else use one worker",
            )
        elif (rows := _fixed_rows(script, call)) and program.workers > 1:
            yield at(
                script,
                call,
                "not-split",
                Severity.SLOW,
                f"the model takes batches of {rows} rows alone. Where a step needs that number,"
                " batches are not split: each worker computes whole batches, and the result is"
                " that of one process, and so is the speed",
                "leave the number of rows open: `shape=` in place of `batch_shape=`, no"
                " `batch_size=`",
            )


def layers_of_shares(program: ScriptProgram) -> Iterator[Finding]:
    """Finds the layers that compute something else from a worker's share than from the batch."""
    if not _computes_shares(program) or program.workers < 2:
        return
    found: dict[str, list[tuple[Script, ast.Call]]] = {}
    for script, call in program.calls():
        path = script.meaning(call.func)
        layer = path.removeprefix("keras.layers.")
        if path != layer and layer in _OF_SHARES and not _is_of_whole_batches(script, call):
            found.setdefault(layer, []).append((script, call))
    for layer, calls in found.items():
        says, fix = _OF_SHARES[layer]
        more = f" (and in {len(calls) - 1} more places)" if len(calls) > 1 else ""
        rule = "share-statistics" if layer == "BatchNormalization" else "share-masks"
        yield at(*calls[0], rule, Severity.NOTE, f"`{layer}`{more} {says}", fix)


_MASKS = (
    "draws other random numbers on each worker, so results differ from those of one process, as with"
    " another seed",
    "nothing needs to change",
)
# Layers by their names in `keras.layers`, with what several workers change and what to do.
_OF_SHARES = {
    "BatchNormalization": (
        "normalizes over each worker's share of a batch, so results differ from those of one"
        " process",
        "give `--sync-batchnorm` to normalize over the whole batch",
    ),
    **dict.fromkeys(
        (
            "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D",
        ),
        _MASKS,
    ),
}  # fmt: skip


def _is_of_whole_batches(script: Script, call: ast.Call) -> bool:
    return (
        script.constant(argument(call, "synchronized")) is True
        or script.constant(argument(call, "trainable")) is False
    )


def mixing_losses(program: ScriptProgram) -> Iterator[Finding]:
    """Finds losses and metrics that mix a batch's rows, and the script's own functions that may."""
    if not _computes_shares(program):
        return
    for script, call in program.calls():
        if method(call) != "compile":
            continue
        for given in (
            argument(call, "loss", 1),
            argument(call, "metrics", 3),
            argument(call, "weighted_metrics", 4),
        ):
            for each in _parts(script, given):
                if says := _why_gathered(script, each):
                    yield at(script, each, "gathered", Severity.NOTE, says, _PROVE)


def assigned_states(program: ScriptProgram) -> Iterator[Finding]:
    """Finds variables that a layer or `train_step` assigns: counts, moving averages, codebooks."""
    if not _computes_shares(program):
        return
    for script, call in program.calls():
        function = script.function_around(call)
        if (
            method(call) in _ASSIGN
            and isinstance(call.func, ast.Attribute)
            and function is not None
            and function.name in _OF_STEP
        ):
            says = (
                "how the workers' values of this variable become that of one process (as their sum"
                " or mean, say) is found out on the first batch; where none of these does, batches"
                " are not split"
            )
            yield at(
                script,
                call,
                "assigned-state",
                Severity.NOTE,
                says,
                "`syrtos verify` shows its difference from one process",
            )


_ASSIGN = frozenset({"assign", "assign_add", "assign_sub"})
_OF_STEP = frozenset({"call", "train_step", "test_step"})
_PROVE = (
    "`syrtos verify` shows its difference from one process; large outputs cost least where the"
    " function treats each row by itself"
)


def _why_gathered(script: Script, node: ast.expr) -> str:
    name = script.constant(node)
    called = node.func if isinstance(node, ast.Call) else node
    last = (
        script.meaning(called).rpartition(".")[2]
        if isinstance(called, ast.Name | ast.Attribute)
        else ""
    )
    if (isinstance(name, str) and name.lower() in _MIXING) or (
        last.lower() in _MIXING and "keras" in script.meaning(called)
    ):
        return (
            "this loss is computed on the outputs of all workers, which are gathered in each step:"
            " it is no mean over the rows of a batch"
        )
    if isinstance(called, ast.Name) and (
        called.id in script.functions or _is_own_class(script, called.id)
    ):
        return (
            f"whether `{called.id}` is a mean over the rows of a batch is found out on the first"
            " batch; where it is not, the outputs of all workers are gathered for it in each step"
        )
    return ""


def _is_own_class(script: Script, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in script.tree.body)


def _parts(script: Script, node: ast.expr | None) -> Iterator[ast.expr]:
    """Yields the losses or metrics in lists and dictionaries, and those that a name stands for."""
    if isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from _parts(script, each)
    elif isinstance(node, ast.Dict):
        for each in node.values:
            yield from _parts(script, each)
    elif isinstance(node, ast.Name) and len(values := script.assigned_values.get(node.id, [])) == 1:
        yield from _parts(script, values[0])
    elif node is not None:
        yield node


def _fixed_rows(script: Script, call: ast.Call) -> int:
    """Returns the number of rows that a batch of the model must have; 0 if it may have any."""
    shape = argument(call, "batch_shape") or argument(call, "batch_input_shape")
    first = shape.elts[0] if isinstance(shape, ast.Tuple | ast.List) and shape.elts else None
    if first is None and method(call) in ("Input", "InputLayer"):
        first = argument(call, "batch_size")
    rows = script.constant(first)
    return rows if isinstance(rows, int) and rows > 1 and _is_of_keras(script, call) else 0


def _is_of_keras(script: Script, call: ast.Call) -> bool:
    return script.meaning(call.func).startswith("keras.")


def _computes_shares(program: ScriptProgram) -> bool:
    on_torch = machine_packages.chosen_backend(settings.environment())[0] == "torch"
    return on_torch and not program.dialect and program.batch != "per-worker"
