"""Rules about a script's own training loops, and processes and devices that workers would share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, depends_on, on_one_rank
from syrtos.doctor.script import Script, argument, method

_SPLITS = (
    "experimental_distribute_dataset", "distribute_datasets_from_function", "experimental_run_v2", "DistributedGradientTape", "DistributedOptimizer",
    "ClusterCoordinator",
    "shard", "DataParallel", "experimental_make_numpy_dataset", "make_array_from_process_local_data", "NamedSharding",
)  # fmt: skip
_OF_FIT = frozenset({"train_step", "call", "test_step"})
_RUNS = {
    "wandb.init": "Weights & Biases",
    "mlflow.start_run": "MLflow",
    "comet_ml.Experiment": "Comet",
    "neptune.init_run": "Neptune",
    "neptune.init": "Neptune",
}
_SERVERS = (
    "http.server.HTTPServer",
    "socketserver.TCPServer",
    "uvicorn.run",
    "tensorflow.profiler.experimental.server.start",
)


def own_loop(program: ScriptProgram) -> Iterator[Finding]:
    """Finds a loop with an eager tape, in which nothing splits the batches."""
    if (
        program.dialect
        or program.rank_aware
        or program.uses(*_SPLITS)
        or _runs_on_strategy(program)
    ):
        return
    for script, call in program.calls():
        if method(call) != "GradientTape":
            continue
        function = script.function_around(call)
        if not _is_applied(script, call) or (
            function is not None
            and (_belongs_to_model(script, function) or _is_graph(script, function))
        ):
            continue
        says = (
            "this loop computes eagerly, so each worker computes whole batches: the result is that"
            " of one process, and so is the speed"
        )
        fix = (
            "decorate the function that computes and applies the gradients of a batch with"
            " `@tf.function`: its calls are then divided over the workers; or train by `model.fit`"
            " (a custom `train_step` keeps the loop's code)"
        )
        yield at(script, call, "custom-loop-not-split", Severity.SLOW, says, fix)
        return


def compiled_updates(program: ScriptProgram) -> Iterator[Finding]:
    """Finds optimizer updates in functions that XLA compiles, which can't contain an exchange.

    In loops without a strategy such functions are partitioned, and not compiled.
    """
    if not (program.dialect or program.uses(*_SPLITS) or _runs_on_strategy(program)):
        return
    for script in program.scripts:
        for function in script.functions.values():
            compiled = [
                d
                for d in function.decorator_list
                if isinstance(d, ast.Call) and script.constant(argument(d, "jit_compile")) is True
            ]
            applies = [
                inner
                for inner in ast.walk(function)
                if isinstance(inner, ast.Call)
                and method(inner) in ("apply_gradients", "apply", "minimize")
            ]
            if compiled and applies and not isinstance(script.parents.get(function), ast.ClassDef):
                yield at(
                    script,
                    applies[0],
                    "jit-compile",
                    Severity.BREAKS,
                    "XLA compiles this function, and can't compile the exchange of gradients that"
                    " the update begins with",
                    "leave `jit_compile=True` away: syrtos lets XLA compile the update by itself",
                )


def servers(program: ScriptProgram) -> Iterator[Finding]:
    """Finds a strategy that needs parameter servers."""
    for script, call in program.calls():
        if method(call) == "ParameterServerStrategy" and "tensorflow" in (
            script.written_path(call.func) or ""
        ):
            yield at(
                script,
                call,
                "parameter-servers",
                Severity.BREAKS,
                "this strategy needs parameter servers, and the run ends without them",
                "start it by `syrtos run --ps 1 -n 2`",
            )
            return


def _runs_on_strategy(program: ScriptProgram) -> bool:
    return any(
        method(call) == "run"
        and isinstance(call.func, ast.Attribute)
        and "strategy" in ast.unparse(call.func.value).lower()
        for _, call in program.calls()
    )


def _belongs_to_model(script: Script, function: ast.FunctionDef) -> bool:
    """Returns whether `fit` calls a function: its class has `train_step`, `test_step` or `call`."""
    around = script.parents.get(function)
    return isinstance(around, ast.ClassDef) and any(
        isinstance(inner, ast.FunctionDef) and inner.name in _OF_FIT for inner in around.body
    )


def _is_graph(script: Script, function: ast.FunctionDef) -> bool:
    """Returns whether a function, or one around it, is a `tf.function`."""
    around = [function, *(o for o in script.around(function) if isinstance(o, ast.FunctionDef))]
    decorated = [
        script.written_path(getattr(decorator, "func", decorator))
        for outer in around
        for decorator in outer.decorator_list
    ]
    return any((path or "").endswith(".function") for path in decorated) or any(
        (script.written_path(call.func) or "").endswith(".function")
        and any(ast.unparse(arg).endswith(function.name) for arg in call.args)
        for call in script.calls
    )


def _is_applied(script: Script, call: ast.Call) -> bool:
    """Returns whether an optimizer applies gradients anywhere in the script."""
    # a tape alone may be for saliency maps
    return any(
        method(each) in ("apply_gradients", "apply")
        and isinstance(each.func, ast.Attribute)
        and "opt" in ast.unparse(each.func.value).lower()
        for each in script.calls
    )


def processes(program: ScriptProgram) -> Iterator[Finding]:
    """Finds inputs, trackers, ports and devices of which all workers of a machine share one."""
    for script, call in program.calls():
        path = script.meaning(call.func)
        if (
            isinstance(call.func, ast.Name)
            and call.func.id == "input"
            and "input" not in script.imported_paths
            and "input" not in script.functions
            and "input" not in script.assigned_values
        ):
            yield at(
                script,
                call,
                "terminal",
                Severity.BREAKS,
                "workers can't ask at the terminal: their standard input is empty (EOFError)",
                "read it from an argument, or pipe it: `echo yes | syrtos run ...`",
            )
        elif path in _RUNS and not on_one_rank(script, call):
            yield at(
                script,
                call,
                "tracker-on-every-rank",
                Severity.WRONG,
                f"every worker starts a run of {_RUNS[path]}: there will be {program.workers} of"
                " them",
                "start it on one worker (`if syrtos.rank() == 0:`), or use `syrtos run --track` in"
                " its place",
            )
        elif path in _SERVERS and not on_one_rank(script, call):
            yield at(
                script,
                call,
                "port-on-every-rank",
                Severity.BREAKS,
                "every worker listens on this port, and all but the first fail",
                "do it on one worker: `if syrtos.rank() == 0:`",
            )
        elif path.endswith("TPUStrategy") or path.endswith("TPUClusterResolver"):
            yield from _tpu(script, call)
        elif (
            method(call) == "set_visible_devices"
            and len(call.args) > 0
            and (found := _one_device(program, script, call))
        ):
            yield found


def _tpu(script: Script, call: ast.Call) -> Iterator[Finding]:
    if not any(
        isinstance(outer, ast.Try) and outer.handlers for outer in script.around(call)
    ) and not any(isinstance(outer, ast.If) for outer in script.around(call)):
        yield at(
            script,
            call,
            "tpu",
            Severity.BREAKS,
            "there are no TPUs for it here",
            "use tf.distribute.MirroredStrategy(), whose replicas are the workers of the run; or"
            " the backend JAX",
        )


def _one_device(program: ScriptProgram, script: Script, call: ast.Call) -> Finding | None:
    chosen = call.args[0]
    if not isinstance(chosen, ast.Subscript) or not program.uses("fit", "apply_gradients", "apply"):
        return None
    if depends_on(script, chosen.slice, "rank") and not depends_on(
        script, chosen.slice, "local_rank"
    ):
        return at(
            script,
            call,
            "devices",
            Severity.WRONG,
            "GPUs are chosen by the rank among all hosts: on the second host there is no such GPU",
            "use the rank within the host: `hvd.local_rank()`",
        )
    if isinstance(script.constant(chosen.slice), int) and script.constant(chosen.slice) is not None:
        return at(
            script,
            call,
            "devices",
            Severity.NOTE,
            "every worker of a host would use this one GPU",
            "leave it away: syrtos gives each worker a GPU of its own, by its local rank",
        )
    return None


def inputs(program: ScriptProgram) -> Iterator[Finding]:
    """Finds an input pipeline that every worker runs whole."""
    if program.dialect:
        return
    for script, call in program.calls():
        if method(call) in (
            "from_generator",
            "flow_from_directory",
            "flow_from_dataframe",
        ) and program.uses("fit", "fit_generator"):
            says = (
                "every worker reads and prepares all records, and keeps its rows of each batch:"
                " input does not get faster with more workers"
            )
            yield at(
                script,
                call,
                "slow-input",
                Severity.NOTE,
                says,
                "if `syrtos report` says that input takes long, let each worker read its own"
                " records: `syrtos.data`",
            )
            return
