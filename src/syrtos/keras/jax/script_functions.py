"""Functions that a script compiles for a loop of its own: those that train are partitioned."""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend.core import Jaxpr, JaxprEqn

from syrtos.comm import world
from syrtos.keras.datasets import batches, checksums
from syrtos.keras.jax import collectives, distribution, sorting, step
from syrtos.keras.split.script_modules import is_name_of_script

if TYPE_CHECKING:
    from jax.stages import Wrapped

    from syrtos.keras.jax.types import State

    Function = Callable[..., object]
    Compile = Callable[..., Wrapped]
    # The numbers of the leaves of a call's arguments that have the rows of a batch.
    Places = tuple[int, ...]
    Rows = Sequence[jax.Array | np.ndarray]

# What a worker without a GPU does in a second, and what XLA's exchange between two of them takes:
# operations; seconds for an array and bytes a second (JAX 0.10, measured on 2 cores).
_OPERATIONS = 2e10
_BY_GLOO, _BY_MPI = (4e-4, 3.8e8), (1e-4, 1.2e9)
_MOST_KEYS = 1 << 10  # kinds of arguments that are remembered


def partition_functions_of_script(original: Compile) -> Compile:
    """Wraps `jax.jit`: what the script compiles by it is a `ScriptFunction`.

    A function whose shardings the script gives itself is left to it.
    """

    def jit(*function: Function, **options: Any) -> object:
        if not is_name_of_script(sys._getframe(1).f_globals.get("__name__", "")):
            return original(*function, **options)
        if not function:
            return functools.partial(jit_of_script, **options)
        return jit_of_script(*function, **options)

    def jit_of_script(function: Function, **options: Any) -> object:
        compiled = original(function, **options)
        if {"in_shardings", "out_shardings", "device", "backend"} & options.keys():
            return compiled
        has_static = bool({"static_argnums", "static_argnames"} & options.keys())
        return ScriptFunction(
            function, compiled, functools.partial(original, **options), has_static
        )

    return cast("Compile", jit)


class ScriptFunction:
    """A function that the script compiles, and that is one program of all workers where it trains.

    It trains where it computes new values for a tenth of the bytes of the variables among its
    arguments at least: an evaluation has new ones for metrics alone. Its other arguments are those of the whole batch, on every worker:
    the program takes each worker's rows of them, and its results are whole on every worker. Every
    other function, and every call inside of another trace, is JAX's own.
    """

    def __init__(
        self,
        function: Function,
        whole: Wrapped,
        compile_by: Compile,
        has_static: bool,
    ) -> None:
        """
        Args:
            function: what the script has written.
            whole: the function as JAX compiles it.
            compile_by: compiles such a function.
            has_static: whether it may have arguments whose values it is compiled for.
        """
        functools.update_wrapper(self, function)
        self._function, self._whole, self._compile_by = function, whole, compile_by
        self._has_static = has_static
        self._programs: dict[Places, _SplitProgram] = {}
        # where each worker trains on rows of its own
        self._is_alone = False
        self._calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._whole, name)

    def __get__(self, owner: object, kind: type | None = None) -> object:
        return self if owner is None else types.MethodType(self, owner)

    def __call__(self, *args: object, **kwargs: object) -> object:
        # without compilation there is nothing that XLA could split
        is_whole = self._is_alone or getattr(jax.config, "jax_disable_jit", False)
        leaves = [] if is_whole else jax.tree.leaves((args, kwargs))
        places = _places_of_rows(leaves)
        if not places:
            return self._whole(*args, **kwargs)
        if not (program := self._programs.get(places)):
            program = _SplitProgram(self._function, places, self._compile_by, self._has_static)
            self._programs[places] = program
        rows = [leaves[place] for place in places]
        if not program.trains(leaves, args, kwargs):
            return program.compiled(*args, **kwargs)
        return (
            program.make_step(rows, args, kwargs)
            if self._is_same(rows)
            else self._whole(*args, **kwargs)
        )

    def _is_same(self, rows: Rows) -> bool:
        """Compares the batches of some calls; returns whether workers read the same batches."""
        number, self._calls = self._calls, self._calls + 1
        if not checksums.is_compared(number):
            return True
        sums = world.sharing().comm.agree("compare input", batches.sum_of(rows))
        if number == 0 and len(set(sums)) == len(sums):
            self._is_alone = True
            return False
        step.check_sums(sums, number)
        return True


