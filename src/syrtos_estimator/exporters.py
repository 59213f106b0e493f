"""The exporters of `tf.estimator`: saved models written after evaluations."""

from __future__ import annotations

import abc
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf

if TYPE_CHECKING:
    from syrtos_estimator.signatures import ServingInputReceiver

# Metrics by name, as the operations of a script's `model_fn` give them: NumPy numbers, and arrays.
Metrics = Mapping[str, Any]


class ExportedEstimator(Protocol):
    """An Estimator, as far as exporters know it."""

    @property
    def model_dir(self) -> str:
        """The folder of all files that are written."""
        ...

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Writes a saved model in a new folder of ``export_dir_base``, and returns its path."""
        ...


class Exporter(abc.ABC):
    """A base class of exporters of an Estimator's model."""

    def __init__(self, name: str) -> None:
        """Keeps the name of a folder under ``model_dir/export``.

        Raises:
            ValueError: it is empty.
        """
        if not name:
            raise ValueError("An exporter needs a name: it becomes the name of a folder.")
        self._name = name

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._name

    @abc.abstractmethod
    def export(
        self,
        estimator: ExportedEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports, and returns the saved model's folder; None if there is nothing to export now."""


class _Saving(Exporter):
    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ) -> None:
        super().__init__(name)
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(
                f"`exports_to_keep` must be positive, or None for all. Received: {exports_to_keep}."
            )
        self._keep = exports_to_keep
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text

    def _save(self, estimator: ExportedEstimator, export_path: str, checkpoint_path: str) -> bytes:
        saved = estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        _keep_last(export_path, self._keep)
        return saved


class FinalExporter(_Saving):
    """Exports once, at the end."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        """Makes an exporter that keeps what earlier runs have exported."""
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(
        self,
        estimator: ExportedEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports if this is the final export; else returns None."""
        return self._save(estimator, export_path, checkpoint_path) if is_the_final_export else None


class LatestExporter(_Saving):
    """Exports after every evaluation, and keeps the last few."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Makes an exporter that keeps the last ``exports_to_keep`` exports; None: all.

        Raises:
            ValueError: ``exports_to_keep`` is not positive.
        """
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(
        self,
        estimator: ExportedEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports, and removes the oldest exports."""
        return self._save(estimator, export_path, checkpoint_path)


def _loss_smaller(best_eval_result: Metrics, current_eval_result: Metrics) -> bool:
    return current_eval_result["loss"] < best_eval_result["loss"]


class BestExporter(_Saving):
    """Exports whenever an evaluation is better than all before it.

    The evaluations of earlier runs in ``model_dir`` are included.
    """

    # Earlier runs are known by the files that evaluations write for TensorBoard: nothing else keeps
    # their results.

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Makes an exporter that compares evaluations by ``compare_fn``.

        ``compare_fn(best_eval_result, current_eval_result)`` returns whether the current evaluation
        is better.

        Raises:
            ValueError: ``exports_to_keep`` is not positive.
        """
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._pattern = event_file_pattern
        self._better = compare_fn
        self._best: Metrics | None = None
        self._looked = False

    def export(
        self,
        estimator: ExportedEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports if this evaluation is better than the best before it; else returns None."""
        # Once, and not in `__init__`, where the folder of the estimator is not known yet.
        if not self._looked and self._pattern:
            now = eval_result.get("global_step")
            self._best = self._best_before(
                estimator.model_dir, self._pattern, None if now is None else int(now)
            )
        self._looked = True
        if self._best is not None and not self._better(
            best_eval_result=self._best, current_eval_result=eval_result
        ):
            return None
        self._best = eval_result
        return self._save(estimator, export_path, checkpoint_path)

    def _best_before(self, model_dir: str, pattern: str, now: int | None) -> Metrics | None:
        """Returns the best evaluation in the event files, without that of step ``now``.

        The evaluation of step ``now`` has just been written.
        """
        best = None
        for path in sorted(Path(model_dir).glob(pattern)):
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                found = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if (
                    found
                    and event.step != now
                    and (
                        best is None
                        or self._better(best_eval_result=best, current_eval_result=found)
                    )
                ):
                    best = found
        return best


def _keep_last(folder: str, count: int | None) -> None:
    """Removes all but the newest ``count`` exports, unless ``count`` is None."""
    # Names of exports are the times of their writing. Other folders are the script's own, or
    # unfinished exports.
    exports = sorted(
        (path for path in Path(folder).iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    for old in exports[: -count if count else 0]:
        shutil.rmtree(old)
