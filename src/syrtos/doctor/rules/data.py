"""Rules about the data that each worker reads, and about its order."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, depends_on
from syrtos.doctor.script import Script, argument, method

_SEEDERS = re.compile(
    r"^(random\.seed|numpy\.random\.(seed|RandomState|default_rng)|tensorflow\.(random\.)?set_(random_)?seed|keras\.utils\.set_random_seed|random\.Random)$"
)
_OWN_NUMBERS = frozenset(
    {
        "os.urandom",
        "random.SystemRandom",
        "secrets.randbelow",
        "secrets.choice",
        "secrets.token_bytes",
        "secrets.SystemRandom",
    }
)
_CLOCKS = re.compile(
    r"\b(time\.time|time_ns|perf_counter|datetime|getpid|urandom|uuid|SystemRandom|secrets)\b"
)
_NO_DATA = frozenset(
    {
        "set_visible_devices",
        "set_memory_growth",
        "print",
        "format",
        "fit",
        "info",
        "str",
        "Checkpoint",
        "append",
        "load_data",
        "get_file",
        "fit_generator",
        "evaluate",
    }
)
# the part of a step's time that uneven shares may take before they count as slow
_IDLE = 1.1
_SPLITTING = ("fit", "fit_generator", "train_on_batch", "experimental_distribute_dataset")
_BATCHES = {"fit": ("batch_size", 2), "batch": ("batch_size", 0)}


def own_randomness(program: ScriptProgram) -> Iterator[Finding]:
    """Finds random numbers that syrtos can't make equal on all workers.

    They come from the clock, the number of the process or the operating system.
    """
    if program.dialect:
        # There each worker is to draw batches of its own.
        return
    says = (
        "each worker draws other random numbers here, so workers shuffle, split or initialize"
        " differently: the run ends at its check of the data, or trains on other samples than one"
        " process"
    )
    for script, call in program.calls():
        path = script.meaning(call.func)
        if path in _OWN_NUMBERS or (
            _SEEDERS.match(path)
            and any(
                _from_clock(script, value)
                for value in (*call.args, *(k.value for k in call.keywords))
            )
        ):
            yield at(
                script,
                call,
                "unseeded-shuffle",
                Severity.WRONG,
                says,
                "seed it with a number, or leave it unseeded: syrtos seeds `random`, NumPy and"
                " Keras alike on all workers",
            )


def _from_clock(script: Script, node: ast.AST) -> bool:
    return any(map(_CLOCKS.search, script.texts_with_values(node)))


def seeded_by_rank(program: ScriptProgram) -> Iterator[Finding]:
    """Finds seeds that differ by rank in plain scripts, whose batches `fit` splits."""
    # there all workers must read the same batches, of which each takes its rows; a loop may give
    # each its own
    if program.dialect or program.batch == "per-worker" or not program.uses(*_SPLITTING):
        return
    for script, call in program.calls():
        shuffles = method(call) == "shuffle" and isinstance(call.func, ast.Attribute)
        if (shuffles or _SEEDERS.match(script.meaning(call.func))) and any(
            depends_on(script, v, "rank", "local_rank")
            for v in (*call.args, *(k.value for k in call.keywords))
        ):
            yield at(
                script,
                call,
                "unseeded-shuffle",
                Severity.WRONG,
                "the seed is another one on each worker, but `fit` needs the same batches on all of"
                " them and takes this worker's rows",
                "use one seed on all workers",
            )


def same_batches(program: ScriptProgram) -> Iterator[Finding]:
    """Finds equal seeds in scripts of Horovod or SMDDP without divided data.

    All workers of such a script draw the same batches.
    """
    if (
        not program.dialect
        or program.uses("shard", "steps_per_worker", "from_sharded")
        or divides(program)
    ):
        return
    for script, call in program.calls():
        if (
            method(call) == "shuffle"
            and isinstance(call.func, ast.Attribute)
            and isinstance(script.constant(argument(call, "seed", 1)), int)
        ):
            yield _same_batches(
                script,
                call,
                program,
                "this shuffle has the same seed on all workers, and no worker takes a part of the"
                " data",
            )
        elif (
            method(call) in ("set_random_seed", "set_seed")
            and _SEEDERS.match(script.meaning(call.func))
            and isinstance(script.constant(call.args[0] if call.args else None), int)
        ):
            yield _same_batches(
                script,
                call,
                program,
                "all workers have this seed, and no worker takes a part of the data",
            )


def _same_batches(script: Script, call: ast.Call, program: ScriptProgram, why: str) -> Finding:
    says = (
        f"{why}: under {program.dialect} all workers draw the same batches, so more workers add"
        " nothing"
    )
    return at(
        script,
        call,
        "same-batches",
        Severity.WRONG,
        says,
        "add the rank to the seed, or give each worker its part: `dataset.shard(hvd.size(),"
        " hvd.rank())`",
    )


def divides(program: ScriptProgram) -> bool:
    """Returns whether the rank is in an index or an argument (a seed, say) that may choose data."""
    for script in program.scripts:
        for node in ast.walk(script.tree):
            if (
                isinstance(node, ast.Subscript)
                and depends_on(script, node.slice, "rank")
                and "gpu" not in ast.unparse(node.value).lower()
            ):
                return True
            if (
                isinstance(node, ast.Call)
                and method(node) not in _NO_DATA
                and any(
                    depends_on(script, value, "rank")
                    for value in (*node.args, *(k.value for k in node.keywords))
                )
            ):
                return True
    return False


def uneven_batches(program: ScriptProgram) -> Iterator[Finding]:
    """Finds batches of which one worker computes more samples than others, or some workers none."""
    if program.dialect or program.batch == "per-worker" or program.workers < 2:
        return
    for script, call in program.calls():
        name, position = _BATCHES.get(method(call), ("", None))
        size = (
            script.constant(argument(call, name, position))
            if name and isinstance(call.func, ast.Attribute)
            else None
        )
        if (
            not isinstance(size, int)
            or isinstance(size, bool)
            or size < 1
            or size % program.workers == 0
        ):
            continue
        if method(call) == "batch" and not _feeds_fit(program):
            continue
        share = math.ceil(size / program.workers)
        idle = (
            f"{program.workers - size} of {program.workers} workers have no samples"
            if size < program.workers
            else f"one worker computes {share} samples and others {size // program.workers}"
        )
        fix = f"use a multiple of {program.workers}, such as {share * program.workers}"
        yield at(
            script,
            call,
            "batch-not-divisible",
            Severity.SLOW if share * program.workers / size > _IDLE else Severity.NOTE,
            f"a batch of {size} is split over {program.workers} workers: {idle}. Results stay"
            " exact",
            fix,
        )


def _feeds_fit(program: ScriptProgram) -> bool:
    """Returns whether `fit` splits batches in this program."""
    # with a strategy in its RunConfig, an Estimator has a batch for each worker
    return program.uses("fit") and not program.uses("RunConfig")
