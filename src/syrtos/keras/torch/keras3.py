"""The patches of Keras 3 on torch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import keras
import torch

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import backend, fitting, patches, patching, updates
from syrtos.keras.datasets import batches
from syrtos.keras.datasets.streams import stream_of
from syrtos.keras.features import registry
from syrtos.keras.patching import Method, Patch
from syrtos.keras.recovery import replay
from syrtos.keras.split import share_patches, shares
from syrtos.keras.torch import (
    batchnorm,
    draws,
    gathering,
    generators,
    gradients,
    rows,
    script_loops,
    sharded_update,
    step,
)
from syrtos.keras.torch.split_function import TorchFunction
from syrtos.keras.torch.variables import Torch
from syrtos.keras.trainer import methods
from syrtos.records import read_record, record_of
from syrtos.topology import check_servers

if TYPE_CHECKING:
    from syrtos.keras.protocols import EpochIterator

# A step of Keras's trainer on torch, which takes a list of one batch.
_Step = Callable[[list[object]], object]


@dataclasses.dataclass
class _StepRecord:
    """The record of a function of a model that takes this worker's share of a batch."""

    of_shares: TorchFunction | None = None


def _function_of_shares(function: object) -> TorchFunction | None:
    """Returns what a function of shares belongs to, or one that a script's wrapper wraps (`functools.wraps`)."""
    while function is not None:
        if (found := read_record(function, _StepRecord).of_shares) is not None:
            return found
        function = getattr(function, "__wrapped__", None)
    return None


@functools.cache
def apply_to_optimizers() -> None:
    """Installs the patches that reduce gradients; they act on optimizers asked to reduce."""
    backend.use(Torch())
    patching.install(share_patches.optimizers(_begin_equal_then_accumulate))


@functools.cache
def apply_all() -> None:
    """Makes plain scripts train on all workers.

    Raises:
        ConfigurationError: the run has parameter servers.
    """
    session = world.current()
    # The backend may come from keras.json.
    check_servers({"KERAS_BACKEND": "torch"}, session.options.servers)
    apply_to_optimizers()
    patching.install(
        [
            *share_patches.LOSSES,
            *share_patches.SEEDS,
            *draws.PATCHES,
            *OPTIMIZERS,
            *TRAINER,
            *(OWN_DDP if hasattr(keras.Model, "_initialize_ddp") else []),
            *patches.PATCHES,
        ]
    )
    # A step of one worker notes nothing, and reads its variables some hundred times.
    if session.world.size > 1 or session.options.sync_every:
        patching.install(VARIABLES)
    patching.install(registry.patches({"sharding": sharded_update.PATCHES}))
    gradients.reduce_all_optimizers()
    patching.replace_everywhere(keras.utils, "split_dataset", draws.with_common_seed)
    patching.replace(torch.autograd, "backward", gradients.reduced_after_backward)
    patching.replace(torch.autograd, "grad", gradients.reduced_grads)
    patching.replace(torch.utils.data.DataLoader, "__iter__", script_loops.batches_of_script)
    patching.replace(torch, "inference_mode", gradients.without_inference_mode)


# -- optimizers ------------------------------------------------------------------------------------


def _begin_equal_then_accumulate(original: Method) -> Method:
    def backend_apply_gradients(
        self: keras.Optimizer,
        grads: list[torch.Tensor],
        trainable_variables: Iterable[keras.Variable],
    ) -> None:
        with updates.update(self, trainable_variables) as update:
            gradients.begin_update(update, self._trainable_variables)
            own = list(gradients.to_accumulate(self, grads))
            apply = registry.around_update(
                update, lambda given: original(self, given, trainable_variables)
            )
            apply(own)

    return backend_apply_gradients


def _time_update(original: Method) -> Method:
    def backend_update_step(self: keras.Optimizer, *args: object) -> None:
        with world.current().ledger.span("update"):
            original(self, *args)

    return backend_update_step


# -- trainer ---------------------------------------------------------------------------------------


