"""SDK v3's tuner as its users call it: tune, the best job, a table, stop."""

from __future__ import annotations

import time
from typing import Any

import boto3
from client import ASKED, answer
from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, OutputDataConfig, SourceCode
from sagemaker.train.tuner import HyperparameterTuner


def tuner(pause: float, **facts: Any) -> HyperparameterTuner:
    trainer = ModelTrainer(
        training_image="syrtos",
        source_code=SourceCode(source_dir=ASKED["source"], entry_script="tuned.py"),
        compute=Compute(instance_type="ml.m5.large", instance_count=1, volume_size_in_gb=1),
        output_data_config=OutputDataConfig(s3_output_path="s3://tuned/output"),
        hyperparameters={"pause": pause},
        base_job_name="tuned",
    )
    ranges = {
        "rate": ContinuousParameter(0.001, 1.0, scaling_type="Logarithmic"),
        "layers": IntegerParameter(1, 4),
        "activation": CategoricalParameter(["relu", "tanh"]),
    }
    return HyperparameterTuner(
        trainer, "val_accuracy", ranges, objective_type="Maximize", random_seed=3, **facts
    )


metrics = [{"Name": "val_accuracy", "Regex": "val_accuracy: ([0-9.]+)"}]
first = tuner(
    0.0, metric_definitions=metrics, max_jobs=3, max_parallel_jobs=2, base_tuning_job_name="third"
)
first.tune()  # waits
frame = first.analytics().dataframe()
described = boto3.client("sagemaker").describe_hyper_parameter_tuning_job(
    HyperParameterTuningJobName=first.latest_tuning_job.hyper_parameter_tuning_job_name
)

second = tuner(
    60.0, metric_definitions=metrics, max_jobs=4, max_parallel_jobs=2, base_tuning_job_name="fourth"
)
second.tune(wait=False)
time.sleep(1)
second.stop_tuning_job()
second.wait()

best = first.best_training_job()
answer(
    best=best,
    values=frame["FinalObjectiveValue"].tolist(),
    names=frame["TrainingJobName"].tolist(),
    description=described,
    stopped=second.describe().hyper_parameter_tuning_job_status,
    job=boto3.client("sagemaker").describe_training_job(TrainingJobName=best),
)
