"""A parameter server: it holds its part of the weights, and applies Keras optimizers to them.

Each server holds an equal slice of every variable where the optimizer treats each number by itself,
and whole variables where it does not. Updates are applied as they come in; or, with a staleness of
0, once all workers' gradients are there, as their mean by samples. Stale synchronous parallel: Ho
et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server".
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

import numpy as np
import tensorflow as tf

import syrtos.keras.tensorflow  # noqa: F401 - a server's variables are TensorFlow's
from syrtos.comm import requests, world
from syrtos.comm.communicator import Array, Communicator
from syrtos.comm.objects import dtype_of
from syrtos.comm.requests import Question
from syrtos.comm.work_queue import WorkQueue
from syrtos.errors import OutOfStepError
from syrtos.keras import keras_internals
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.comm.requests import Fields
    from syrtos.keras.protocols import Optimizer, Variable

    class _Optimizer(Optimizer, Protocol):
        def apply_gradients(self, grads_and_vars: object) -> object: ...

        def exclude_from_weight_decay(self, var_list: list[Variable]) -> None: ...


class VariableFacts(TypedDict):
    """The facts about a part of a variable that a worker tells a server.

    Attributes:
        place: the index of the variable in the model.
        shape: of the part.
        dtype: its name.
        decays: whether the optimizer's weight decay takes it in.
        constraint: as Keras serializes it; None without.
    """

    place: int
    shape: list[int]
    dtype: str
    decays: bool
    constraint: object


# A whole gradient, or the values and indices of some of its rows.
Gradient = Array | tuple[Array, Array]


def serve(gone: Callable[[], set[int]]) -> None:
    """Answers workers' questions until all have left; ``gone`` gives the ranks that have died."""
    session = world.current()
    assert session.questions is not None
    # Most scripts use the Keras that TensorFlow chooses: it is imported while they begin.
    _ = tf.keras.optimizers
    workers = session.questions.Get_size() - session.world.size
    parameters = Parameters(workers, session.options.staleness, session.comm)
    queue = WorkQueue(workers)
    asked = {**queue.asked, **parameters.asked}

    def lose(worker: int) -> None:
        parameters.lose(worker)
        queue.lose(worker)

    known = gone if session.options.asynchronous else set
    requests.serve(
        session.questions,
        workers,
        lambda question: asked[question.fields["ask"]](question),
        known,
        lose,
    )


class Parameters:
    """The optimizers of a run, on one server."""

    def __init__(self, workers: int, staleness: int | None, comm: Communicator) -> None:
        """``comm`` joins the servers."""
        self._live = set(range(workers))
        self._staleness = staleness
        self._comm = comm
        self._held: dict[str, _OptimizerPart] = {}
        self._beginning: dict[str, dict[int, Question]] = {}
        self.asked = {
            "register": self._register,
            "push": self._push,
            "state": self._state,
            "idle": self._idle,
        }
        # The progress of each worker: (round, updates in it).
        self._progress = dict.fromkeys(self._live, (0, 0))
        self._ahead: list[tuple[tuple[int, int], Question, _OptimizerPart]] = []

    def lose(self, worker: int) -> None:
        """Forgets a worker that asks nothing any more: no other waits for it."""
        self._live.discard(worker)
        self._ahead = [one for one in self._ahead if one[1].worker != worker]
        for registered in self._beginning.values():
            registered.pop(worker, None)
        for held in self._held.values():
            held.together.pop(worker, None)
            self._apply_together(held)
        self._go_on()

    def _register(self, question: Question) -> None:
        """Takes a worker's registration of an optimizer.

        It has ``optimizer`` and ``variables``, the values as one array of bytes, and the
        optimizer's state by ``names``. Those of worker 0 are taken, or of the first worker after it
        that still makes updates in this ``round``; all are answered then.
        """
        self._beginning.setdefault(question.fields["key"], {})[question.worker] = question
        self._go_on()

    def _go_on(self) -> None:
        """Answers questions that have waited for other workers and need not wait any longer."""
        for key, registered in list(self._beginning.items()):
            self._begin(key, registered)
        self._let_go()

    def _begin(self, key: str, registered: dict[int, Question]) -> None:
        """Makes the optimizer once the registration that counts is there."""
        number = min((question.fields["round"] for question in registered.values()), default=0)
        updating = [worker for worker in self._live if self._progress[worker][0] <= number]
        chosen = registered.get(min(updating, default=-1))
        if key not in self._held and chosen is None:
            return
        del self._beginning[key]
        with requests.refusing(*registered.values()):
            if chosen is not None and key not in self._held:
                self._held.pop(chosen.fields["replaces"], None)
                self._held[key] = _OptimizerPart(chosen.fields, chosen.arrays)
            for question in registered.values():
                self._held[key].answer(question)

    def _push(self, question: Question) -> None:
        """Takes gradients of the variables listed in ``present``, with this worker's ``weight``.

        The question also has the learning ``rate``.
        """
        held = self._held[question.fields["key"]]
        self._progress[question.worker] = reached = (
            question.fields["round"],
            question.fields["clock"],
        )
        if self._staleness == 0:
            held.together[question.worker] = question
            self._apply_together(held)
            return
        held.apply(held.gradients(question), question.fields)
        self._ahead.append((reached, question, held))
        self._let_go()

    def _let_go(self) -> None:
        """Answers the workers that are not too far ahead."""
        slowest = min((self._progress[worker] for worker in self._live), default=(0, 0))
        staying = []
        for (number, clock), question, held in self._ahead:
            if self._staleness is None or (number, clock - self._staleness) <= slowest:
                held.answer(question)
            else:
                staying.append(((number, clock), question, held))
        self._ahead = staying

    def _idle(self, question: Question) -> None:
        """Notes that the worker makes no more updates in this round."""
        self._progress[question.worker] = (question.fields["round"] + 1, 0)
        self._go_on()
        question.answer()

    def _state(self, question: Question) -> None:
        held = self._held[question.fields["key"]]
        names, slots = zip(*held.slots(), strict=True)
        question.answer(
            [held.packed_values(), *(np.array(state.memory_of(v)) for v in slots)],
            names=list(names),
        )

    def _apply_together(self, held: _OptimizerPart) -> None:
        """Makes the next common update, once the gradients of all workers are there."""
        questions = [held.together[worker] for worker in sorted(held.together)]
        if not questions or set(held.together) != self._live:
            return
        held.together = {}
        with requests.refusing(*questions):
            self._update(held, questions)
            for question in questions:
                held.answer(question)

    def _update(self, held: _OptimizerPart, questions: Sequence[Question]) -> None:
        """Makes one update with the mean by samples of all workers' gradients."""
        if any(
            question.fields["present"] != questions[0].fields["present"] for question in questions
        ):
            raise OutOfStepError(
                "Workers gave gradients of different variables for the same update."
            )
        total = sum(question.fields["weight"] for question in questions)
        shares = [question.fields["weight"] / total if total else 0.0 for question in questions]
        given = [held.gradients(question) for question in questions]
        mean = [_mean([one[k] for one in given], shares) for k in range(len(given[0]))]
        fields = questions[0].fields
        held.apply(held.clip_mean(mean, fields["present"], self._comm), fields)


