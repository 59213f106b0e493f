"""SDK v2's tuner as its users call it: fit, wait, the best job, a table, attach, stop."""

from __future__ import annotations

from typing import Any

import sagemaker
from client import ASKED, answer
from sagemaker.tensorflow import TensorFlow
from sagemaker.tuner import (
    CategoricalParameter,
    ContinuousParameter,
    HyperparameterTuner,
    IntegerParameter,
)

session = sagemaker.Session()


def tuner(pause: float, **facts: Any) -> HyperparameterTuner:
    estimator = TensorFlow(
        entry_point="tuned.py",
        source_dir=ASKED["source"],
        role=None,
        instance_type="ml.m5.large",
        instance_count=1,
        framework_version="2.19",
        py_version="py312",
        sagemaker_session=session,
        hyperparameters={"pause": pause},
    )
    ranges = {
        "rate": ContinuousParameter(0.001, 1.0, scaling_type="Logarithmic"),
        "layers": IntegerParameter(1, 4),
        "activation": CategoricalParameter(["relu", "tanh"]),
    }
    return HyperparameterTuner(
        estimator, "val_accuracy", ranges, objective_type="Maximize", random_seed=3, **facts
    )


metrics = [{"Name": "val_accuracy", "Regex": "val_accuracy: ([0-9.]+)"}]
first = tuner(
    0.0,
    metric_definitions=metrics,
    max_jobs=4,
    max_parallel_jobs=2,
    base_tuning_job_name="first",
    strategy=ASKED["strategy"],
)
first.fit()  # waits
name = first.latest_tuning_job.name
frame = first.analytics().dataframe()
attached = HyperparameterTuner.attach(name, sagemaker_session=session)
best = first.best_estimator() if ASKED.get("estimator") else None

warm = first.identical_dataset_and_algorithm_tuner()
warm.max_jobs = 1
warm.fit()

second = tuner(60.0, max_jobs=4, max_parallel_jobs=2, base_tuning_job_name="second")
second.fit(wait=False)
second.stop_tuning_job()
second.wait()

answer(
    name=name,
    best=first.best_training_job(),
    attached=attached.best_training_job(),
    attached_ranges=sorted(attached.hyperparameter_ranges()),
    frame=frame.astype(str).to_dict("list"),
    values=frame["FinalObjectiveValue"].tolist(),
    description=first.describe(),
    warm=warm.describe(),
    warm_attached=HyperparameterTuner.attach(
        warm.latest_tuning_job.name, sagemaker_session=session
    ).warm_start_config.to_input_req(),
    stopped=second.describe(),
    model=None if best is None else best.model_data,
    job=session.describe_training_job(first.best_training_job()),
)
