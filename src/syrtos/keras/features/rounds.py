"""The rounds of `--sync-every`: the steps between two meetings of workers, and their exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from syrtos.checkpoint.encoding import Arrays, as_dtype
from syrtos.comm import compression, world
from syrtos.comm.communicator import Array
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals, updates
from syrtos.keras.replica import state
from syrtos.records import record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Logs, Metric, Model, Optimizer, Variable


class Rounds:
    """The steps of one `fit` between the meetings of the workers.

    Attributes:
        met: whether the workers have met after the batch that ended last.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._session = model, world.current()
        self._weights: list[Variable] = (
            list(model.trainable_variables) if state.variables_in(model) else []
        )
        if not self._weights:
            raise ConfigurationError(
                "`--sync-every` needs a model that has its weights before its first step: give it a"
                " `keras.Input`, or call `model.build(shape)` before `fit`."
            )
        self._velocities = [np.zeros_like(state.memory_of(v)) for v in self._weights]
        self._anchors: list[Array] = []
        self._checksums: list[
            int
        ] = []  # of what no optimizer trains, at the beginning of the round
        self._metrics_before: list[Array] = []  # at the beginning of the epoch
        self._since = self._since_epoch = 0
        # of this worker: in this round, in this epoch, and in its last step
        self._samples = self._samples_of_epoch = self._samples_of_step = 0.0
        self._asked_to_stop = self._evaluates = False
        self.met = True
        for optimizer in self._optimizers():
            # Each worker's own state differs from now on: a loop of the script's own makes the
            # optimizers equal again.
            record_of(optimizer, updates.OptimizerRecord).is_equal = False
            self._give_restored(optimizer)
        self._session.ledger.say(sync_every=self._session.options.sync_every)

    def _give_restored(self, optimizer: Optimizer) -> None:
        """Gives all workers rank 0's optimizer where they have made unequal numbers of updates.

        A callback has then restored it on rank 0.
        """
        comm = self._session.comm
        made = float(state.memory_of(keras_internals.updates_of(optimizer)))
        if len(set(comm.agree("updates before `fit`", made))) > 1:
            state.broadcast(comm, state.of_optimizer(optimizer))

    # -- called within `fit` ---------------------------------------------------------------------

    def epoch_begins(self) -> None:
        """Begins an epoch, also after one that another generation has trained to its end."""
        self._since_epoch, self._evaluates = 0, False

    def batch_begins(self) -> None:
        """Notes the values from which changes are counted, where a round or an epoch begins.

        It is called before the training function and after the script's callbacks. At the beginning
        of a round all workers hold the same weights.
        """
        if not self._since_epoch:
            self._metrics_before = _copy_values(state.of_metrics(self._model))
            self._samples_of_epoch = 0.0
        if not self._since:
            self._check_trains_the_same()
            self._anchors = _copy_values(self._weights)
            self._checksums = [
                state.checksum(variable) for variable in self._unchanged_by_gradients()
            ]
            self._samples = 0.0

    def count(self, samples: float) -> None:
        """Counts the samples of a training step of this worker."""
        self._samples += samples
        self._samples_of_epoch += samples
        self._samples_of_step = samples

    def batch_ended(self, steps: int) -> None:
        """Counts the steps of a training function's call, and meets other workers if it is time."""
        self._since += steps
        self._since_epoch += steps
        self.met = self._since >= self._session.options.sync_every
        if self.met:
            self.meet()

    def asks_to_stop(self) -> bool:
        """Returns whether this worker's script has asked to stop since the last meeting.

        Training goes on until the next meeting.
        """
        asked = self._asked_to_stop or bool(getattr(self._model, "stop_training", False))
        self._asked_to_stop = asked and not self.met
        self._model.stop_training = asked and self.met
        return asked

    def evaluation_begins(self, model: Model) -> None:
        """Notes that an evaluation of this or another model begins, also within an epoch."""
        self._evaluates = self._evaluates or self.trains(model)

    def evaluation_ends(self, model: Model) -> None:
        """Notes the metrics as an evaluation has left them, the same on all workers.

        In the middle of an epoch Keras goes on counting from there.
        """
        if self.trains(model):
            self._evaluates = False
            self._metrics_before = _copy_values(state.of_metrics(self._model))

    def trains(self, model: Model) -> bool:
        """Returns whether this model is the one that `fit` trains."""
        return model is self._model

    def epoch_ends(self, logs: Logs) -> Logs:
        """Meets the other workers after the last batch of an epoch, and returns the epoch's logs.

        Metrics count all samples; the logs of a script's own `train_step` are averaged over the
        workers.
        """
        if self._evaluates or not self._since_epoch:
            return logs
        self.meet()
        self.met, self._since_epoch = True, 0
        with self._session.ledger.span("exchange"):
            metric_of = self._metric_of(logs)
            self._add_up_metrics()
            return self._average_logs(logs, metric_of)

    # -- kept in snapshots -----------------------------------------------------------------------

    def arrays(self) -> Arrays:
        """Returns the outer optimizer's state, and from where the epoch's metrics are counted."""
        found: Arrays = {}
        if self._session.options.outer_momentum:
            found |= {f"outer {index}": velocity for index, velocity in enumerate(self._velocities)}
        found |= {f"metric {index}": value for index, value in enumerate(self._metrics_before)}
        return {**found, "samples of the epoch": np.array(self._samples_of_epoch)}

    def put_back(self, arrays: Mapping[str, Array], since_epoch: int) -> None:
        """Restores what `arrays` gave, once the model is put back.

        ``since_epoch``: the steps of the epoch that have been made.
        """
        for index, velocity in enumerate(
            self._velocities if self._session.options.outer_momentum else ()
        ):
            velocity[...] = _like(arrays[f"outer {index}"], velocity)
        before = [
            (f"metric {index}", state.memory_of(v))
            for index, v in enumerate(state.of_metrics(self._model))
        ]
        self._metrics_before = [
            _like(arrays[name], value) for name, value in before if name in arrays
        ]
        self._samples_of_epoch = float(_like(arrays["samples of the epoch"], np.array(0.0)))
        self._since, self._since_epoch = 0, since_epoch

    # -- what is exchanged -----------------------------------------------------------------------

    def _optimizers(self) -> list[Optimizer]:
        return [getattr(one, "inner_optimizer", one) for one in state.optimizers_of(self._model)]

    def _unchanged_by_gradients(self) -> list[Variable]:
        """Returns the variables that no gradient changes, without metrics.

        They are moving statistics, frozen weights, seeds, counters, and moving averages of weights.
        """
        metrics = set(map(id, state.of_metrics(self._model)))
        averages = [
            v for optimizer in self._optimizers() for v in keras_internals.averages_of(optimizer)
        ]
        held = [
            *self._model.non_trainable_variables,
            *backend.active().buffers_of(self._model),
            *averages,
        ]
        return [v for v in state.unique(held) if id(v) not in metrics]

    def _check_trains_the_same(self) -> None:
        """Raises ConfigurationError where a callback has frozen layers, or made them trainable."""
        if set(map(id, self._model.trainable_variables)) != set(map(id, self._weights)):
            raise ConfigurationError(
                "Within a `fit` with `--sync-every` a model must train the same variables from its"
                " beginning to its end: other layers have become `trainable`, or no longer are."
                " Call `fit` again after such a change, as `compile` asks for."
            )

    # -- a meeting -------------------------------------------------------------------------------

    def meet(self) -> None:
        """Gives all workers the same model, if they have trained since the last meeting."""
        if not self._since:
            return
        with self._session.ledger.span("exchange"):
            total = sum(self._session.comm.agree("samples of a round", self._samples))
            if not total:
                raise ConfigurationError(
                    "The workers have trained on no sample since they met last: a script or package"
                    " calls its training function in a way that `--sync-every` does not know. Leave"
                    " it out."
                )
            self._exchange_weights()
            self._make_equal(self._samples / total)
        self._since = 0

    def _exchange_weights(self) -> None:
        """Makes the outer step with the mean changes of the weights."""
        weights, anchors = self._weights, self._anchors
        changes = [anchor - state.memory_of(v) for anchor, v in zip(anchors, weights, strict=True)]
        means = compression.mean_in_buckets(
            self._session.comm, changes, self._samples, state.held_objects(weights)
        )
        for index, (variable, anchor, mean) in enumerate(zip(weights, anchors, means, strict=True)):
            backend.active().write(variable, self._outer_step(index, anchor, mean))

    def _outer_step(self, index: int, weight: Array, gradient: Array) -> Array:
        """Returns a variable's weights after an outer step: Keras's SGD with Nesterov momentum.

        Sutskever et al. 2013, `keras.optimizers.SGD`. ``index``: the number of the variable.
        """
        options, velocity = self._session.options, self._velocities[index]
        rate, momentum = (
            weight.dtype.type(options.outer_lr),
            weight.dtype.type(options.outer_momentum),
        )
        if not momentum:
            return weight - rate * gradient
        velocity *= momentum
        velocity -= rate * gradient
        return weight + momentum * velocity - rate * gradient

    def _make_equal(self, share: float) -> None:
        """Makes variables equal that no gradient changes, if they have changed on some worker.

        Floating numbers become their mean by samples, others are rank 0's. ``share``: this worker's
        part of the samples.
        """
        rest = self._unchanged_by_gradients()
        # The first step has made some of the variables: they may differ in any way.
        if len(rest) != len(self._checksums):
            mine = [True] * len(rest)
        else:
            mine = [
                state.checksum(v) != before for v, before in zip(rest, self._checksums, strict=True)
            ]
        if not rest:
            return
        flags = self._session.comm.allreduce(np.array(mine, np.int32))
        changed = [v for v, flag in zip(rest, flags, strict=True) if flag]
        floating = [v for v in changed if _is_floating(v)]
        values = [np.asarray(state.memory_of(v), np.float64) * share for v in floating]
        for variable, value in zip(floating, self._sums(values), strict=True):
            backend.active().write(variable, value.astype(state.memory_of(variable).dtype))
        state.broadcast(self._session.comm, [v for v in changed if not _is_floating(v)])

    def _add_up_metrics(self) -> None:
        """Merges the metrics of all workers by the rules of a step.

        `syrtos.keras.tensorflow.step` has these rules. What each worker has added in this epoch is
        added up, other floating states become their mean by samples, and whole numbers have changed
        alike.
        """
        variables, before = state.of_metrics(self._model), self._metrics_before
        # The first step has made some of the metrics' variables, which count from zero.
        if len(before) != len(variables):
            before = [np.zeros_like(state.memory_of(v)) for v in variables]
        total = sum(self._session.comm.agree("samples of an epoch", self._samples_of_epoch))
        share = self._samples_of_epoch / total if total else 0.0
        rank = self._session.comm.rank
        parts, chosen = [], []
        for variable, base in zip(variables, before, strict=True):
            value = np.asarray(state.memory_of(variable), np.float64)
            if getattr(variable, "aggregation", None) == "sum":
                # What all workers held alike before the epoch is to be counted once: rank 0 adds
                # it.
                parts.append(value - base + (base if rank == 0 else 0.0))
            elif _is_floating(variable):
                # A worker without samples may hold an infinity, and 0 times that is NaN.
                parts.append(value * share if share else np.zeros_like(value))
            else:
                continue
            chosen.append(variable)
        for variable, value in zip(chosen, self._sums(parts), strict=True):
            backend.active().write(variable, value.astype(state.memory_of(variable).dtype))

    def _sums(self, values: Sequence[Array]) -> list[Array]:
        """Returns the sums of arrays over the workers.

        They travel as one vector of float64, which holds counters and float32 states exactly.
        """
        if not values:
            return []
        vector = np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in values])
        parts = np.split(
            self._session.comm.allreduce(vector),
            np.cumsum([np.size(value) for value in values])[:-1],
        )
        return [part.reshape(np.shape(value)) for part, value in zip(parts, values, strict=True)]

    def _metric_of(self, logs: Logs) -> dict[str, int]:
        """Finds the logs of a script's own `train_step` that are a metric's result, under any name.

        Returns:
            By the name of the log the metric's number, as rank 0 sees it.
        """
        metrics = self._model.metrics
        results = [float(metric.result()) if _is_scalar(metric) else math.nan for metric in metrics]
        names = [metric.name for metric in metrics]
        found: dict[str, int] = {}
        for name, value in _scalars(logs).items():
            if name in names and results[names.index(name)] == value:
                found[name] = names.index(name)
            # Zero and one may be the result of many things.
            elif results.count(value) == 1 and value not in (0.0, 1.0):
                found[name] = results.index(value)
        return self._session.comm.broadcast_object(found)

    def _average_logs(self, logs: Logs, metric_of: dict[str, int]) -> dict[str, object]:
        """Returns the logs of all workers.

        Results of metrics count all samples now. Other logs are the means of what the last step of
        each worker has logged, by its samples.
        """
        everyone = self._session.comm.allgather_object([self._samples_of_step, _scalars(logs)])
        total = sum(samples for samples, _ in everyone)
        means: dict[str, float] = {}
        for samples, theirs in everyone:
            for name, value in theirs.items() if samples else ():
                means[name] = means.get(name, 0.0) + samples / total * value
        results = {
            name: float(self._model.metrics[index].result()) for name, index in metric_of.items()
        }
        return {**dict(logs or {}), **means, **results}


def _copy_values(variables: Sequence[Variable]) -> list[Array]:
    return [np.array(state.memory_of(variable)) for variable in variables]


def _scalars(logs: Logs) -> dict[str, float]:
    """Returns the logs that are numbers; a metric that gives several logs them as a dictionary."""
    return {
        n: float(v)
        for n, v in dict[str, Any](logs or {}).items()
        if np.ndim(v) == 0 and not isinstance(v, dict)
    }


def _is_scalar(metric: Metric) -> bool:
    """Returns whether a metric gives one number: not several, and not none yet."""
    try:
        return np.ndim(metric.result()) == 0 and not isinstance(metric.result(), dict)
    except Exception:
        return False


def _is_floating(variable: Variable) -> bool:
    return state.dtype_name(variable).startswith(("float", "bfloat"))


def _like(array: Array, value: Array) -> Array:
    """Returns an array from a snapshot, as bytes or not, in the dtype and shape of another."""
    return as_dtype(array, value.dtype).reshape(value.shape)
