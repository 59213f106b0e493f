"""State that survives the end of workers, as `hvd.elastic` has it.

When a worker dies, or hosts come or go, all workers start again, and the script goes on from the
last commit. Commits are snapshots of the run (`syrtos.keras.recovery.replay`). Where no launcher
keeps snapshots (mpiexec, srun, ``--max-restarts 0``), they are a file in the run directory, from
which the same command with the same ``--run-dir`` goes on.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

from syrtos.checkpoint import durable, encoding
from syrtos.checkpoint.encoding import Arrays
from syrtos.comm import world
from syrtos.comm.objects import dtype_of, from_bytes, to_bytes
from syrtos.dialects import keras2
from syrtos.dialects.horovod import basics
from syrtos.dialects.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from syrtos.errors import ConfigurationError
from syrtos.keras.recovery import replay
from syrtos.keras.replica import state as variables_state

if TYPE_CHECKING:
    from syrtos.dialects.protocols import DialectModel, DialectOptimizer, DialectVariable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_FILE = "elastic-state.safetensors"


class _StateNumbers:
    """The numbers of the states that the script begins to train, from 1 on."""

    def __init__(self, _session: world.Session) -> None:
        self.numbers = itertools.count(1)


class State:
    """A training function's progress. Attributes are given as keywords; they hold plain data."""

    # The number of this state among those that the script has begun to train; 0 before that. A
    # commit has its state's number: a script may train one state after the other, in the same
    # order in each run.
    number = 0

    def __init__(self, **values: object) -> None:
        self._known = list(values)
        self._reset_callbacks: list[Callable[[], None]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, object] = {}
        self._saved_arrays: list[npt.NDArray[Any]] = []
        self.save()

    # -- what is part of the state -------------------------------------------------------------

    def _variables(self) -> Sequence[DialectVariable]:
        """Returns the Keras or TensorFlow variables that belong to the state."""
        return []

    def _attributes(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self._known}

    # -- Horovod's methods ---------------------------------------------------------------------

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Registers functions to call before training goes on from a commit.

        The number of workers may have changed since the commit.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls the registered functions."""
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: object = None, update_res: object = None) -> None:
        """Does nothing, and is never called."""
        # The launcher ends the workers, and starts others.

    def commit(self) -> None:
        """Remembers the state, also for the generation or the run after this one."""
        self.save()
        self._write()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing."""
        # If hosts have come or gone, the launcher has ended this process.

    def save(self) -> None:
        """Remembers the state in memory."""
        self._saved = copy.deepcopy(self._attributes())
        # Copies: what `memory_of` lends changes with the variable.
        self._saved_arrays = [np.array(variables_state.memory_of(v)) for v in self._variables()]

    def restore(self) -> None:
        """Goes back to the state that was saved in memory."""
        # Copies again: the script may change a list that it finds in its state, and go back once
        # more.
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)
        variables = self._variables()
        self._check_shapes(variables)
        for variable, array in zip(variables, self._saved_arrays, strict=True):
            variable.assign(array)

    def _check_shapes(self, variables: Sequence[DialectVariable]) -> None:
        saved, now = [a.shape for a in self._saved_arrays], [tuple(v.shape) for v in variables]
        if saved != now:
            raise ConfigurationError(
                f"The state was saved with {len(saved)} variables and there are {len(now)} now, or"
                " their shapes differ. Build the model (give it an Input, or call it once) before"
                " the state is made, and make the same model in each run."
            )

    def sync(self) -> None:
        """Gives all workers rank 0's state, and saves it."""
        comm = basics.session().comm
        for name, value in comm.broadcast_object(self._attributes()).items():
            setattr(self, name, value)
        variables_state.broadcast(comm, self._variables())
        self.save()

    def reset(self) -> None:
        """Does nothing: no part of the engine needs a reset."""

    # -- the file ------------------------------------------------------------------------------

    def _write(self) -> None:
        # Arrays of bfloat16 and the like come back from a file as bytes: dtypes and shapes are kept
        # beside them.
        arrays = {
            "number": to_bytes(self.number),
            "attributes": to_bytes(self._saved),
            "dtypes": to_bytes([array.dtype.name for array in self._saved_arrays]),
            "shapes": to_bytes([list(array.shape) for array in self._saved_arrays]),
        }
        arrays |= {f"v{i}": array for i, array in enumerate(self._saved_arrays)}
        path = _path()
        # A launcher that keeps snapshots takes those of all workers; the file is written once.
        if replay.keeps_snapshots():
            replay.commit_state(arrays)
        elif path is not None and basics.rank() == 0:
            durable.replace(path, encoding.pack(arrays, {}))

    def resume(self) -> bool:
        """Takes over, on rank 0, the last commit of the generation or the run before.

        All workers call it together.

        Returns:
            Whether there is a commit, on all workers.
        """
        if not self.number:
            self.number = next(world.part(_StateNumbers).numbers)
        found = self._committed_state() if basics.rank() == 0 else None
        # The commit of another state of the script, which has one for each fold of its data, e.g.
        if found is not None and from_bytes(found["number"]) != self.number:
            found = None
        if found is not None:
            self._saved = from_bytes(found["attributes"])
            shapes: list[list[int]] = from_bytes(found["shapes"])
            dtypes = [dtype_of(name) for name in from_bytes(found["dtypes"])]
            self._saved_arrays = [
                encoding.as_dtype(found[f"v{i}"], dtype).reshape(shape)
                for i, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
            ]
            self.restore()
        return bool(basics.session().comm.broadcast_object(found is not None))

    @staticmethod
    def _committed_state() -> Arrays | None:
        if replay.keeps_snapshots():
            return replay.committed_state()
        path = _path()
        return encoding.unpack(path.read_bytes()) if path is not None and path.exists() else None


