"""Rates of two workers with linear scaling: from 0.1 to 0.2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest

from syrtos.keras.features import learning_rate
from syrtos.keras.features.learning_rate import Scaling
from syrtos.keras.recovery import resume
from syrtos.settings import Options
from syrtos.topology import World


def model(rate: Any = 0.1, trained: int = 0) -> Any:
    optimizer: Any = keras.optimizers.SGD(rate)
    optimizer.build([keras.Variable([1.0])])
    optimizer.iterations.assign(trained)
    return SimpleNamespace(optimizer=optimizer)


def scaling(one: Any, warmup_epochs: int = 0) -> Scaling:
    options = Options(scale_lr="linear", warmup_epochs=warmup_epochs)
    session: Any = SimpleNamespace(options=options, world=World(size=2))
    begun = Scaling(session)
    begun.begin(one)
    begun.scale_if_new()
    return begun


def rate(one: Any) -> float:
    return round(float(one.optimizer.learning_rate), 4)


def test_a_new_optimizer_gets_the_scaled_rate_once() -> None:
    one = model()
    for _ in range(2):
        scaling(one)
        assert rate(one) == 0.2


def test_several_steps_in_one_call_reach_the_scaled_rate() -> None:
    one = model()
    climbing = scaling(one, warmup_epochs=1)
    rates = []
    for trained in (0, 4, 8, 12, 16):
        climbing.warm_up(0, trained, 10)
        rates.append(rate(one))
    assert rates == [0.1, 0.14, 0.18, 0.2, 0.2]


def test_after_the_warm_up_the_rate_is_the_script_s() -> None:
    one = model()
    climbing = scaling(one, warmup_epochs=1)
    for trained in (0, 9, 10):
        climbing.warm_up(0, trained, 10)
    one.optimizer.learning_rate = 0.05  # e.g. a plateau
    climbing.warm_up(1, 11, 10)
    assert rate(one) == 0.05


def test_fits_of_one_epoch_over_data_of_unknown_length_climb_too() -> None:
    one = model()
    rates = []
    for k in range(3):
        climbing = scaling(one, warmup_epochs=2)
        climbing.warm_up(0, 0, None)
        rates.append(rate(one))
        one.optimizer.iterations.assign(10 * (k + 1))
        climbing.epoch_ended(10)
    assert rates == [0.1, 0.15, 0.2]


def test_weights_loaded_for_fine_tuning_bring_no_rate_with_them() -> None:
    one = model(rate=1e-5)
    resume._take(one, {"base_rate": 0.1})
    scaling(one)
    assert float(one.optimizer.learning_rate) == pytest.approx(2e-5)
    trained = model(rate=0.15, trained=5)
    resume._take(trained, {"base_rate": 0.1})
    assert learning_rate.base_rate(trained.optimizer) == 0.1


def test_a_schedule_is_refused() -> None:
    with pytest.raises(learning_rate.ConfigurationError, match="has a schedule"):
        scaling(model(rate=keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)))
