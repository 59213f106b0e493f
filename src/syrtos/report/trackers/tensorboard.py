"""Logging to TensorBoard: event files, written by its own writer, without TensorFlow."""

# ruff: noqa: E402

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# TensorBoard looks for this module to know that it is to do without TensorFlow, whose import takes
# 3 s of the cores that train. Seen on 2.21.
sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from syrtos.report.figures import FiguresPoint
from syrtos.report.trackers import About, Ended, Tracker

# Modules that protobuf makes, whose classes a type checker does not see.
_event: Any = event_pb2
_summary: Any = summary_pb2
_tensor: Any = tensor_pb2
_shape: Any = tensor_shape_pb2
_DT_STRING = 7  # of tensorflow/core/framework/types.proto


class TensorBoard(Tracker):
    """Logs to a folder of event files: by default `tensorboard` in the run directory."""

    def __init__(self, about: About, place: str, known_as: str) -> None:
        folder = Path(place) / about.name if place else about.folder / "tensorboard"
        self._known_as = str(folder)
        self._writer = EventFileWriter(str(folder))
        if not known_as:
            rows = "".join(f"| {name} | {value} |\n" for name, value in about.parameters.items())
            self._text("parameters", f"| | |\n|---|---|\n{rows}")

    @property
    def known_as(self) -> str:
        return self._known_as

    def log(self, points: Sequence[FiguresPoint]) -> None:
        for point in points:
            values = [
                _summary.Summary.Value(tag=name, simple_value=value)
                for name, value in point.values.items()
            ]
            self._writer.add_event(
                _event.Event(
                    wall_time=point.time, step=point.step, summary=_summary.Summary(value=values)
                )
            )
        self._writer.flush()

    def end(self, how: Ended, report: Path | None) -> None:
        self._text("report", f"{how}: `{report}`")
        self._writer.close()

    def _text(self, tag: str, words: str) -> None:
        """Writes a text for the plugin "text" of TensorBoard."""
        shape = _shape.TensorShapeProto(dim=[_shape.TensorShapeProto.Dim(size=1)])
        tensor = _tensor.TensorProto(
            dtype=_DT_STRING, string_val=[words.encode()], tensor_shape=shape
        )
        metadata = _summary.SummaryMetadata(
            plugin_data=_summary.SummaryMetadata.PluginData(plugin_name="text")
        )
        self._writer.add_event(
            _event.Event(
                summary=_summary.Summary(
                    value=[_summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]
                )
            )
        )
