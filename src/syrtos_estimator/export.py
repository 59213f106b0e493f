"""Saved models, and the inputs that they are fed with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from syrtos_estimator.signatures import PredictOutput, ServingInputReceiver

if TYPE_CHECKING:
    from syrtos_estimator.specs import EstimatorSpec

v1 = tf.compat.v1

_SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function that makes the inputs of a served model that is fed with raw features.

    ``features`` are tensors that tell shapes and dtypes.
    """

    def receiver_fn() -> ServingInputReceiver:
        fed = {
            name: v1.placeholder(t.dtype, [default_batch_size, *t.shape.as_list()[1:]], name=name)
            for name, t in features.items()
        }
        return ServingInputReceiver(fed, fed)

    return receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[
        str,
        tf.io.FixedLenFeature
        | tf.io.FixedLenSequenceFeature
        | tf.io.VarLenFeature
        | tf.io.RaggedFeature
        | tf.io.SparseFeature,
    ],
    default_batch_size: int | None = None,
) -> Callable[[], ServingInputReceiver]:
    """Returns a function that makes the inputs of a served model.

    The model is fed with serialized `tf.train.Example`s.
    """

    def receiver_fn() -> ServingInputReceiver:
        examples = v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(
            tf.io.parse_example(examples, feature_spec), {"examples": examples}
        )

    return receiver_fn


def write(
    spec: EstimatorSpec,
    receiver: ServingInputReceiver,
    base: str,
    checkpoint: str,
    assets_extra: Mapping[str, str] | None,
    as_text: bool,
) -> str:
    """Writes the saved model of the graph that is being built, and returns its path.

    The path is a new folder of ``base`` named by the time.

    Raises:
        ValueError: ``assets_extra`` names a file outside of the saved model, or no signature is the
            default one.
    """
    folder = new_folder(Path(base))
    building = folder.with_name(f"temp-{folder.name}")
    with v1.Session() as session:
        scaffold = spec.scaffold or v1.train.Scaffold()
        saver = scaffold.saver or v1.train.Saver()
        saver.restore(session, checkpoint)
        session.run([v1.local_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(building))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            signature_def_map=_signatures(spec, receiver),
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf.group(v1.tables_initializer(), v1.local_variables_initializer()),
            saver=saver,
        )
        builder.save(as_text)
    for name, source in (assets_extra or {}).items():
        target = building / "assets.extra" / name
        # A name such as `../../weights` would overwrite files elsewhere.
        if not target.resolve().is_relative_to((building / "assets.extra").resolve()):
            raise ValueError(f"`assets_extra` names a file outside of the saved model: {name}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    # By a rename, so that a server which watches the folder sees an export when it is complete.
    building.rename(folder)
    return str(folder)


def _signatures(spec: EstimatorSpec, receiver: ServingInputReceiver) -> dict[str, object]:
    outputs = spec.export_outputs or {_SERVING: PredictOutput(spec.predictions)}
    found = {
        name: _signature(receiver.receiver_tensors, output.as_outputs())
        for name, output in outputs.items()
    }
    # Servers ask for the default signature where a client names none.
    if len(found) == 1:
        found = {_SERVING: next(iter(found.values())), **found}
    if _SERVING not in found:
        raise ValueError(
            f"Several `export_outputs` need one called {_SERVING!r}. Received: {sorted(found)}."
        )
    return found


def _signature(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> object:
    return v1.saved_model.predict_signature_def(dict(inputs), dict(outputs))


def new_folder(base: Path) -> Path:
    """Returns a path in ``base`` named by the time, which no other export has."""
    base.mkdir(parents=True, exist_ok=True)
    now = int(time.time())
    # Two exports may begin within a second.
    while (base / str(now)).exists():
        now += 1
    return base / str(now)
