"""`hvd.elastic`: state that survives. A run keeps its workers; when one dies the run ends, and the same command with the same
``--run-dir`` goes on from the last commit."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from syrtos.comm.objects import from_bytes, to_bytes
from syrtos.dialects import keras2
from syrtos.dialects.horovod import basics
from syrtos.dialects.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from syrtos.errors import ConfigurationError
from syrtos.keras import state as variables_state

_FILE = "elastic-state.npz"


class State:
    """What a training function has reached. Attributes are given as keywords; they hold plain data."""

    def __init__(self, **values: Any) -> None:
        self._known = list(values)
        self._reset_callbacks: list[Callable[[], None]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self._saved_arrays: list[np.ndarray[Any, Any]] = []
        self.save()

    # -- what is part of the state -------------------------------------------------------------

    def _variables(self) -> list[Any]:
        """Keras or TensorFlow variables that belong to it."""
        return []

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._known}

    # -- Horovod's methods ---------------------------------------------------------------------

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Called after a restart inside the process."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls the registered functions."""
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any = None, update_res: Any = None) -> None:
        """Never called here."""

    def commit(self) -> None:
        """Remembers the state, also for the run after this one."""
        self.save()
        self._write()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Hosts don't come or go."""

    def save(self) -> None:
        """Remembers the state in memory."""
        self._saved = copy.deepcopy(self._attributes())
        self._saved_arrays = [np.array(variables_state.memory_of(v)) for v in self._variables()]

    def restore(self) -> None:
        """Goes back to what was saved."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)
        variables = self._variables()
        self._check_shapes(variables)
        for variable, array in zip(variables, self._saved_arrays, strict=True):
            variable.assign(array)

    def _check_shapes(self, variables: list[Any]) -> None:
        saved, now = [a.shape for a in self._saved_arrays], [tuple(v.shape) for v in variables]
        if saved != now:
            raise ConfigurationError(
                f"The state was saved with {len(saved)} variables and there are {len(now)} now, or their shapes differ. Build the model "
                "(give it an Input, or call it once) before the state is made, and make the same model in each run."
            )

    def sync(self) -> None:
        """Gives all workers rank 0's state, and saves it."""
        comm = basics.session().comm
        for name, value in comm.broadcast_object(self._attributes()).items():
            setattr(self, name, value)
        variables_state.broadcast(comm, self._variables())
        self.save()

    def reset(self) -> None:
        """Nothing of the engine is to be reset."""

    # -- the file ------------------------------------------------------------------------------

    def _write(self) -> None:
        path = _path()
        if path is None or basics.rank():
            return
        arrays: dict[str, Any] = {f"v{i}": array for i, array in enumerate(self._saved_arrays)}
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, attributes=to_bytes(self._saved), **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def resume(self) -> bool:
        """Takes over what the run before this one committed last; False if there is nothing."""
        path = _path()
        if path is None or not path.exists() or basics.rank():
            return False
        with np.load(path, allow_pickle=False) as found:
            self._saved = from_bytes(found["attributes"])
            self._saved_arrays = [found[f"v{i}"] for i in range(len(found.files) - 1)]
        self.restore()
        return True


class ObjectState(State):
    """A state of plain data. ``bcast_object`` and ``get_rank`` are what Horovod was given; ours are used."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class TensorFlowState(State):
    """A state with variables."""

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        del session
        self.variables = list(variables or [])
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return self.variables


class TensorFlowKerasState(State):
    """A state with a model and its optimizer."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        del backend
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        keras2.build(self.optimizer, self.model)
        own = variables_state.variables_of(self.optimizer) if self.optimizer is not None else []
        return variables_state.unique([*self.model.variables, *own])


KerasState = TensorFlowKerasState


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training function ``func(state, ...)``: it begins from what was committed last, equal on all workers."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        state.resume()
        while True:
            state.sync()
            try:
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
            except HostsUpdatedInterrupt:
                pass
            state.on_reset()

    return wrapper


def _path() -> Path | None:
    run_dir = basics.session().options.run_dir
    return Path(run_dir) / _FILE if run_dir else None
