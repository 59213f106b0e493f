"""Rules about the Horovod and SMDDP calls a script must make: exchanges and the first broadcast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, of_optimizer, on_one_rank, trains
from syrtos.doctor.script import Script, argument, method

_WRAPPERS = (
    "DistributedOptimizer",
    "DistributedGradientTape",
    "PartialDistributedOptimizer",
    "PartialDistributedGradientTape",
    "DistributedAdasumOptimizer",
    "create_distributed_optimizer",
)
_BEGIN = (
    "BroadcastGlobalVariablesCallback", "broadcast_variables", "broadcast_global_variables", "BroadcastGlobalVariablesHook", "broadcast_parameters",
    "TensorFlowKerasState",
    "KerasState", "TensorFlowState", "broadcast_object",
)  # fmt: skip
_NOT_SERVED = ("horovod.ray", "horovod.spark", "horovod.torch", "horovod.mxnet")
_COLLECTIVE = frozenset(
    {
        "allreduce",
        "allgather",
        "broadcast",
        "broadcast_object",
        "broadcast_variables",
        "alltoall",
        "reducescatter",
        "barrier",
        "grouped_allreduce",
        "oob_allreduce",
        "allgather_object",
        "join",
    }
)


def find_unwrapped(program: ScriptProgram) -> Iterator[Finding]:
    """Finds scripts that wrap no optimizer and no tape: their workers never exchange gradients."""
    if (
        not program.dialect
        or not trains(program)
        or program.uses(*_WRAPPERS, "allreduce", "grouped_allreduce", "oob_allreduce")
    ):
        return
    for script, call in program.calls():
        if of_optimizer(script, call):
            yield at(
                script,
                call,
                "not-wrapped",
                Severity.WRONG,
                f"the script starts {program.dialect}, but no optimizer or tape is wrapped: every"
                " worker trains a model of its own",
                "wrap it: `optimizer = hvd.DistributedOptimizer(optimizer)`",
            )
            return


def broadcast(program: ScriptProgram) -> Iterator[Finding]:
    """Finds scripts in which nothing gives all workers the weights of rank 0."""
    if not program.dialect or not trains(program) or program.uses(*_BEGIN):
        return
    for script, call in program.calls():
        if method(call) in _WRAPPERS:
            says = (
                "nothing broadcasts the first weights. syrtos does before the first step; under"
                f" {program.dialect} itself, workers with unequal weights would stay unequal"
            )
            yield at(
                script,
                call,
                "missing-broadcast",
                Severity.NOTE,
                says,
                "add `hvd.callbacks.BroadcastGlobalVariablesCallback(0)`, or"
                " `hvd.broadcast_variables(model.variables, 0)` before the first step",
            )
            return


def wrapped_twice(program: ScriptProgram) -> Iterator[Finding]:
    """Finds optimizers that reduce gradients which another wrapper has reduced."""
    if not program.dialect:
        return
    for script in program.scripts:
        tapes = [call for call in script.calls if method(call).endswith("DistributedGradientTape")]
        for call in script.calls:
            if (
                method(call) not in _WRAPPERS
                or method(call).endswith("GradientTape")
                or not call.args
            ):
                continue
            if _is_wrapped(script, call.args[0], call):
                yield _wrapped_twice(
                    script,
                    call,
                    "this optimizer is wrapped already, so gradients are exchanged twice in each"
                    " step",
                    "wrap it once",
                )
            elif tapes and _applies(script, call):
                yield _wrapped_twice(
                    script,
                    call,
                    "both the tape and the optimizer are wrapped, so gradients are exchanged twice"
                    " in each step",
                    "wrap the tape or the optimizer, not both",
                )


def _wrapped_twice(script: Script, call: ast.Call, says: str, fix: str) -> Finding:
    return at(script, call, "wrapped-twice", Severity.WRONG, says, fix)


def _is_wrapped(script: Script, node: ast.expr, call: ast.Call) -> bool:
    """Returns whether ``node``, the argument of the wrapper ``call``, is wrapped already.

    A node is wrapped if it is a call of a wrapper, or a name to which a wrapper's result was
    assigned before this line.
    """
    if isinstance(node, ast.Call):
        return method(node) in _WRAPPERS
    if not isinstance(node, ast.Name):
        return False
    before = [
        value
        for value in script.assigned_values.get(node.id, [])
        if getattr(value, "lineno", 0) < call.lineno and _same_branch(script, value, call)
    ]
    return (
        bool(before)
        and isinstance(last := max(before, key=lambda value: value.lineno), ast.Call)
        and method(last) in _WRAPPERS
    )


def _same_branch(script: Script, first: ast.AST, second: ast.AST) -> bool:
    """Returns whether both nodes may run: in one function, not in two branches of one condition."""
    if script.function_around(first) is not script.function_around(second):
        return False
    outer = [node for node in script.around(first) if isinstance(node, ast.If)]
    for node in script.around(second):
        if isinstance(node, ast.If) and node in outer:
            return _branch(node, first) == _branch(node, second)
    return True


def _branch(condition: ast.If, node: ast.AST) -> bool:
    inside = {id(inner) for statement in condition.body for inner in ast.walk(statement)}
    return id(node) in inside


def _applies(script: Script, call: ast.Call) -> bool:
    """Returns whether the wrapped optimizer applies gradients in the script's own loop."""
    around = script.parents.get(call)
    names = (
        [t.id for t in around.targets if isinstance(t, ast.Name)]
        if isinstance(around, ast.Assign)
        else []
    )
    return any(
        method(each) in ("apply_gradients", "apply")
        and isinstance(each.func, ast.Attribute)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id in names
        for each in script.calls
    )