class _OptimizerPart:
    """An optimizer and this server's part of its variables.

    Attributes:
        optimizer: the Keras optimizer.
        together: the questions from which an update of all workers is to be made, by worker.
    """

    def __init__(self, fields: Fields, arrays: Sequence[Array]) -> None:
        self._shapes = [tuple(variable["shape"]) for variable in fields["variables"]]
        self._dtypes = [dtype_of(variable["dtype"]) for variable in fields["variables"]]
        self._clip = fields["clip"]
        self._places = [variable["place"] for variable in fields["variables"]]
        self._places_everywhere = fields["places"]
        self.together: dict[int, Question] = {}
        keras = importlib.import_module(fields["keras"])
        self._variables = [
            _variable(keras, index, value, variable)
            for index, (value, variable) in enumerate(
                zip(
                    _unpack_arrays(arrays[0], self._shapes, self._dtypes),
                    fields["variables"],
                    strict=True,
                )
            )
        ]
        self.optimizer: _Optimizer = keras.saving.deserialize_keras_object(fields["optimizer"])
        kept = [
            v
            for v, facts in zip(self._variables, fields["variables"], strict=True)
            if not facts["decays"]
        ]
        if kept:
            self.optimizer.exclude_from_weight_decay(var_list=kept)
        if self._variables:
            self.optimizer.build(self._variables)
        self._set_state(dict(zip(fields["names"], arrays[1:], strict=True)))
        # One for each set of variables that have gradients in a step: a function is traced for the
        # variables it updates.
        self._functions: dict[tuple[int, ...], Callable[[Sequence[object]], object]] = {}

    def _set_state(self, known: dict[str, Array]) -> None:
        """Takes over the state of an earlier optimizer, by name."""
        for name, variable in self.slots():
            value = known.get(name)
            if value is not None:
                variable.assign(value.reshape(tuple(variable.shape)))

    def slots(self) -> list[tuple[str, Variable]]:
        """Returns the optimizer state's variables, with the names that workers know them by."""
        paths = [keras_internals.path_of(v) for v in self._variables]
        slots = [(keras_internals.slot_of(v, paths), v) for v in state.variables_of(self.optimizer)]
        return [
            (kind if path is None else f"{path}_{kind}", variable)
            for (kind, path), variable in slots
        ]

    def gradients(self, question: Question) -> list[Gradient]:
        """Returns the gradients that a worker pushed, in the order of ``present``.

        Those of the variables in ``rows`` are the values and indices of some rows.
        """
        present, rows = question.fields["present"], question.fields["rows"]
        dense = [i for i in present if i not in rows]
        arrays = _unpack_arrays(
            question.arrays[0], [self._shapes[i] for i in dense], [self._dtypes[i] for i in dense]
        )
        pairs = zip(question.arrays[1::2], question.arrays[2::2], strict=True)
        found: dict[int, Gradient] = {
            **dict(zip(dense, arrays, strict=True)),
            **dict(zip(rows, pairs, strict=True)),
        }
        return [found[i] for i in present]

    def clip_mean(
        self, gradients: list[Gradient], present: Sequence[int], comm: Communicator
    ) -> list[Gradient]:
        """Clips the mean as Keras would, by norms over all servers' parts."""
        norm, overall, value = (
            self._clip["clipnorm"],
            self._clip["global_clipnorm"],
            self._clip["clipvalue"],
        )
        if norm or overall:
            places = [self._places[i] for i in present]
            squares = np.zeros(self._places_everywhere, np.float64)
            squares[places] = [np.vdot(_values(g), _values(g)) for g in gradients]
            squares = comm.allreduce(squares)
            norms = (
                np.sqrt(squares[places]) if norm else np.full(len(places), np.sqrt(squares.sum()))
            )
            limit = float(norm or overall)
            return [
                _map_values(g, lambda v, n=n: v * v.dtype.type(limit / max(n, limit)))
                for g, n in zip(gradients, norms, strict=True)
            ]
        return (
            [_map_values(g, lambda v: np.clip(v, -value, value)) for g in gradients]
            if value
            else gradients
        )

    def apply(self, gradients: Sequence[Gradient], fields: Fields) -> None:
        """Makes one step of the optimizer."""
        if fields["rate"] is not None:
            self.optimizer.learning_rate = fields["rate"]
        present = tuple(fields["present"])
        if present not in self._functions:
            chosen = [self._variables[i] for i in present]
            self._functions[present] = tf.function(
                lambda given: self.optimizer.apply_gradients(zip(given, chosen, strict=True)),
                autograph=False,
                reduce_retracing=True,
            )
        if present:
            pairs = zip(gradients, present, strict=True)
            self._functions[present]([_tensor(g, self._shapes[i]) for g, i in pairs])

    def answer(self, question: Question) -> None:
        """Gives a worker the values as they are now, and how many updates they have had."""
        question.answer(
            [self.packed_values()], iterations=int(keras_internals.updates_of(self.optimizer))
        )

    def packed_values(self) -> Array:
        """Returns all values as bytes."""
        return pack_arrays([np.asarray(state.memory_of(v)) for v in self._variables])


