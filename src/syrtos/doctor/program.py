"""A script with its local modules, and how its workers share their work."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from syrtos.doctor.script import Script, canonical, method, read, with_local_modules

# Packages whose scripts have a batch for each worker, and say themselves what is exchanged.
_PER_WORKER = {"horovod": "Horovod", "smdistributed": "SMDDP"}
_RANK_AWARE = ("horovod.", "smdistributed.", "syrtos.", "byteps.")
_ONE_RANK = re.compile(
    r"rank|\btask_?id\b|\btask_index\b|is_chief|is_main|is_master|\bmaster\b|\bchief\b|process_index|process_id|worker_id|worker_index|SMDATAPARALLEL|SM_CURRENT_HOST|current_host",
    re.IGNORECASE,
)
_TRAINING = frozenset({"fit", "fit_generator", "train_on_batch", "apply_gradients", "minimize"})


@dataclasses.dataclass(frozen=True)
class ScriptProgram:
    """The code that is to run on workers, and how it will be run.

    Attributes:
        scripts: the script and the local modules it imports, the script first.
        workers: number of workers it will run on.
        batch: "global" or "per-worker", as for `syrtos run --batch`.
        scaled: whether `--scale-lr` will be given.
    """

    scripts: Sequence[Script]
    workers: int = 2
    batch: str = "global"
    scaled: bool = False

    @functools.cached_property
    def dialect(self) -> str:
        """The name "Horovod" or "SMDDP" for their scripts; empty for all others.

        Scripts of both have a batch for each worker.
        """
        roots = {
            path.partition(".")[0]
            for script in self.scripts
            for path in script.imported_paths.values()
        }
        return next((words for root, words in _PER_WORKER.items() if root in roots), "")

    @functools.cached_property
    def rank_aware(self) -> bool:
        """Returns whether the script asks for its rank."""
        return any(is_rank(script, call) for script in self.scripts for call in script.calls)

    def calls(self) -> Iterator[tuple[Script, ast.Call]]:
        """Yields the calls in all files, each with its script."""
        for script in self.scripts:
            for call in script.calls:
                yield script, call

    def uses(self, *names: str) -> bool:
        """Returns whether a name or an attribute in any file is one of ``names``."""
        return any(
            (isinstance(node, ast.Attribute) and node.attr in names)
            or (isinstance(node, ast.Name) and node.id in names)
            for script in self.scripts
            for node in ast.walk(script.tree)
        )


def load(
    path: Path, workers: int = 2, batch: str = "global", scaled: bool = False
) -> ScriptProgram:
    """Parses a script and its local modules.

    Raises:
        ConfigurationError: the script can't be read or parsed.
    """
    return ScriptProgram(with_local_modules(read(path)), workers, batch, scaled)


def is_rank(script: Script, node: ast.AST, *names: str) -> bool:
    """Returns whether a node calls ``rank()`` or ``local_rank()``, or the given names instead.

    Functions of Horovod, SMDDP, BytePS and syrtos count.
    """
    if not isinstance(node, ast.Call) or method(node) not in (names or ("rank", "local_rank")):
        return False
    return (script.written_path(node.func) or "").startswith(_RANK_AWARE)


def depends_on(script: Script, node: ast.AST | None, *names: str) -> int:
    """Counts how often an expression asks for the number of workers, itself or through its names.

    Other ``names`` of functions and attributes may be given instead. Of several values of a name,
    the one with the largest count is taken.
    """
    return (
        0
        if node is None
        else _depends(
            script, node, names or ("size", "num_replicas_in_sync", "local_size"), frozenset()
        )
    )


def _depends(script: Script, node: ast.AST, names: tuple[str, ...], seen: frozenset[str]) -> int:
    count = 0
    for inner in ast.walk(node):
        if is_rank(script, inner, *names) or (
            isinstance(inner, ast.Attribute)
            and inner.attr in names
            and not isinstance(script.parents.get(inner), ast.Call)
        ):
            count += 1
        # A name may be given a value in which it stands itself.
        elif isinstance(inner, ast.Name) and inner.id not in seen:
            values = script.assigned_values.get(inner.id, [])
            count += max(
                (_depends(script, value, names, seen | {inner.id}) for value in values), default=0
            )
    return count


def on_one_rank(script: Script, node: ast.AST, deep: bool = True) -> bool:
    """Returns whether a node runs only where a condition about ranks holds.

    The condition is one of the node itself or, if ``deep``, of all calls of the function that it is
    in.
    """
    inner: ast.AST = node
    for outer in script.around(node):
        if (
            isinstance(outer, ast.If | ast.IfExp | ast.While)
            and inner is not outer.test
            and _about_ranks(script, outer.test)
        ):
            return True
        if isinstance(outer, ast.BoolOp) and any(
            _about_ranks(script, value) for value in outer.values if value is not inner
        ):
            return True
        if isinstance(outer, ast.stmt) and _left_before(script, outer):
            return True
        inner = outer
    function = script.function_around(node)
    if function is None or not deep:
        return False
    calls = [call for call in script.calls if method(call) == function.name]
    return bool(calls) and all(on_one_rank(script, call, deep=False) for call in calls)


def _about_ranks(script: Script, test: ast.expr) -> bool:
    text = ast.unparse(test)
    named = [
        ast.unparse(value)
        for name in ast.walk(test)
        if isinstance(name, ast.Name)
        for value in script.assigned_values.get(name.id, [])[:1]
    ]
    return any(_ONE_RANK.search(each) for each in (text, *named))


def _left_before(script: Script, statement: ast.stmt) -> bool:
    """Returns whether an earlier statement of the same block leaves it on other ranks.

    An example is ``if rank != 0: return``.
    """
    around = script.parents.get(statement)
    for block in (getattr(around, name, None) for name in ("body", "orelse", "finalbody")):
        if isinstance(block, list) and statement in block:
            earlier = block[: block.index(statement)]
            return any(
                isinstance(e, ast.If)
                and not e.orelse
                and _about_ranks(script, e.test)
                and _leaves(e.body[-1])
                for e in earlier
            )
    return False


def _leaves(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break) or (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and method(statement.value) in ("exit", "_exit", "quit")
    )


def trains(program: ScriptProgram) -> bool:
    """Returns whether any file calls a method that trains."""
    return any(method(call) in _TRAINING for _, call in program.calls())


def of_optimizer(script: Script, call: ast.Call) -> bool:
    """Returns whether a call makes an optimizer of Keras or TensorFlow."""
    path = canonical(script.written_path(call.func) or "")
    last = path.rpartition(".")[2]
    return (
        path.startswith(("keras.optimizers.", "tensorflow.train.", "tensorflow.compat.v1.train."))
    ) and last.endswith(_OPTIMIZERS)


_OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "RMSprop", "RMSProp", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lamb", "Lion", "Adafactor", "Muon", "Optimizer",
)  # fmt: skip
