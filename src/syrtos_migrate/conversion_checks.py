"""Checks whether a conversion understands a script of Horovod or SMDDP.

A conversion must not guess what it does not understand.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from syrtos.doctor.script import Script, argument, method

_ROOTS = ("horovod", "smdistributed")
RANKS = frozenset({"rank", "local_rank", "cross_rank", "node_rank"})
SIZES = frozenset({"size", "num_workers"})
_HOSTS = frozenset({"local_size", "cross_size"})
_OURS = ("WORKERS", "LearningRateSchedule", "LearningRateWarmup")
# Calls in which a rank chooses no data: seeds, texts, and devices.
_SEEDS = frozenset(
    {
        "seed",
        "set_seed",
        "set_random_seed",
        "RandomState",
        "default_rng",
        "print",
        "format",
        "str",
        "info",
        "join",
        "write",
        "debug",
        "warning",
    }
)
_DEVICES = frozenset({"set_visible_devices", "set_memory_growth"})
_SEQUENCES = ("Sequence", "PyDataset")
_OWN_BATCHES = frozenset({"train_on_batch", "fit_generator"})
_DEFAULT_BATCHES = frozenset(
    {
        "image_dataset_from_directory",
        "text_dataset_from_directory",
        "flow",
        "flow_from_directory",
        "flow_from_dataframe",
    }
)
_OTHER_BATCHES = frozenset(
    {
        "make_batched_features_dataset",
        "make_csv_dataset",
        "from_generator",
        "ragged_batch",
        "dense_to_ragged_batch",
        "map_and_batch",
        "DataLoader",
    }
)
_BATCHED = frozenset({"batch", "padded_batch", *_DEFAULT_BATCHES})
_OF_FIT = frozenset(
    {
        "epochs",
        "batch_size",
        "steps_per_epoch",
        "callbacks",
        "validation_data",
        "verbose",
        "validation_split",
    }
)

Problem = tuple[int, str]


def speaks(script: Script) -> bool:
    """Returns whether the script imports Horovod or SMDDP."""
    return any(path.split(".")[0] in _ROOTS for path in script.imported_paths.values()) or bool(
        list(_star_imports(script))
    )


def problems(script: Script) -> list[Problem]:
    """Returns the line and reason of everything that a conversion would have to guess."""
    if not speaks(script):
        return []
    rules = (
        _star_imports,
        _clashes,
        _handed_over,
        _several_targets,
        _ranks,
        _sizes,
        _batches,
        _passes,
    )
    return sorted({problem for rule in rules for problem in rule(script)})


def trains(call: ast.Call) -> bool:
    """Returns whether a call of `fit` is a Keras model's, by its arguments or its object's name."""
    on = ast.unparse(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
    return isinstance(call.func, ast.Attribute) and (
        "model" in on or any(k.arg in _OF_FIT for k in call.keywords)
    )


def _exchange_function(script: Script, node: ast.AST) -> str:
    """Returns the name of the Horovod or SMDDP function that a node calls; empty for others."""
    path = (script.written_path(node.func) or "") if isinstance(node, ast.Call) else ""
    return path.rpartition(".")[2] if path.split(".")[0] in _ROOTS else ""


def _star_imports(script: Script) -> Iterator[Problem]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] in _ROOTS
            and any(name.name == "*" for name in node.names)
        ):
            yield node.lineno, "import names one by one: what a star brings is not known"


def _clashes(script: Script) -> Iterator[Problem]:
    for node in ast.walk(script.tree):
        name = (
            node.id
            if isinstance(node, ast.Name)
            else node.name
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else ""
        )
        if name in _OURS:
            yield (
                getattr(node, "lineno", 1),
                f"rename `{name}`: the converted script needs the name",
            )
            return


def _handed_over(script: Script) -> Iterator[Problem]:
    """Yields uses of the package itself as a value: as an argument, or in a dictionary."""
    aliases = {name for name, path in script.imported_paths.items() if path.split(".")[0] in _ROOTS}
    arguments = {node.arg for node in ast.walk(script.tree) if isinstance(node, ast.arg)}
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Name)
            and node.id in aliases
            and (
                node.id in arguments
                or not isinstance(script.parents.get(node), ast.Attribute | ast.Call)
            )
        ):
            yield (
                node.lineno,
                f"`{node.id}` is handed over as a value: what is done with it is not known",
            )
            return


# This is asked at each name of a script.
@functools.lru_cache(maxsize=8)
def _rank_names(script: Script, names: frozenset[str]) -> set[str]:
    """Returns the names that are given a rank or a size anywhere in the script.

    ``names`` are the functions that return the rank or the size.
    """
    return {
        name
        for name, values in script.assigned_values.items()
        if any(_exchange_function(script, value) in names for value in values)
    }


def _several_targets(script: Script) -> Iterator[Problem]:
    """Yields ranks and sizes that are not given to one name of their own."""
    arguments = {node.arg for node in ast.walk(script.tree) if isinstance(node, ast.arg)}
    for name in _rank_names(script, RANKS | SIZES):
        values = script.assigned_values[name]
        if len(values) > 1 or name in arguments:
            yield (
                values[0].lineno,
                (
                    f"`{name}` is a rank or a number of workers here, and something else elsewhere:"
                    " use two names"
                ),
            )
    for node in ast.walk(script.tree):
        if _exchange_function(script, node) in RANKS | SIZES:
            around = script.parents.get(node)
            owner = script.parents.get(around) if around else None
            alone = (
                isinstance(around, ast.Assign)
                and len(around.targets) == 1
                and isinstance(around.targets[0], ast.Name)
                and not isinstance(owner, ast.ClassDef)
            )
            tuples = isinstance(around, ast.Tuple) and isinstance(owner, ast.Assign | ast.Return)
            if tuples or (
                isinstance(around, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign)
                and not alone
            ):
                yield (
                    getattr(node, "lineno", 1),
                    f"give `{ast.unparse(node)}` to one name of its own: `rank = hvd.rank()`",
                )


def _is_call_or_name(script: Script, node: ast.AST, names: frozenset[str]) -> bool:
    return _exchange_function(script, node) in names or (
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in _rank_names(script, names)
    )


def _is_share(script: Script, outer: ast.AST) -> bool:
    """Returns whether a node gives this worker's part of something.

    Examples are `shard(size, rank)`, `load(rank, size)`, `x[rank::size]` and `slice(rank, n,
    size)`.
    """
    if isinstance(outer, ast.Slice):
        parts = [outer.lower, outer.upper, outer.step]
    elif (
        isinstance(outer, ast.Call)
        and not _exchange_function(script, outer)
        and method(outer) not in ("fit", "print", "format", "append")
    ):
        parts = [*outer.args, *(keyword.value for keyword in outer.keywords)]
    else:
        return False
    given = [each for each in parts if each is not None]
    return any(_is_call_or_name(script, each, RANKS) for each in given) and any(
        _is_call_or_name(script, each, SIZES) for each in given
    )


def _ranks(script: Script) -> Iterator[Problem]:
    for node in ast.walk(script.tree):
        if _is_call_or_name(script, node, RANKS) and not _is_harmless(script, node):
            yield (
                getattr(node, "lineno", 1),
                (
                    f"what `{ast.unparse(node)}` chooses here is not understood: write what all"
                    " workers do together"
                ),
            )


def _is_harmless(script: Script, node: ast.AST) -> bool:
    """Returns whether 0 in place of a rank means what one process does for all workers."""
    inner = node
    for outer in script.around(node):
        if _is_share(script, outer) or isinstance(
            outer,
            ast.Assign | ast.JoinedStr | ast.Expr | ast.If | ast.IfExp | ast.Compare | ast.BoolOp,
        ):
            return _is_decided(outer, inner, node)
        if isinstance(outer, ast.Call) and method(outer) in _SEEDS | _DEVICES:
            return True
        if (
            isinstance(outer, ast.Subscript)
            and inner is outer.slice
            and any(word in ast.unparse(outer.value).lower() for word in ("gpu", "device"))
        ):
            return True
        if (
            isinstance(outer, ast.BinOp)
            and isinstance(outer.op, ast.Mod)
            and inner is not outer.left
            and isinstance(outer.left, ast.Constant | ast.JoinedStr)
        ):
            return True
        if isinstance(outer, ast.keyword) and (outer.arg or "") in (
            "seed",
            "random_state",
            "verbose",
        ):
            return True
        inner = outer
    return False


def _is_decided(outer: ast.AST, inner: ast.AST, node: ast.AST) -> bool:
    if isinstance(outer, ast.Compare):
        other = [outer.left, *outer.comparators]
        return (
            inner is node
            and len(other) == 2
            and any(isinstance(each, ast.Constant) for each in other)
        )
    if isinstance(outer, ast.Assign):
        return (
            inner is node
            or "visible_device" in ast.unparse(outer.targets[0])
            or "seed" in ast.unparse(outer.targets[0]).lower()
        )
    if isinstance(outer, ast.If | ast.IfExp):
        return inner is node and inner is outer.test
    return True


def _sizes(script: Script) -> Iterator[Problem]:
    for node in ast.walk(script.tree):
        if _exchange_function(script, node) in _HOSTS and not any(
            isinstance(o, ast.Call) and method(o) in _SEEDS for o in script.around(node)
        ):
            yield (
                getattr(node, "lineno", 1),
                f"`{ast.unparse(node)}` counts hosts or workers of one: one process has neither",
            )
        elif _is_call_or_name(script, node, SIZES) and isinstance(
            around := script.parents.get(node), ast.Compare
        ):
            others = [each for each in (around.left, *around.comparators) if each is not node]
            if not all(isinstance(each, ast.Constant) and each.value in (0, 1) for each in others):
                yield around.lineno, f"`{ast.unparse(around)}` asks for a number of workers"
        elif _is_call_or_name(script, node, SIZES) and any(
            isinstance(o, ast.BinOp)
            and isinstance(o.op, ast.Mod)
            and isinstance(script.parents.get(o), ast.Compare)
            for o in script.around(node)
        ):
            yield (
                getattr(node, "lineno", 1),
                "this chooses every N-th of something: write what all workers do together",
            )


def _batches(script: Script) -> Iterator[Problem]:
    """Yields batches whose size is not where a conversion finds it."""
    batched = any(method(call) in _BATCHED for call in script.calls)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).rpartition(".")[2] in _SEQUENCES for base in node.bases
        ):
            yield node.lineno, "batches of this class must be WORKERS times as large"
    for call in script.calls:
        name = method(call)
        if name in _OWN_BATCHES and not (name == "fit_generator" and batched):
            yield call.lineno, f"batches given to `{name}` must be WORKERS times as large"
        elif name in _OTHER_BATCHES and not batched:
            yield call.lineno, f"batches of `{name}` must be WORKERS times as large"
        elif (
            name in _DEFAULT_BATCHES
            and isinstance(call.func, ast.Attribute)
            and not isinstance(
                argument(call, "batch_size", 2 if name == "flow" else None), ast.expr
            )
        ):
            yield call.lineno, f"`{name}` has its default of 32 for a batch: write `batch_size=32`"
        elif name == "fit" and trains(call):
            yield from _fit(call, batched)


def _fit(call: ast.Call, batched: bool) -> Iterator[Problem]:
    if any(isinstance(each, ast.Starred) for each in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        yield call.lineno, "arguments of `fit` behind a star are not known"
    elif argument(call, "batch_size", 2) is None and argument(call, "y", 1) is None and not batched:
        yield (
            call.lineno,
            (
                "where the batches that `fit` is given are made is not known: they must be WORKERS"
                " times as large"
            ),
        )


def _passes(script: Script) -> Iterator[Problem]:
    for call in script.calls:
        passes = argument(call, "backward_passes_per_step")
        if (
            _exchange_function(script, call)
            and passes is not None
            and script.constant(passes) != 1
            and script.constant(argument(call, "average_aggregated_gradients")) is not True
        ):
            yield (
                call.lineno,
                (
                    "`backward_passes_per_step` adds gradients up, where Keras's"
                    " `gradient_accumulation_steps` averages: multiply the learning rate by the"
                    " passes, and say `average_aggregated_gradients=True`"
                ),
            )