def _mean(gradients: Sequence[Gradient], shares: Sequence[float]) -> Gradient:
    """Returns the weighted mean of gradients.

    Of rows it has all workers' rows in rank order, as one process would have got them.
    """
    counted = [(g, share) for g, share in zip(gradients, shares, strict=True) if share]
    if not counted:
        return _map_values(gradients[0], np.zeros_like)
    scaled = [
        _map_values(g, lambda v, share=share: v * v.dtype.type(share)) for g, share in counted
    ]
    if isinstance(scaled[0], tuple):
        return np.concatenate([g[0] for g in scaled]), np.concatenate([g[1] for g in scaled])
    return functools.reduce(np.add, scaled)


def _values(gradient: Gradient) -> Array:
    return gradient[0] if isinstance(gradient, tuple) else gradient


def _map_values(gradient: Gradient, change: Callable[[Array], Array]) -> Gradient:
    """Returns the gradient with its values changed."""
    return (change(gradient[0]), gradient[1]) if isinstance(gradient, tuple) else change(gradient)


def _tensor(gradient: Gradient, shape: tuple[int, ...]) -> tf.Tensor | tf.IndexedSlices:
    if isinstance(gradient, tuple):
        values, indices = map(tf.convert_to_tensor, gradient)
        return tf.IndexedSlices(values, indices, tf.constant(shape))
    return tf.convert_to_tensor(gradient)


def pack_arrays(arrays: Sequence[Array]) -> Array:
    """Returns arrays of any dtype one after the other, as uint8."""
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _unpack_arrays(
    data: Array, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]
) -> list[Array]:
    sizes = [
        int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    parts = np.split(data, np.cumsum(sizes)[:-1]) if sizes else []
    return [
        part.view(dtype).reshape(shape)
        for part, shape, dtype in zip(parts, shapes, dtypes, strict=True)
    ]


def _variable(keras: ModuleType, index: int, value: Array, facts: VariableFacts) -> Variable:
    """Makes a variable named by its index, so that its optimizer state can be identified too."""
    constraint = keras.constraints.deserialize(facts["constraint"]) if facts["constraint"] else None
    if not hasattr(keras, "Variable"):  # Keras 2, whose variables are TensorFlow's own
        # TensorFlow's stub leaves out most methods of its variables.
        return cast(
            "Variable",
            tf.Variable(tf.convert_to_tensor(value), name=f"v{index}", constraint=constraint),
        )
    variable = keras.Variable(value, dtype=facts["dtype"], name=f"v{index}")
    variable.constraint = constraint
    return variable
