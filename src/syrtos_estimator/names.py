"""The namespaces with every name of `tf.estimator`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import NoReturn

import tensorflow as tf

from syrtos.errors import ConfigurationError
from syrtos.keras.tensorflow import tf_internals
from syrtos_estimator import (
    config,
    estimator,
    evaluating,
    export,
    exporters,
    inputs,
    keras_model,
    signatures,
    specs,
)

# Classes of sessions and their hooks, which TensorFlow still has.
_HOOKS = (
    "CheckpointSaverHook", "CheckpointSaverListener", "FeedFnHook", "FinalOpsHook", "GlobalStepWaiterHook",
    "LoggingTensorHook", "NanLossDuringTrainingError", "NanTensorHook", "ProfilerHook", "SecondOrStepTimer",
    "SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues", "StepCounterHook", "StopAtStepHook",
    "SummarySaverHook",
)  # fmt: skip
# Models that came with TensorFlow, and what to write in place of one.
_CANNED = (
    "BaselineClassifier", "BaselineEstimator", "BaselineRegressor", "BinaryClassHead", "BoostedTreesClassifier",
    "BoostedTreesEstimator", "BoostedTreesRegressor", "DNNClassifier", "DNNEstimator", "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator", "DNNLinearCombinedRegressor", "DNNRegressor", "Head", "LinearClassifier",
    "LinearEstimator", "LinearRegressor", "LogisticRegressionHead", "MultiClassHead", "MultiHead", "MultiLabelHead",
    "PoissonRegressionHead", "RegressionHead",
)  # fmt: skip
_EARLY = (
    "make_early_stopping_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
)
# What else is gone, and what to write in place of it.
_GONE = {
    "VocabInfo": "warm-starting over vocabularies: give weights of equal shapes",
    "add_metrics": "put the metric into the `eval_metric_ops` of `model_fn`",
    "classifier_parse_example_spec": (
        "write the dict of tf.io.FixedLenFeature for tf.io.parse_example"
    ),
    "regressor_parse_example_spec": (
        "write the dict of tf.io.FixedLenFeature for tf.io.parse_example"
    ),
}
_CANNED_INSTEAD = (
    "build the model in Keras (a few Dense layers, keras.utils.FeatureSpace for the columns) and"
    " train it with `fit`, or give a `model_fn` to tf.estimator.Estimator"
)
_TPU = "tf.estimator.Estimator with tf.estimator.RunConfig; there are no TPUs"
_STOPPING = (
    "call `run_context.request_stop()` in a hook of your own: a wish of one worker stops all"
)


def keras_namespace() -> types.SimpleNamespace:
    """Returns everything under ``tf.keras.estimator``."""
    return types.SimpleNamespace(model_to_estimator=keras_model.model_to_estimator)


def layers() -> types.ModuleType:
    """Returns `tf.compat.v1.layers`."""
    return tf_internals.legacy_layers()


@functools.cache
def namespace() -> types.SimpleNamespace:
    """Returns everything under ``tf.estimator`` in TensorFlow 2.15, the last that had it."""
    v1 = tf.compat.v1
    own = {
        "Estimator": estimator.Estimator,
        "EstimatorSpec": specs.EstimatorSpec,
        "EvalSpec": specs.EvalSpec,
        "Exporter": exporters.Exporter,
        "BestExporter": exporters.BestExporter,
        "FinalExporter": exporters.FinalExporter,
        "LatestExporter": exporters.LatestExporter,
        "ModeKeys": specs.ModeKeys,
        "RunConfig": config.RunConfig,
        "TrainSpec": specs.TrainSpec,
        "WarmStartSettings": specs.WarmStartSettings,
        "train_and_evaluate": evaluating.train_and_evaluate,
        "export": types.SimpleNamespace(
            ClassificationOutput=signatures.ClassificationOutput,
            EvalOutput=signatures.PredictOutput,
            ExportOutput=signatures.ExportOutput,
            PredictOutput=signatures.PredictOutput,
            RegressionOutput=signatures.RegressionOutput,
            ServingInputReceiver=signatures.ServingInputReceiver,
            TensorServingInputReceiver=signatures.TensorServingInputReceiver,
            build_parsing_serving_input_receiver_fn=export.build_parsing_serving_input_receiver_fn,
            build_raw_serving_input_receiver_fn=export.build_raw_serving_input_receiver_fn,
        ),
        "inputs": types.SimpleNamespace(
            numpy_input_fn=inputs.numpy_input_fn, pandas_input_fn=inputs.pandas_input_fn
        ),
    }
    hooks = {name: getattr(v1.train, name) for name in _HOOKS if hasattr(v1.train, name)}
    # Each raises an error when it is called, and not when it is looked up: scripts ask by `hasattr`
    # what there is.
    gone: dict[str, object] = {
        name: functools.partial(_refuse, name, _CANNED_INSTEAD) for name in _CANNED
    }
    gone |= {name: functools.partial(_refuse, name, instead) for name, instead in _GONE.items()}
    early = {name: functools.partial(_refuse, f"experimental.{name}", _STOPPING) for name in _EARLY}
    gone["experimental"] = types.SimpleNamespace(**early)
    on_tpu = {
        name: functools.partial(_refuse, f"tpu.{name}", _TPU)
        for name in ("RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec")
    }
    gone["tpu"] = types.SimpleNamespace(**on_tpu)
    return types.SimpleNamespace(**gone, **hooks, **own)


def _refuse(name: str, instead: str, *args: object, **kwargs: object) -> NoReturn:
    del args, kwargs
    raise ConfigurationError(f"tf.estimator.{name} is not served. Instead: {instead}.")


def module_getattr(make: Callable[[], object]) -> Callable[[str], object]:
    """Returns a `__getattr__` for a module whose names are the attributes of ``make()``."""

    def get(name: str) -> object:
        # The import system asks for `__path__` and its like, and has to learn that they are not
        # there.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(make(), name)

    return get
