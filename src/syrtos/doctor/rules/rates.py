"""Rules about learning rates and numbers of steps where each worker has a batch of its own.

In a step N workers then train on N times the samples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, depends_on, of_optimizer, trains
from syrtos.doctor.rules.data import divides
from syrtos.doctor.script import Script, argument, method

_RATES = ("learning_rate", "lr")
_STEPS = "steps-times-workers"
_ALL_DATA = (
    "each worker trains on all of the data in each epoch: N workers take as long as one, for N"
    " times the epochs"
)
_SHARDS = ("shard", "experimental_distribute_dataset", "distribute_datasets_from_function")


def rates(program: ScriptProgram) -> Iterator[Finding]:
    """Finds learning rates that are not scaled with the number of workers, or scaled twice."""
    # only a batch of each worker's own makes the global batch grow with the number of workers
    if (
        not trains(program)
        or not (program.dialect or program.batch == "per-worker")
        or program.scaled
    ):
        return
    made = [(script, call) for script, call in program.calls() if of_optimizer(script, call)]
    scaled = _scaled_elsewhere(program)
    for script, call in program.calls():
        initial = argument(call, "initial_lr", 0)
        if (
            method(call) == "LearningRateWarmupCallback"
            and initial is not None
            and not depends_on(script, initial)
        ):
            says = "the warm-up ends at this rate, which is not multiplied by the number of workers"
            yield at(
                script,
                call,
                "lr-not-scaled",
                Severity.WRONG,
                says,
                "give it the rate of the optimizer: `initial_lr=lr * hvd.size()`",
            )
    for script, call in made:
        rate = _rate(call)
        times = (
            max((depends_on(script, factor) for factor in _products(script, rate)), default=0)
            if rate is not None
            else 0
        )
        if times > 1:
            yield at(
                script,
                call,
                "lr-not-scaled",
                Severity.WRONG,
                "the learning rate is multiplied by the number of workers twice",
                "multiply it once",
            )
        elif not scaled and not (rate is not None and depends_on(script, rate)):
            yield _not_scaled(program, script, call)


def _not_scaled(program: ScriptProgram, script: Script, call: ast.Call) -> Finding:
    says = (
        f"the learning rate stays as it is while {program.workers} workers train on"
        f" {program.workers} times the samples in a step"
    )
    if not program.dialect:
        return at(
            script,
            call,
            "lr-not-scaled",
            Severity.WRONG,
            says,
            "add `--scale-lr linear` (SGD; Adam-like optimizers often want `sqrt`) and"
            " `--warmup-epochs 5`, or leave `--batch per-worker` away",
        )
    fix = (
        "multiply it by `hvd.size()` for SGD (linear scaling) or its square root for Adam, with a"
        " warm-up of some epochs; or say nothing if it was tuned for all workers"
    )
    return at(script, call, "lr-not-scaled", Severity.WRONG, says, fix)


def _rate(call: ast.Call) -> ast.expr | None:
    named = [found for name in _RATES if (found := argument(call, name)) is not None]
    return named[0] if named else (call.args[0] if call.args else None)


def _products(script: Script, rate: ast.expr) -> Iterator[ast.expr]:
    """Yields the expression of a rate and, for a name, the values that it is given."""
    yield rate
    if isinstance(rate, ast.Name):
        yield from script.assigned_values.get(rate.id, [])


def _scaled_elsewhere(program: ScriptProgram) -> bool:
    """Returns whether a callback or a schedule sets learning rates.

    The result is also True if a rate depends on the number of workers. Assignments and keyword
    arguments count if their names are those of a rate.
    """
    for script in program.scripts:
        for node in ast.walk(script.tree):
            if isinstance(node, ast.Call) and "LearningRate" in method(node):
                return True
            if isinstance(node, ast.Assign | ast.AugAssign | ast.keyword) and depends_on(
                script, node.value
            ):
                names = (
                    [ast.unparse(t) for t in node.targets]
                    if isinstance(node, ast.Assign)
                    else [
                        (
                            ast.unparse(node.target)
                            if isinstance(node, ast.AugAssign)
                            else str(node.arg)
                        )
                    ]
                )
                if any(
                    name.split(".")[-1].lower().startswith("lr")
                    or "lr" in name.lower().split("_")
                    or "rate" in name.lower()
                    for name in names
                ):
                    return True
    return False


def steps(program: ScriptProgram) -> Iterator[Finding]:
    """Finds epochs of N times the samples, because each of N workers makes all of the steps."""
    if (
        not program.dialect
        or divides(program)
        or any(_divides_by_size(script, call) for script, call in program.calls())
    ):
        return
    for script, call in program.calls():
        if method(call) not in ("fit", "fit_generator") or depends_on(
            script, argument(call, "epochs")
        ):
            continue
        count = argument(call, "steps_per_epoch")
        if count is None or (
            script.constant(count) in (1, None) and isinstance(count, ast.Constant)
        ):
            if count is None and argument(call, "y", 1) is not None:
                yield at(
                    script,
                    call,
                    _STEPS,
                    Severity.SLOW,
                    _ALL_DATA,
                    "divide the data (`x[hvd.rank()::hvd.size()]`) or the epochs (`epochs //"
                    " hvd.size()`)",
                )
        elif not depends_on(script, count) and not _from_divided_data(script, count):
            says = (
                f"each of {program.workers} workers makes all `steps_per_epoch` steps with a batch"
                f" of its own: an epoch trains on {program.workers} times the samples"
            )
            yield at(
                script,
                call,
                _STEPS,
                Severity.WRONG,
                says,
                f"divide them: `steps_per_epoch={ast.unparse(count)} // hvd.size()`",
            )


def _divides_by_size(script: Script, call: ast.Call) -> bool:
    """Returns whether a call gives each worker a part of the data."""
    return method(call) in _SHARDS or (
        method(call) in ("take", "array_split", "split")
        and any(depends_on(script, value) for value in call.args)
    )


def _from_divided_data(script: Script, count: ast.expr) -> bool:
    """Returns whether a count comes from a length, maybe of this worker's part of the data."""
    return any(
        isinstance(inner, ast.Call) and method(inner) == "len" for inner in ast.walk(count)
    ) and bool(depends_on(script, count, "rank", "size"))