class _SplitProgram:
    """The function with some of its arguments split by rows.

    Attributes:
        compiled: the function as JAX compiles it.
    """

    def __init__(
        self,
        function: Function,
        places: Places,
        compile_by: Compile,
        has_static: bool,
    ) -> None:
        self._function, self._places, self._has_static = function, places, has_static
        # for each trace whether it is split, and for what is known of arguments
        self._traces: list[tuple[object, bool]] = []
        self._trains: dict[object, bool] = {}
        self._found: bool | None = None

        # JAX asks for the names of the arguments
        @functools.wraps(function)
        def split(*args: object, **kwargs: object) -> object:
            return self._split(*args, **kwargs)

        self.compiled = compile_by(split)
        self._step = step.TimedStep(self._call, self._call)

    def trains(
        self, leaves: Sequence[object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> bool:
        """Returns whether the trace of the function for such arguments is split."""
        key = (jax.tree.structure((args, kwargs)), *map(self._describe, leaves))
        if key not in self._trains:
            self._found = None
            # the call that follows finds the trace
            program = self.compiled.trace(*args, **kwargs).jaxpr
            if self._found is not None:
                self._traces.append((program, self._found))
            if len(self._trains) > _MOST_KEYS:
                self._trains.clear()
            of_all = any(found for _, found in self._traces)
            self._trains[key] = next((f for known, f in self._traces if known is program), of_all)
        return self._trains[key]

    def _describe(self, leaf: object) -> Hashable:
        """Returns what JAX compiles a function for of one of its arguments."""
        if isinstance(leaf, np.ndarray | jax.Array):
            return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
        is_value = self._has_static and isinstance(leaf, Hashable)
        return (type(leaf), leaf) if is_value else type(leaf)

    def make_step(self, rows: Rows, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Calls the function, together with the other workers."""
        ledger = world.sharing().ledger
        ledger.before_update()
        _, results = self._step(cast("State", (args, kwargs)), rows)
        ledger.note_update()
        return results

    def _call(self, given: State, _rows: object) -> tuple[object, State]:
        args, kwargs = cast("tuple[Sequence[object], Mapping[str, object]]", given)
        results = self.compiled(*args, **kwargs)
        # One that is waited for: what is kept of a step meanwhile is to be small.
        smallest = min(jax.tree.leaves(results), key=lambda leaf: leaf.size)
        return smallest, cast("State", results)

    def _split(self, *args: object, **kwargs: object) -> object:
        """Computes the function, inside of a trace, on rows that XLA splits over all devices."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)}
        rows = {place: arrays.pop(place) for place in self._places}

        def compute(arrays: Mapping[int, object], rows: Mapping[int, object]) -> object:
            given = [{**arrays, **rows}.get(i, leaf) for i, leaf in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(structure, given)
            return self._function(*args, **kwargs)

        # Once: it may print, and make variables.
        with distribution.tracing_step():
            program, shapes = jax.make_jaxpr(compute, return_shape=True)(arrays, rows)
        self._found = _is_worth_splitting(program.jaxpr, len(arrays))
        if self._found:
            rows = sorting.split_unless_it_sorts(program, rows)
        results = sorting.compute_traced(program, arrays, rows)
        whole = distribution.replicated_sharding()
        results = [jax.lax.with_sharding_constraint(result, whole) for result in results]
        return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _is_worth_splitting(program: Jaxpr, variables: int) -> bool:
    """Returns whether a program trains, and saves more time than its exchange takes.

    Args:
        program: the function, traced.
        variables: how many of its arguments, the first, are no rows.
    """
    given = {(a.shape, a.dtype) for a in _arrays(program.invars[:variables]) if a.shape}
    # An array that is only handed on is a variable of the arguments.
    made = _arrays(v for v in program.outvars if v not in program.invars)
    updated = [array for array in made if (array.shape, array.dtype) in given]
    nbytes = _bytes(updated)
    if 10 * nbytes < _bytes(_arrays(program.invars[:variables])) or not updated:
        return False
    rows = program.invars[variables:]
    if any(_scans(equation, rows) for equation in program.eqns):
        return False
    if jax.local_devices()[0].platform != "cpu":
        return True
    session = world.sharing()
    latency, bandwidth = _BY_MPI if collectives.are_by_mpi(session) else _BY_GLOO
    saved = _operations(program) / _OPERATIONS * (1 - 1 / session.world.size)
    return saved > len(updated) * latency + nbytes / bandwidth


def _scans(equation: JaxprEqn, rows: Sequence[object]) -> bool:
    """Returns whether an equation goes through rows one after the other, as through batches."""
    if equation.primitive.name != "scan":
        return False
    first = equation.params["num_consts"] + equation.params["num_carry"]
    return any(given is row for given in equation.invars[first:] for row in rows)


def _bytes(arrays: Sequence[ShapedArray]) -> int:
    return sum(array.size * array.dtype.itemsize for array in arrays)


def _arrays(variables: Iterable[Any]) -> list[ShapedArray]:
    return [variable.aval for variable in variables]


def _operations(program: Jaxpr) -> float:
    """Returns the floating-point operations of a program's products and convolutions."""
    count = 0.0
    for equation in program.eqns:
        inner = sum(_operations(each) for each in sorting.programs_in(equation.params))
        count += inner * equation.params.get("length", 1)  # the steps of a scan
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            left, right, result = _arrays([*equation.invars[:2], equation.outvars[0]])
            terms = (
                math.prod(left.shape[i] for i in equation.params["dimension_numbers"][0][0])
                if equation.primitive.name == "dot_general"
                else right.size / right.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            )
            count += 2.0 * result.size * terms
    return count


def _places_of_rows(leaves: Sequence[object]) -> Places:
    """Returns which arguments have the rows of a batch: its largest array, and those of as many rows.

    There are none without a variable over the devices of all workers, with fewer rows than devices,
    and inside of a trace.
    """
    if (
        not distribution.is_distributed()
        or distribution.rows_sharding() is None
        or distribution.has_own_rows()
        or any(isinstance(leaf, Tracer) for leaf in leaves)
    ):
        return ()
    arrays = {
        i: leaf
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, np.ndarray | jax.Array) and leaf.ndim
    }
    own = {i: leaf for i, leaf in arrays.items() if not _is_on_all_workers(leaf)}
    if not own or len(own) == len(arrays):
        return ()
    rows = max(own.values(), key=lambda leaf: leaf.nbytes).shape[0]
    if rows < distribution.replicated_sharding().mesh.size:
        return ()
    return tuple(i for i, leaf in own.items() if leaf.shape[0] == rows)


def _is_on_all_workers(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