class ObjectState(State):
    """A state of plain data. Horovod's ``bcast_object`` and ``get_rank`` are not used."""

    def __init__(
        self, bcast_object: object = None, get_rank: object = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)


class TensorFlowState(State):
    """A state with variables."""

    def __init__(
        self,
        variables: Sequence[DialectVariable] | None = None,
        session: object = None,
        **kwargs: object,
    ) -> None:
        del session
        self.variables = list(variables or [])
        super().__init__(**kwargs)

    def _variables(self) -> Sequence[DialectVariable]:
        return self.variables


class TensorFlowKerasState(State):
    """A state with a model and its optimizer."""

    def __init__(
        self,
        model: DialectModel,
        optimizer: DialectOptimizer | None = None,
        backend: object = None,
        **kwargs: object,
    ) -> None:
        del backend
        self.model = model
        self.optimizer: DialectOptimizer | None = optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)

    def _variables(self) -> Sequence[DialectVariable]:
        # Else a state that is made before the first step would have no variables of the optimizer
        # to go back to.
        keras2.build(self.optimizer, self.model)
        own = variables_state.variables_of(self.optimizer) if self.optimizer is not None else []
        return variables_state.unique([*self.model.variables, *cast("list[DialectVariable]", own)])


KerasState = TensorFlowKerasState


def run(
    func: Callable[Concatenate[State, Parameters], Result],
) -> Callable[Concatenate[State, Parameters], Result]:
    """Decorates a training function ``func(state, ...)``, which begins from the last commit.

    The state is then equal on all workers.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if state.resume():
            # What is called on a reset may train.
            state.sync()
            state.on_reset()
        while True:
            state.sync()
            try:
                return func(state, *args, **kwargs)
            # No exchange raises these: they are for what a script raises itself.
            except HorovodInternalError:
                state.restore()
            except HostsUpdatedInterrupt:
                pass
            state.on_reset()

    return wrapper


def _path() -> Path | None:
    run_dir = basics.session().options.run_dir
    return Path(run_dir) / _FILE if run_dir else None
