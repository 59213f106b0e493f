"""The patches of Keras 2 (`tf_keras`).

The strategy is the same as for Keras 3, and Keras 2 asks it for more, so there is less to replace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import tensorflow as tf
from tf_keras.src.engine import training
from tf_keras.src.utils import losses_utils

from syrtos.comm import world
from syrtos.errors import ConfigurationError
from syrtos.keras import updates
from syrtos.keras.features import asynchronous, finite
from syrtos.keras.files import file_patches
from syrtos.keras.patching import Method, Patch, by_all, install
from syrtos.keras.split import shares
from syrtos.keras.tensorflow import gradients, models, script_gradients, strategy
from syrtos.keras.tensorflow import patching as common
from syrtos.keras.tensorflow.assignments import current_step
from syrtos.keras.tensorflow.split_function import (
    TensorFlowFunction,
    functions_of,
    partitions,
)
from syrtos_keras2 import callbacks, data, on_servers

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, P, R, Variable
    from syrtos.keras.tensorflow.types import BatchStep, Gradient

    Pairs = Iterable[tuple[Gradient | None, Variable]]

    class _Loss(Protocol):
        reduction: str

    class _Keras2Model(Model, Protocol):
        _steps_per_execution: tf.Variable | None


@functools.cache
def apply_to_optimizers() -> None:
    """Installs the patches that reduce gradients, for the optimizers that were asked to reduce."""
    install(OPTIMIZERS)


@functools.cache
def apply_all() -> None:
    """Installs all patches, once per process.

    Raises:
        ConfigurationError: an option of the run has no meaning with Keras 2.
    """
    if finite.is_asked():
        raise ConfigurationError(
            f"`--on-nan {world.current().options.on_nan}` does not work with Keras 2, whose"
            " optimizers exchange scaled gradients before they look at them. Leave it out."
        )
    if world.current().options.shard_update:
        raise ConfigurationError("`--shard-update` does not work with Keras 2. Leave it out.")
    apply_to_optimizers()
    common.patch_tensorflow()
    install([*LOSSES, *MODEL, *FILES])


# -- losses ----------------------------------------------------------------------------------------


def _reduce_weighted_loss(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    def reduce_weighted_loss(
        weighted_losses: tf.Tensor, reduction: str = "sum_over_batch_size"
    ) -> tf.Tensor:
        loss, step = original(weighted_losses, reduction), current_step()
        # Gradients are averaged by samples: divided by this worker's part of them, the sums add up
        # to that of the batch.
        if step and reduction == "sum":
            return loss / tf.cast(step.fraction(), loss.dtype)
        return loss

    return reduce_weighted_loss


def _reduction_of_one_process(original: Method) -> Method:
    """Wraps `Loss._get_reduction` to give the default reduction of one process.

    A script that asked for no strategy gets it.
    """
    # Keras 2 refuses the default under a strategy, and such a script does not know that there is
    # one.

    def get_reduction(self: _Loss) -> str:
        if strategy.is_chosen() or gradients.in_strategy_run():
            return original(self)
        automatic = self.reduction == losses_utils.ReductionV2.AUTO
        return losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE if automatic else self.reduction

    return get_reduction


def _apply_valid_mask(original: Method) -> Method:
    def apply_valid_mask(losses: object, sw: object, mask: object, reduction: str) -> object:
        return shares.masked_globally(original(losses, sw, mask, reduction), mask, reduction)

    return apply_valid_mask


# -- optimizers ------------------------------------------------------------------------------------


def _aggregate(original: Method) -> Method:
    def aggregate(self: Optimizer, grads_and_vars: Pairs) -> Pairs:
        # With parameter servers `apply_gradients` gives them to these.
        if asynchronous.servers():
            return grads_and_vars
        if not gradients.reduction_of(self):
            # Outside of `strategy.run` the original finds no replicas to sum over, and fails.
            done = tf.distribute.in_cross_replica_context() or gradients.are_reduced()
            return grads_and_vars if done else original(self, grads_and_vars)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        given, step = [gradient for gradient, _ in pairs], current_step()
        with updates.update(self, variables) as update:
            gradients.begin_update(update, variables)
            reduced = gradients.reduce_gradients(
                self, step.before_exchange(given) if step else given
            )
        return [
            (gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)
        ]

    return aggregate


# -- trainer ---------------------------------------------------------------------------------------


def _make_function(step_name: str, original: Method) -> Method:
    def make_function(self: _Keras2Model, force: bool = False) -> object:
        session = world.sharing()
        compiles = models.adapt(self, session, partitions(session, step_name))
        functions, name = functions_of(self), step_name.replace("step", "function")
        found, is_made = functions.get(step_name), getattr(self, name, None)
        if found is None:
            if not models.wraps_steps(self, session):
                return original(self, force)
            step: BatchStep = getattr(self, step_name)
            # A later `compile` puts another function in the place of this one.
            object.__setattr__(
                self, step_name, lambda data: functions[step_name].compute_step(data)
            )
        else:
            step = found.step
        # Anew for what `compile` was given since.
        if found is None or is_made is None or force:
            stock = getattr(step, "__func__", None) is getattr(training.Model, step_name)
            found = functions[step_name] = TensorFlowFunction(
                self, session, step, stock, step_name, compiles
            )
        function = original(self, force)
        if function is is_made:
            return function
        found.function = function
        with_shares = functools.partial(_call_with_shares, self, found)
        setattr(self, name, with_shares)
        return with_shares

    return make_function


def _call_with_shares(
    model: _Keras2Model, found: TensorFlowFunction, iterator: tf.data.Iterator
) -> object:
    steps = model._steps_per_execution
    return found.call(iterator, 1 if steps is None else int(steps))


def _stateful_too(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `RNN.__init__`, which refuses `stateful=True` under a strategy."""
    # A step is a program of the whole batch, in which such a layer has its rows.

    def init(*args: P.args, **kwargs: P.kwargs) -> R:
        distribute = tf.compat.v2.distribute
        before = distribute.has_strategy
        distribute.has_strategy = lambda: False
        try:
            return original(*args, **kwargs)
        finally:
            distribute.has_strategy = before

    return init


