"""What trackers have of a run, as their own clients tell: `tracked.py MLFLOW_URI EXPERIMENT WANDB_FOLDER`; JSON on standard output."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
from wandb.proto import wandb_internal_pb2

_BLOCK, _HEADER = 32768, 7


def records(data: bytes) -> Iterator[bytes]:
    """The records of an offline run's file, which is a log of LevelDB (doc/log_format.md there) behind seven bytes."""
    at, whole = 7, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (1, 4):  # whole, or the last part of one
            yield whole
            whole = b""


uri, experiment, folder = sys.argv[1:]
client = mlflow.MlflowClient(uri)
found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
(run,) = found
history = client.get_metric_history(run.info.run_id, "epoch/loss")

(path,) = Path(folder).glob("offline-run-*/run-*.wandb")
rows: list[dict[str, object]] = []
config: dict[str, object] = {}
for data in records(path.read_bytes()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.HasField("history"):
        rows.append(
            {
                (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                for item in record.history.item
            }
        )
    if record.HasField("run"):
        config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
print(
    json.dumps(
        {
            "status": run.info.status,
            "params": run.data.params,
            "metrics": run.data.metrics,
            "epochs": [[metric.step, metric.value] for metric in history],
            "artifacts": [artifact.path for artifact in client.list_artifacts(run.info.run_id)],
            "wandb": [row["epoch/loss"] for row in rows if "epoch/loss" in row],
            "wandb config": config,
        }
    )
)
