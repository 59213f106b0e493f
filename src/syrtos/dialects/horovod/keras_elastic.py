"""The modules `horovod.keras.elastic` and `horovod.tensorflow.keras.elastic`."""

from __future__ import annotations

from syrtos.dialects.horovod.callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from syrtos.dialects.horovod.elastic import KerasState, TensorFlowKerasState, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