def _refuse_sessions(_original: Method) -> Method:
    def compile(self: Model, *args: object, **kwargs: object) -> None:
        raise ConfigurationError(
            "Without eager execution Keras 2 trains in sessions of TensorFlow 1, whose batches"
            " syrtos does not split. Remove `tf.compat.v1.disable_eager_execution()` (or"
            " `disable_v2_behavior()`) from the script, or start it by plain `python`."
        )

    return compile


# -- what is replaced, and why ---------------------------------------------------------------------

_UTILS = "tf_keras.src.utils.losses_utils"
_METRIC = "tf_keras.src.metrics.base_metric"
_MODEL = "tf_keras.src.engine.training:Model"
_HANDLER = "tf_keras.src.engine.data_adapter"
_OPTIMIZER = "tf_keras.src.optimizers.optimizer"
_LEGACY = "tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2"
_SCALING = "tf_keras.src.mixed_precision.loss_scale_optimizer"
_SAVING = "tf_keras.src.saving"
_SHARE = (
    "A share's loss counts by its samples, so that plain means are right as they are. Other"
    " reductions are made so."
)
_REPLICAS = (
    "The original divides by replicas, or refuses to, also in a loop without `strategy.run`, in"
    " which nothing is summed."
)
_NUMBER = (
    "A number without a weight is a value of the whole batch, e.g. a loss that a custom"
    " `train_step` tracks."
)
_SAMPLES = "The original reduces before clipping already, but sums where samples must count."
_EQUAL = "An update is the same on all workers: its assignments need no exchange."
_STEP = (
    "It builds the function that calls `train_step` or its like: here a step becomes a program of all"
    " workers."
)

