"""Every private symbol of Keras 2 (`tf_keras`) that syrtos replaces, with its reason. Seen to work on tf_keras 2.21.

The strategy is the same as for Keras 3, and Keras 2 asks it for more, so there is less to replace.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Generator, Iterator
from typing import Any

import tensorflow as tf
from tf_keras.src import backend, callbacks, losses
from tf_keras.src.engine import base_layer, data_adapter, training
from tf_keras.src.metrics import base_metric
from tf_keras.src.mixed_precision import loss_scale_optimizer
from tf_keras.src.optimizers import nadam, optimizer
from tf_keras.src.optimizers import utils as optimizer_utils
from tf_keras.src.optimizers.legacy import optimizer_v2
from tf_keras.src.saving import saving_api, saving_lib
from tf_keras.src.saving.legacy import save as save_module
from tf_keras.src.utils import data_utils, losses_utils

from syrtos.comm import world
from syrtos.errors import ConfigurationError
from syrtos.keras import asynchronous, files, fitting, interrupts, keras_internals, timing
from syrtos.keras.callbacks import within as enclosing_callbacks
from syrtos.keras.parameter_server import remote_optimizer
from syrtos.keras.patching import Method, replace, replace_everywhere
from syrtos.keras.tensorflow import gradients, models, tf_internals
from syrtos.keras.tensorflow import patching as common
from syrtos.keras.tensorflow.input import is_own_shard
from syrtos.keras.tensorflow.step import StepScope, current_step
from syrtos.keras.tensorflow.strategy import Strategy


@functools.cache
def apply_to_optimizers() -> None:
    """Installs what reduces gradients; it acts on the optimizers that were asked to."""
    _patch_optimizers()


@functools.cache
def apply_all() -> None:
    """Installs all patches, once per process."""
    apply_to_optimizers()
    common.patch_tensorflow()
    _patch_losses()
    _patch_model()
    _patch_files()
    # Who has made a variable says what becomes of it where workers train at their own pace.
    replace(base_layer.Layer, "add_weight", _noting_keras)
    # Equal seeds on all workers must not mean equal dropout masks.
    replace(backend.RandomGenerator, "make_legacy_seed", _seed_by_rank)


def _patch_losses() -> None:
    # A share's loss counts by its samples, so that plain means are right as they are. Other reductions are made so.
    replace(losses_utils, "reduce_weighted_loss", _reduce_weighted_loss)
    replace(losses_utils, "apply_valid_mask", _apply_valid_mask)
    # The originals divide by replicas, or refuse to, also in a loop without `strategy.run`, in which nothing is summed.
    replace(losses_utils, "scale_loss_for_distribution", common.only_in_strategy_run)
    replace(losses.Loss, "_get_reduction", _reduction_of_one_process)
    # A number without a weight is a value of the whole batch, e.g. a loss that a custom `train_step` tracks.
    for metric in (base_metric.Mean, base_metric.Sum):
        replace(metric, "update_state", common.counting_share)


def _reduce_weighted_loss(original: Method) -> Method:
    def reduce_weighted_loss(weighted_losses: Any, reduction: str = "sum_over_batch_size") -> Any:
        loss, step = original(weighted_losses, reduction), current_step()
        if step and reduction == "sum":
            return loss / tf.cast(step.fraction(), loss.dtype)
        return loss

    return reduce_weighted_loss


def _reduction_of_one_process(original: Method) -> Method:
    """The default reduction is refused under a strategy; a script that asked for none does not know that there is one."""

    def get_reduction(self: Any) -> Any:
        if Strategy.chosen or gradients.in_strategy_run():
            return original(self)
        automatic = self.reduction == losses_utils.ReductionV2.AUTO
        return losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE if automatic else self.reduction

    return get_reduction


def _apply_valid_mask(original: Method) -> Method:
    def apply_valid_mask(losses: Any, sw: Any, mask: Any, reduction: str) -> Any:
        result = original(losses, sw, mask, reduction)
        if mask is None or reduction not in ("auto", "sum_over_batch_size"):
            return result
        return common.masked_globally(result, mask)

    return apply_valid_mask


def _patch_optimizers() -> None:
    # Reduces before clipping already, but sums where samples must count.
    replace(optimizer.Optimizer, "aggregate_gradients", _aggregate)
    replace(optimizer_v2.OptimizerV2, "_aggregate_gradients", _aggregate)
    # A list of strategies that may scale losses, which ours is not in; its gradients are reduced before they are checked.
    replace(loss_scale_optimizer, "strategy_supports_loss_scaling", lambda _original: lambda: True)
    # One that finds its gradients infinite skips an update that the others give gradients for.
    replace(loss_scale_optimizer, "_is_all_finite", _is_all_finite_everywhere)
    # Where gradients are complete, reduced or not, and variables known. It keeps the numbers of its variables, not them.
    replace(optimizer._BaseOptimizer, "_build_index_dict", _noting_variables)
    replace(optimizer._BaseOptimizer, "apply_gradients", _on_servers)
    replace(optimizer_v2.OptimizerV2, "apply_gradients", _not_on_servers)
    # An update is the same on all workers: its assignments need no exchange.
    replace(optimizer._BaseOptimizer, "apply_gradients", common.paused)
    replace(optimizer_v2.OptimizerV2, "apply_gradients", common.paused)
    replace(loss_scale_optimizer.LossScaleOptimizer, "apply_gradients", common.paused)
    replace(loss_scale_optimizer.LossScaleOptimizerV3, "apply_gradients", common.paused)


def _aggregate(original: Method) -> Method:
    def aggregate(self: Any, grads_and_vars: Any) -> Any:
        if asynchronous.servers():
            return grads_and_vars
        if not gradients.reduction_of(self):
            # outside of `strategy.run` the original finds no replicas to sum over, and fails
            return grads_and_vars if tf.distribute.in_cross_replica_context() else original(self, grads_and_vars)
        pairs = list(grads_and_vars)
        gradients.broadcast_before_first(self, [variable for _, variable in pairs])
        gradients.about_to_apply(self, [variable for _, variable in pairs])
        reduced = gradients.reduced(self, [gradient for gradient, _ in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)]

    return aggregate


def _is_all_finite_everywhere(original: Method) -> Method:
    def is_all_finite(grads: Any) -> Any:
        finite = original(grads)  # without servers those of all workers
        return gradients.finite_everywhere(None, finite) if asynchronous.servers() else finite

    return is_all_finite


def _noting_variables(original: Method) -> Method:
    def build_index_dict(self: Any, var_list: Any) -> None:
        original(self, var_list)
        if asynchronous.servers():
            object.__setattr__(self, keras_internals.BUILT_FOR, list(var_list))

    return build_index_dict


def _on_servers(original: Method) -> Method:
    """With parameter servers they make the update, and the optimizer here counts it."""

    def apply_gradients(self: Any, grads_and_vars: Any, name: str | None = None) -> Any:
        if not asynchronous.servers():
            return original(self, grads_and_vars, name)
        if isinstance(self, nadam.Nadam):  # it counts in Python how often it has been traced
            _refuse_on_servers("the Nadam of Keras 2")
        pairs = list(grads_and_vars)
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        self._compute_current_learning_rate()
        grads, variables = zip(*optimizer_utils.filter_empty_gradients(pairs), strict=True)
        remote_optimizer.apply(self, grads, variables)
        return self.iterations.assign_add(1)

    return apply_gradients


def _not_on_servers(original: Method) -> Method:
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        if asynchronous.servers():
            _refuse_on_servers("one of `tf.keras.optimizers.legacy`")
        return original(self, *args, **kwargs)

    return apply_gradients


def _refuse_on_servers(which: str) -> None:
    raise ConfigurationError(
        f"Parameter servers (`--ps`) can't apply this optimizer: it is {which}. Use another of `tf.keras.optimizers`, or run without `--ps`."
    )


def _noting_keras(original: Method) -> Method:
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        variable = original(self, *args, **kwargs)
        if asynchronous.own():
            setattr(
                getattr(variable, "_variable", variable), asynchronous.KERAS, True
            )  # inside of one for mixed precision
        return variable

    return add_weight


def _patch_model() -> None:
    model = training.Model
    # These build the functions that call `train_step` and its like: here a step becomes a step on a share.
    for name in ("train", "test", "predict"):
        replace(model, f"make_{name}_function", functools.partial(_make_function, f"{name}_step"))
    replace(model, "fit", fitting.inside_fit)
    replace(model, "fit", interrupts.together)
    # Workers that don't call the same are told so at once.
    for name in ("fit", "evaluate", "predict"):
        replace(model, name, common.agreeing)
        replace(model, name, timing.part_of_run)
    replace(data_adapter.DataHandler, "__init__", _data_handler)
    replace(data_adapter, "single_batch_iterator", _single_batch)
    # Files are written once, decisions are taken together.
    replace(callbacks.CallbackList, "__init__", _callback_list)


def _patch_files() -> None:
    # Behind the methods and the functions of all names: the path is final, and its suffix has been checked on all workers.
    for owner, name in (
        (saving_lib, "save_model"),
        (saving_lib, "save_weights_only"),
        (save_module, "save_model"),
        (save_module, "save_weights"),
    ):
        replace(owner, name, files.writing("filepath"))
    # The files are written by `tf.saved_model.save`, which makes them appear complete.
    replace(training.Model, "export", files.writing("filepath", complete=False))
    for name in ("load_model", "load_weights"):
        replace_everywhere(saving_api, name, files.reading("filepath"))
    replace(data_utils, "urlretrieve", files.writing("filename"))
    replace_everywhere(data_utils, "get_file", files.fetching)


def _make_function(step_name: str, original: Method) -> Method:
    def make_function(self: Any, force: bool = False) -> Any:
        session = world.sharing()
        models.adapt(self)
        if "_syrtos_" + step_name not in self.__dict__ and (session.world.size > 1 or session.options.run_dir):
            step = getattr(self, step_name)
            object.__setattr__(self, "_syrtos_" + step_name, step)
            object.__setattr__(self, step_name, _shared_step(session, step, step_name))
        return original(self, force)

    return make_function


def _shared_step(session: world.Session, step: Method, name: str) -> Method:
    if name == "predict_step":
        return functools.partial(common.gathered_predict_step, session, step)
    stock = getattr(step, "__func__", None) is getattr(training.Model, name)

    def shared(data: Any) -> Any:
        with StepScope(session, data, training=name == "train_step").entered() as scope:
            return scope.finish(step(scope.data), logs_are_global=stock)

    return shared


def _data_handler(original: Method) -> Method:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if kwargs.get("distribute", True) and asynchronous.deals():
            models.check_dealt(self._adapter)
            self.__class__ = DealtHandler
        if world.sharing().world.size > 1:  # else a step takes what it is given for whole batches
            self._dataset = tf_internals.counted(self._dataset)
        dataset = args[0] if args else kwargs.get("x")
        self._inferred_steps = fitting.agree_on_length(self._inferred_steps, is_own_shard(dataset))
        if world.current().world.size > 1:
            _build(kwargs.get("model"), self._dataset.element_spec)

    return init


def _single_batch(original: Method) -> Method:
    """The batch of `train_on_batch` and its like, as a share that knows its number of samples."""

    def single_batch_iterator(strategy: Any, *args: Any, **kwargs: Any) -> Any:
        if world.sharing().world.size == 1:
            return original(strategy, *args, **kwargs)
        distribute = strategy.experimental_distribute_dataset
        counting = types.SimpleNamespace(
            experimental_distribute_dataset=lambda data: tf_internals.counted(distribute(data))
        )
        return original(counting, *args, **kwargs)

    return single_batch_iterator


class DealtHandler(data_adapter.DataHandler):
    """The batches of an epoch that this worker takes, where workers train at their own pace.

    All workers read the same data; a piece of the round's work is as many batches as a call of the training function takes. Validation
    goes through all of its data.
    """

    _iterator: Any = None
    _position = _first = 0

    def enumerate_epochs(self) -> Generator[tuple[int, Any], None, None]:
        for epoch, iterator in super().enumerate_epochs():
            if iterator is not self._iterator:
                self._iterator, self._position, self._first = iterator, 0, 0
            yield epoch, iterator

    def steps(self) -> Generator[int, None, None]:
        servers = asynchronous.own()
        if servers is None or not asynchronous.deals():
            yield from super().steps()
            return
        asynchronous.begin_round()
        batches, each = self._inferred_steps, self._steps_per_execution.numpy().item()
        pieces = None if batches is None else -(-batches // each)
        while (piece := servers.take(pieces)) is not None:
            count = each if batches is None else min(each, batches - piece * each)
            for _ in range(self._first + piece * each - self._position):
                next(self._iterator)
            self._position = self._first + piece * each + count
            self._step_increment = count - 1
            with self._executing(count, each):
                yield piece * each
        self._first += batches or 0

    @contextlib.contextmanager
    def _executing(self, count: int, usually: int) -> Iterator[None]:
        """Inside, a call of the training function makes ``count`` steps."""
        if count == usually:
            yield
            return
        self._steps_per_execution.assign(count)
        try:
            yield
        finally:
            self._steps_per_execution.assign(usually)

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """At the end of an epoch the workers meet."""
        if not asynchronous.deals():
            with super().catch_stop_iteration():
                yield
            return
        ended = False
        try:
            yield
            self.sync()
        except (StopIteration, RuntimeError, tf.errors.OutOfRangeError) as end:
            if isinstance(end, RuntimeError) and not isinstance(end.__cause__, StopIteration):
                raise
            ended = True
        fitting.check_had_batch(bool(asynchronous.held()))
        if asynchronous.end_round(ended):  # for one means for all: they read the same
            self._insufficient_data = self._inferred_steps is not None or not self._adapter.should_recreate_iterator()


def _build(model: Any, spec: Any) -> None:
    """Makes the weights of a model that has no input shape, so that all workers have them before the first step.

    A model that can't be built from shapes alone is built by its first step, as in one process.
    """
    if model is None or model.built:
        return
    inputs = spec[0] if isinstance(spec, tuple) else spec
    with contextlib.suppress(Exception):
        model.build(tf.nest.map_structure(lambda each: each.shape, inputs))


def _callback_list(original: Method) -> Method:
    wrapped = enclosing_callbacks(original)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        wrapped(self, *args, **kwargs)
        # Keras 2 skips hooks that no callback has; it looked before ours were there.
        self._should_call_train_batch_hooks = True
        self._should_call_test_batch_hooks = self._should_call_predict_batch_hooks = True

    return init


def _seed_by_rank(original: Method) -> Method:
    def make_legacy_seed(self: Any) -> int | None:
        seed, rank = original(self), common.rank_to_seed()
        return (seed or 0) + common.SEED_STRIDE * rank if rank else seed

    return make_legacy_seed