def _batches(original: Method) -> Method:
    def get_iterator(self: EpochIterator) -> Iterator[object]:
        session = world.sharing()
        if stream := stream_of(self):
            return batches.timed_batches(rows.planned_shares(stream))
        # Now, as in one process, and not with the first batch: shuffles draw their seeds.
        found = iter(original(self))
        if session.world.size == 1:
            return batches.timed_batches(found)
        if session.options.batch == "per-worker":
            return batches.timed_batches(rows.until_all_have_ended(found, session.comm))
        return batches.timed_batches(batches.compared_batches(found, fitting.check_same_data))

    return get_iterator


def _check(sums: list[float], number: int) -> None:
    if world.sharing().options.batch != "per-worker":
        fitting.check_same_data(sums, number)


def _making(name: str, make_step: Callable[[keras.Model, _Step], _Step]) -> Method:
    """Returns a wrapper of `make_train_function` and its like.

    The function that is made takes this worker's share of a batch.
    """

    def wrapper(original: Method) -> Method:
        def make_function(self: keras.Model, force: bool = False) -> _Step:
            shares.without_compilation(self)
            original(self, force)
            function = getattr(self, name)
            # Keras keeps the function of an earlier call, unless it is forced to make another.
            if (known := _function_of_shares(function)) is not None:
                known.ask_again()
            else:
                is_predicting = name == "predict_function"
                setattr(self, name, _on_each(make_step(self, function), is_predicting))
            return getattr(self, name)

        return make_function

    return wrapper


def _on_each(step: _Step, concatenates: bool) -> _Step:
    """Returns a function that makes a step with each of a list of batches.

    From Keras 3.16 on there are several with `steps_per_execution`. The result is that of the last
    step, or of all, where ``concatenates`` is true.
    """

    @functools.wraps(step)
    def make_steps(data: list[object]) -> object:
        results = [step([batch]) for batch in data]
        if len(results) == 1 or not concatenates:
            return results[-1]
        return keras.tree.map_structure(lambda *parts: torch.cat(parts), *results)

    return make_steps


def _training(model: keras.Model, function: _Step) -> _Step:
    on_share = _with_logs(model, function, keras.Model.train_step, training=True)

    def train(data: list[object]) -> object:
        workers = registry.session_of_step(world.sharing(), training=True)
        return registry.around_step(model, workers, lambda: on_share(data))()

    record_of(train, _StepRecord).of_shares = _function_of_shares(on_share)
    return train


def _testing(model: keras.Model, function: _Step) -> _Step:
    return _with_logs(model, function, keras.Model.test_step, training=False)


def _with_logs(model: keras.Model, function: _Step, stock: Method, training: bool) -> _Step:
    own = getattr(model, stock.__name__)
    # Keras's own step returns the results of metrics, which are global when they are read.
    logs_are_global = getattr(own, "__func__", None) is stock

    def finish(scope: step.TorchStep, logs: object) -> object:
        return scope.finish(
            logs, logs_are_global, step.floating_buffers_of(model) if training else ()
        )

    of_first = TorchFunction(model, world.sharing(), stock.__name__, logs_are_global)
    if not training or of_first.reduces_early:
        return _on_shares(function, training, finish, of_first)

    def overlapping(data: list[object]) -> object:
        with gradients.overlapping(model):
            return function(data)

    return _on_shares(overlapping, training, finish, of_first)


def _predicting(model: keras.Model, function: _Step) -> _Step:
    stock = getattr(model.predict_step, "__func__", None) is keras.Model.predict_step
    of_first = TorchFunction(model, world.sharing(), "predict_step", stock)

    def finish(scope: step.TorchStep, outputs: object) -> object:
        scope.flush()
        if not scope.splits_batch:
            return rows.own_outputs(outputs, scope.samples)
        return gathering.outputs_of_all(scope, outputs)

    return _on_shares(function, False, finish, of_first)