LOSSES = [
    Patch(_UTILS, "reduce_weighted_loss", _reduce_weighted_loss, _SHARE),
    Patch(_UTILS, "apply_valid_mask", _apply_valid_mask, _SHARE),
    Patch(_UTILS, "scale_loss_for_distribution", common.only_in_strategy_run, _REPLICAS),
    Patch("tf_keras.src.losses:Loss", "_get_reduction", _reduction_of_one_process, _REPLICAS),
    Patch(f"{_METRIC}:Mean", "update_state", shares.counting_share, _NUMBER),
    Patch(f"{_METRIC}:Sum", "update_state", shares.counting_share, _NUMBER),
]
OPTIMIZERS = [
    Patch(f"{_OPTIMIZER}:Optimizer", "aggregate_gradients", _aggregate, _SAMPLES),
    Patch(
        _LEGACY,
        "apply_gradients",
        by_all(script_gradients.applied_by_a_replica, on_servers.not_on_servers, shares.updating),
        "The original refuses loops of a script's own, in which the default strategy is in force;"
        f" parameter servers can't apply it. {_EQUAL}",
    ),
    Patch(_LEGACY, "_aggregate_gradients", _aggregate, _SAMPLES),
    Patch(
        _SCALING,
        "strategy_supports_loss_scaling",
        lambda _original: lambda: True,
        "A list of strategies that may scale losses, which ours is not in; its gradients are"
        " reduced before they are checked.",
    ),
    Patch(
        _SCALING,
        "_is_all_finite",
        on_servers.is_all_finite_everywhere,
        "One that finds its gradients infinite skips an update that the others give gradients for.",
    ),
    Patch(
        f"{_OPTIMIZER}:_BaseOptimizer",
        "_build_index_dict",
        on_servers.noting_variables,
        "It keeps the numbers of the optimizer's variables, not them, which parameter servers"
        " need.",
    ),
    Patch(
        f"{_OPTIMIZER}:_BaseOptimizer",
        "apply_gradients",
        by_all(on_servers.on_servers, shares.updating),
        "Gradients are complete here, reduced or not, and variables known: parameter servers make"
        f" the update. {_EQUAL}",
    ),
    Patch(f"{_SCALING}:LossScaleOptimizer", "apply_gradients", shares.updating, _EQUAL),
    Patch(f"{_SCALING}:LossScaleOptimizerV3", "apply_gradients", shares.updating, _EQUAL),
]
MODEL = [
    *(
        Patch(
            _MODEL,
            f"make_{name}_function",
            functools.partial(_make_function, f"{name}_step"),
            _STEP,
        )
        for name in ("train", "test", "predict")
    ),
    *common.methods_of(_MODEL),
    Patch(
        f"{_HANDLER}:DataHandler",
        "__init__",
        data.handler,
        "Workers compare lengths, and take shares.",
    ),
    Patch(
        _HANDLER,
        "single_batch_iterator",
        data.single_batch,
        "A batch given by hand must know its number of samples.",
    ),
    Patch(
        "tf_keras.src.engine.training_v1:Model",
        "compile",
        _refuse_sessions,
        "The model of TensorFlow 1's graphs.",
    ),
    Patch(
        "tf_keras.src.layers.rnn.base_rnn:RNN",
        "__init__",
        _stateful_too,
        "A stateful layer is not split, and right.",
    ),
    *callbacks.PATCHES,
    Patch(
        "tf_keras.src.engine.base_layer:Layer",
        "add_weight",
        on_servers.noting_keras,
        "Who has made a variable says what becomes of it where workers train at their own pace.",
    ),
]
FILES = file_patches.of_package(
    "tf_keras",
    (
        (f"{_SAVING}.saving_lib", "save_model"),
        (f"{_SAVING}.saving_lib", "save_weights_only"),
        (f"{_SAVING}.legacy.save", "save_model"),
        (f"{_SAVING}.legacy.save", "save_weights"),
    ),
    "tf_keras.src.utils.data_utils",
)
