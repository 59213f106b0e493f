"""`--sync-every H`: in `fit` each worker trains alone for H steps, and then the workers exchange by how much their weights have changed (local SGD).

The mean of the changes, by samples, is the gradient of an outer optimizer, SGD with Nesterov momentum: DiLoCo (Douillard et al. 2023, arXiv:2311.08105,
algorithm 1). Plain SGD inside, H = 1, an outer rate of 1 and no outer momentum make it synchronous training.

The workers also meet at the end of each epoch: what is evaluated, saved and decided there is equal on all of them, and the epoch's metrics count all samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from syrtos.checkpoint.encoding import Arrays
from syrtos.comm import compression, world
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals, snapshot, state

Method = Callable[..., Any]


class _Process:
    """The rounds of the `fit` that this process is in."""

    rounds: Rounds | None = None


def is_asked() -> bool:
    """Whether `fit` exchanges weights every so many steps, in the place of gradients in each."""
    return state.optimizers_differ()


def rounds() -> Rounds | None:
    """Those of the `fit` that is running; None where none is, or where gradients are exchanged in each step."""
    return _Process.rounds


def workers_alone(training: bool) -> int:
    """Of how many workers this one computes a share alone in a step: a sum over all of them is about so many times its own."""
    return world.current().world.size if training and _Process.rounds else 1


def of_step(session: Session, training: bool) -> Session:
    """The session over which a step computes: a training step of these rounds makes no exchange."""
    return session.asynchronously() if training and _Process.rounds else session


def begin(model: Any) -> Rounds | None:
    """At the beginning of a `fit`, when all workers hold the same weights; None where it was not asked for.

    Raises:
        ConfigurationError: the model has no weights yet, or is not one that can be trained so.
    """
    if not is_asked() or model is None:
        return None
    if backend.computes_global_batches() or keras_internals.keras_of(model) is not sys.modules.get("keras"):
        raise ConfigurationError("`--sync-every` trains models of Keras 3 on TensorFlow and torch. Leave it out.")
    _Process.rounds = Rounds(model)
    return _Process.rounds


def end() -> None:
    """The `fit` has ended, in whichever way."""
    _Process.rounds = None


def refuse_single_steps() -> None:
    """Raises ConfigurationError in a method that trains on one batch: there is no `fit` at whose end the workers would meet."""
    if is_asked():
        raise ConfigurationError(
            "`--sync-every` was given, and the script calls `train_on_batch`: workers would never meet, for only `fit` counts their steps. Train by `fit`, "
            "or leave out --sync-every."
        )


class Rounds:
    """The steps of one `fit` between the meetings of the workers.

    Attributes:
        met: whether the workers have met after the batch that ended last.
        evaluating: whether the model is being evaluated within `fit`.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._session = model, world.current()
        self._weights: list[Any] = list(model.trainable_variables) if state.variables_in(model) else []
        if not self._weights:
            raise ConfigurationError(
                "`--sync-every` needs a model that has its weights before its first step: give it a `keras.Input`, or call `model.build(shape)` before `fit`."
            )
        self._velocities = [np.zeros_like(state.memory_of(v)) for v in self._weights]
        self._anchors: list[Array] = []
        self._since = self._since_epoch = 0
        self._samples = self._samples_of_step = 0.0  # of this worker, in this round and in its last step
        self._wishes_to_stop = self.evaluating = False
        self.met = True
        self.start_from_here()
        self._session.ledger.say(sync_every=self._session.options.sync_every)

    def start_from_here(self) -> None:
        """All workers hold the same weights: the round begins."""
        self._anchors = [np.array(state.memory_of(variable)) for variable in self._weights]
        self._since, self._samples = 0, 0.0

    # -- called within `fit` ---------------------------------------------------------------------

    def count(self, samples: float) -> None:
        """A training step of this worker had so many samples."""
        self._samples += samples
        self._samples_of_step = samples

    def batch_ended(self, steps: int) -> None:
        """After a call of the training function, of so many steps."""
        self._since += steps
        self._since_epoch += steps
        self.met = self._since >= self._session.options.sync_every
        if self.met:
            self._meet()

    def wish(self) -> bool:
        """Whether this worker's script has asked to stop since the last meeting. Until the next, training goes on."""
        asked = self._wishes_to_stop or bool(getattr(self._model, "stop_training", False))
        self._wishes_to_stop = asked and not self.met
        self._model.stop_training = asked and self.met
        return asked

    def evaluation_begins(self) -> None:
        """Of the model, also in the middle of an epoch."""
        self.evaluating = True
        if self._since:
            self._meet()

    def evaluation_ends(self) -> None:
        """Its results are in the metrics of all workers; in the middle of an epoch Keras goes on counting from there, which then is rank 0's part."""
        self.evaluating = False
        if self._since_epoch and self._session.world.rank:
            self._model.reset_metrics()

    def epoch_ends(self, logs: Any) -> Any:
        """After the last batch of an epoch: the logs, those of a script's own `train_step` averaged over the workers; metrics count all samples."""
        if self.evaluating or not self._since_epoch:
            return logs
        if self._since:
            self._meet()
        self.met, self._since_epoch = True, 0
        with self._session.ledger.span("exchange"):
            self._add_up_metrics()
            return self._averaged(logs)

    # -- kept in snapshots -----------------------------------------------------------------------

    def arrays(self) -> Arrays:
        """What the outer optimizer remembers."""
        return {f"outer {index}": velocity for index, velocity in enumerate(self._velocities)}

    def put_back(self, arrays: Mapping[str, Array], since_epoch: int) -> None:
        """What `arrays` gave, once the weights are put back; so many steps of the epoch have been made."""
        for index, velocity in enumerate(self._velocities):
            velocity[...] = arrays[f"outer {index}"].view(velocity.dtype).reshape(velocity.shape)
        self._since_epoch = since_epoch
        self.start_from_here()

    # -- a meeting -------------------------------------------------------------------------------

    def _meet(self) -> None:
        with self._session.ledger.span("exchange"):
            self._exchange_weights()
            self._make_equal()
        self.start_from_here()

    def _exchange_weights(self) -> None:
        changes = [anchor - state.memory_of(v) for anchor, v in zip(self._anchors, self._weights, strict=True)]
        means = compression.mean_in_buckets(self._session.comm, changes, self._samples, state.held(self._weights))
        for variable, anchor, velocity, change in zip(
            self._weights, self._anchors, self._velocities, means, strict=True
        ):
            backend.active().write(variable, self._stepped(anchor, velocity, change))

    def _stepped(self, weight: Array, velocity: Array, gradient: Array) -> Array:
        """SGD with Nesterov momentum, in Keras's form: Sutskever et al. 2013, `keras.optimizers.SGD`."""
        options = self._session.options
        rate, momentum = weight.dtype.type(options.outer_lr), weight.dtype.type(options.outer_momentum)
        velocity *= momentum
        velocity -= rate * gradient
        return weight + momentum * velocity - rate * gradient

    def _make_equal(self) -> None:
        """The rest of the model, and moving averages of weights: they become their mean by samples; seeds and counters are rank 0's."""
        metrics = {id(v) for metric in self._model.metrics for v in metric.variables}
        optimizers = [getattr(one, "inner_optimizer", one) for one in snapshot.optimizers_of(self._model)]
        averages = [v for optimizer in optimizers for v in keras_internals.averages_of(optimizer)]
        held = [*self._model.non_trainable_variables, *backend.active().buffers_of(self._model), *averages]
        rest = [v for v in state.unique(held) if id(v) not in metrics]
        floating = [v for v in rest if state.dtype_name(v).startswith(("float", "bfloat"))]
        total = sum(self._session.comm.agree("samples of a round", self._samples))
        share = self._samples / total if total else 1 / self._session.comm.size
        for variable, value in zip(floating, self._sums(floating, share), strict=True):
            backend.active().write(variable, value)
        state.broadcast(self._session.comm, [v for v in rest if id(v) not in set(map(id, floating))])

    def _add_up_metrics(self) -> None:
        """Each worker has counted its own samples since the epoch began, when Keras set the states to zero."""
        variables = state.unique(v for metric in self._model.metrics for v in metric.variables)
        for variable, value in zip(variables, self._sums(variables, 1.0), strict=True):
            backend.active().write(variable, value)

    def _sums(self, variables: Sequence[Any], share: float) -> list[Array]:
        """Over the workers, each variable times ``share``: one vector of float64, which holds counters and float32 states exactly."""
        values = [state.memory_of(v) for v in variables]
        if not values:
            return []
        vector = np.concatenate([np.asarray(value, np.float64).reshape(-1) * share for value in values])
        parts = np.split(self._session.comm.allreduce(vector), np.cumsum([value.size for value in values])[:-1])
        return [part.reshape(value.shape).astype(value.dtype) for part, value in zip(parts, values, strict=True)]

    def _averaged(self, logs: Any) -> Any:
        """What the last step of each worker has logged, by its samples; one without samples has logged nothing that counts."""
        own = {name: float(value) for name, value in dict(logs or {}).items() if np.ndim(value) == 0}
        everyone = self._session.comm.allgather_object([self._samples_of_step, own])
        total = sum(samples for samples, _ in everyone)
        means: dict[str, float] = {}
        for samples, theirs in everyone:
            for name, value in theirs.items() if samples else ():
                means[name] = means.get(name, 0.0) + samples / total * value
        return {**dict(logs or {}), **means}


def meeting_at_end_of_epoch(original: Method) -> Method:
    """Around the trainer's method that gives an epoch's logs, after its last batch and before its evaluation."""

    def get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        found = rounds()
        return original(self, found.epoch_ends(logs) if found else logs)

    return get_metrics_result_or_logs