def _on_shares(
    function: _Step,
    training: bool,
    finish: Callable[[step.TorchStep, object], object],
    of_first: TorchFunction,
) -> _Step:
    """Returns a step of Keras that computes this worker's share of a batch, or all of it.

    ``finish`` makes its outputs those of the batch.
    """

    def on_share(data: list[object]) -> object:
        with world.sharing().part(script_loops.ScriptLoops).pause():
            return step_of_workers(data)

    def step_of_workers(data: list[object]) -> object:
        session = world.sharing()
        of_first.verify(function, lambda: on_local(data, session), data[0])
        together = of_first.partitions(data[0])
        of_first.note_step(together)
        # A `fit` that goes on draws its data again, and leaves out steps, which draw too.
        draws = training and replay.keeps_snapshots()
        with session.part(generators.DrawingSteps).step() if draws else contextlib.nullcontext():
            if together:
                return of_first.compute_together(function, data[0])
            return on_local(data, session)

    record_of(on_share, _StepRecord).of_shares = of_first

    def on_local(data: list[object], session: Session) -> object:
        own = registry.session_of_step(session, training)
        share = rows.share_of(data[0], session)
        session.ledger.count(share.samples)
        for feature in registry.active() if training else ():
            feature.count_samples(share.samples)
        if own is session and session.world.size == 1:
            return function([share.data])
        scope = step.TorchStep(own, share.samples, training, of_first.reduces_early)
        scope.model = of_first.model
        with scope.as_current_step():
            return finish(scope, function([share.data]))

    return on_share


def _results_of_workers(original: Method) -> Method:
    # The class of the backend's trainer, which sums the states over all processes of a script's own
    # group: here they are those of all workers already.
    trainer = next(base for base in keras.Model.__mro__ if "get_metrics_result" in vars(base))

    def get_metrics_result(self: keras.Model) -> object:
        alone = world.sharing().world.size == 1
        return original(self) if alone else super(trainer, self).get_metrics_result()  # pyright: ignore[reportAttributeAccessIssue]

    return get_metrics_result


# -- variables -------------------------------------------------------------------------------------


def _noting_assign(original: Method) -> Method:
    def direct_assign(self: keras.Variable, value: torch.Tensor) -> None:
        current = step.current_step()
        if current is None:
            original(self, value)
            return
        current.before_assign(self)
        # The original reads the variable to write to it, which is no read that a metric's state
        # must be global for.
        with current.pausing_notes():
            original(self, value)

    return direct_assign


def _noting_read(original: object) -> property:
    assert isinstance(original, property)
    read: Method | None = original.fget
    assert read is not None

    def value(self: keras.Variable) -> torch.Tensor:
        current = step.current_step()
        if current is not None:
            current.before_read(self)
        return read(self)

    return property(value)


_UPDATE = "_backend_update_step"
_TRAINER = "keras:Model"
_ITERATOR = "keras.src.backend.torch.trainer:TorchEpochIterator"
_VARIABLE = "keras:Variable"
_BATCHNORM = "keras.layers:BatchNormalization"
_SHARE = "Where a step of Keras's own or of the script's meets its batch, which becomes a share."
_TIMED = "Its time is counted apart."
_STATE = "What a step assigns is made equal on all workers, before it is read again."

OPTIMIZERS = [
    Patch("keras:Optimizer", _UPDATE, _time_update, _TIMED),
    Patch(
        "keras.src.backend.torch.optimizers.torch_parallel_optimizer:TorchParallelOptimizer",
        _UPDATE,
        _time_update,
        _TIMED,
    ),
]
TRAINER = [
    Patch(_TRAINER, "make_train_function", _making("train_function", _training), _SHARE),
    Patch(_TRAINER, "make_test_function", _making("test_function", _testing), _SHARE),
    Patch(_TRAINER, "make_predict_function", _making("predict_function", _predicting), _SHARE),
    *methods.of_model(_check),
    *methods.input_of(_ITERATOR, _batches),
]
# From Keras 3.16 on.
OWN_DDP = [
    Patch(
        "keras:Model",
        "_initialize_ddp",
        lambda original: lambda self: None if world.sharing().world.size > 1 else original(self),
        "Where a script has a group of torch's, Keras would reduce the gradients too.",
    ),
    Patch(
        "keras:Model",
        "get_metrics_result",
        _results_of_workers,
        "States of metrics would be summed twice.",
    ),
]
VARIABLES = [
    Patch(_VARIABLE, "_direct_assign", _noting_assign, _STATE),
    Patch(_VARIABLE, "value", _noting_read, _STATE),
    Patch(
        _BATCHNORM,
        "_moments",
        batchnorm.synchronize_moments,
        "Keras has synchronized statistics on TensorFlow alone.",
    ),
]
