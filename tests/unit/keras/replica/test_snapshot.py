"""A CSV log of a `fit` that goes on: it keeps the lines that were written when the snapshot was made, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tf_keras

from syrtos.keras.replica import snapshot


def began(
    kind: Any, path: Path, facts: list[Any] | None = None, cuts: bool = True, append: bool = False
) -> Any:
    """A log whose `fit` has begun, or goes on from what a snapshot says of it."""
    log = kind.callbacks.CSVLogger(str(path), append=append)
    lengths = snapshot.keep_written([log], facts or [])
    if cuts:
        snapshot.cut_logs(lengths)
    log.set_model(kind.Sequential())
    log.on_train_begin()
    snapshot.begin_logs([log])
    return log


@pytest.mark.parametrize("kind", [keras, tf_keras])
@pytest.mark.parametrize("before", [None, "epoch,loss,val_loss\n0,9.0,9.0\n1,9.0,9.0\n2,9.0,9.0\n"])
def test_lines_of_steps_that_are_trained_again_are_cut_off(
    tmp_path: Path, kind: Any, before: str | None
) -> None:
    """Also where the snapshot is older than the first line, and an earlier run has left a log."""
    path = tmp_path / "log.csv"
    if before is not None:
        path.write_text(before)
    log = began(kind, path)
    facts: list[Any] = [{"written": snapshot._csv_log_length(log)}]
    log.on_epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    log.csv_file.flush()
    again = began(kind, path, facts)
    again.on_epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    again.on_train_end()
    assert path.read_text().splitlines() == ["epoch,loss,val_loss", "0,1.0,2.0"]


@pytest.mark.parametrize("kind", [keras, tf_keras])
def test_lines_that_were_there_stay(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "log.csv"
    log = began(kind, path)
    log.on_epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    facts: list[Any] = [{"written": snapshot._csv_log_length(log)}]
    log.on_epoch_end(1, {"loss": 0.5, "val_loss": 1.0})
    log.csv_file.flush()
    again = began(kind, path, facts)
    again.on_epoch_end(1, {"loss": 0.5, "val_loss": 1.0})
    again.on_train_end()
    assert path.read_text().splitlines() == ["epoch,loss,val_loss", "0,1.0,2.0", "1,0.5,1.0"]


@pytest.mark.parametrize("kind", [keras, tf_keras])
def test_a_log_of_a_fit_that_has_ended_stays_whole(tmp_path: Path, kind: Any) -> None:
    """Snapshots are made after `on_train_end` too, where the log is closed."""
    path = tmp_path / "log.csv"
    log = began(kind, path)
    log.on_epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    log.on_train_end()
    facts: list[Any] = [{"written": snapshot._csv_log_length(log)}]
    again = began(kind, path, facts)
    again.on_train_end()
    assert path.read_text().splitlines() == ["epoch,loss,val_loss", "0,1.0,2.0"]


@pytest.mark.parametrize("kind", [keras, tf_keras])
def test_a_fit_that_is_left_out_keeps_the_lines_of_a_later_one(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "log.csv"
    log = began(kind, path)
    log.on_epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    log.on_train_end()
    ended: list[Any] = [{"written": snapshot._csv_log_length(log)}]
    later = began(kind, path, append=True)
    later.on_epoch_end(0, {"loss": 0.5, "val_loss": 1.0})
    facts: list[Any] = [{"written": snapshot._csv_log_length(later)}]
    later.on_epoch_end(1, {"loss": 0.2, "val_loss": 0.5})
    later.csv_file.flush()
    began(kind, path, ended, cuts=False).on_train_end()
    again = began(kind, path, facts, append=True)
    again.on_epoch_end(1, {"loss": 0.2, "val_loss": 0.5})
    again.on_train_end()
    assert path.read_text().splitlines()[1:] == ["0,1.0,2.0", "0,0.5,1.0", "1,0.2,0.5"]


def test_a_difference_that_keras_reverses_is_reversed_once() -> None:
    """`EarlyStopping` takes a loss to be less by `min_delta`; it reverses that at its first epoch's end."""

    def made() -> Any:
        stop = keras.callbacks.EarlyStopping("loss", min_delta=1, mode="min", patience=2)
        stop.set_model(keras.Sequential())
        stop.on_train_begin()
        return stop

    one, again = made(), made()
    begun = snapshot.plain_attributes(one)
    arrays: Any = {}
    one.on_epoch_end(0, {"loss": 3.0})
    facts = snapshot.callbacks([one], [begun], arrays)
    snapshot.put_back_callbacks([again], facts, arrays)
    for stop in (one, again):
        stop.on_epoch_end(1, {"loss": 2.9})
        stop.on_epoch_end(2, {"loss": 2.8})
    assert (again.min_delta, again.wait, again.best) == (one.min_delta, one.wait, one.best)
    assert again.model.stop_training