def old_callbacks(program: ScriptProgram) -> Iterator[Finding]:
    """Finds callbacks that are called as before Horovod 0.20, without ``initial_lr``."""
    for script, call in program.calls():
        if (
            method(call) in ("LearningRateWarmupCallback", "LearningRateScheduleCallback")
            and argument(call, "initial_lr", 0) is None
            and not any(k.arg is None for k in call.keywords)
        ):
            yield at(
                script,
                call,
                "dead-api",
                Severity.BREAKS,
                f"`{method(call)}` needs `initial_lr` since Horovod 0.20 (TypeError)",
                "add `initial_lr=`, the learning rate after the warm-up: the one of the optimizer",
            )


def other_frameworks(program: ScriptProgram) -> Iterator[Finding]:
    """Finds imports of parts of Horovod that syrtos does not serve."""
    for script in program.scripts:
        for node in ast.walk(script.tree):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += (
                [f"{node.module}.{name.name}" for name in node.names]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for part in {".".join(name.split(".")[:2]) for name in names} & set(_NOT_SERVED):
                says = f"syrtos does not serve `{part}`"
                yield at(
                    script,
                    node,
                    "dead-api",
                    Severity.BREAKS,
                    says,
                    "start the function that it would run as a script of its own: `syrtos run"
                    " -n 2`",
                )


def one_rank_alone(program: ScriptProgram) -> Iterator[Finding]:
    """Finds functions that all workers must call together, and that only some of them call."""
    for script, call in program.calls():
        path = script.written_path(call.func) or ""
        ours = path.startswith(("horovod.", "smdistributed.", "syrtos."))
        if ours and method(call) in _COLLECTIVE and on_one_rank(script, call):
            yield at(
                script,
                call,
                "rank-0-only",
                Severity.BREAKS,
                f"`{method(call)}` waits for all workers, and only some call it: the run ends with"
                " an error that names the ranks",
                "call it on all workers, and use its result on one",
            )
        elif (
            not program.dialect
            and isinstance(call.func, ast.Attribute)
            and method(call) in ("fit", "evaluate", "predict", "train_on_batch")
            and _for_one_rank(script, call)
        ):
            yield at(
                script,
                call,
                "rank-0-only",
                Severity.BREAKS,
                f"`{method(call)}` is shared by all workers, and only some call it: the run ends"
                " with an error",
                "call it on all workers: each computes a part, and all get the same result",
            )


def _for_one_rank(script: Script, call: ast.Call) -> bool:
    """Returns whether a call runs only where a condition about ranks holds.

    ``f(...).fit(...)`` does not count.
    """
    # `f(...).fit(...)` is of an API that gives only one worker: the condition is about machines,
    # not about ranks
    return on_one_rank(script, call) and not (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "fit"
        and isinstance(call.func.value, ast.Call)
    )
