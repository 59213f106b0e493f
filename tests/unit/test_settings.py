"""Options: refused early, and the same on both ends of the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos.settings import OPTIONS_VARIABLE, Options, options_from

options = st.builds(
    Options,
    batch=st.sampled_from(["global", "per-worker"]),
    sync_batchnorm=st.booleans(),
    scale_lr=st.sampled_from(["none", "linear", "sqrt"]),
    warmup_epochs=st.integers(0, 1000),
    check_every=st.integers(-1, 10**9),
    timeout=st.floats(0, exclude_min=True, allow_infinity=False),
    run_dir=st.text(),
    bucket_mb=st.floats(0, exclude_min=True, allow_infinity=False),
)


@given(options)
def test_options_round_trip(sent: Options) -> None:
    assert options_from({OPTIONS_VARIABLE: sent.to_json()}) == sent


@pytest.mark.parametrize("env", [{}, {OPTIONS_VARIABLE: ""}, {"SYRTOS_OTHER": "{}"}])
def test_without_the_variable_the_defaults_hold(env: dict[str, str]) -> None:
    assert options_from(env) == Options()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "3",
        "[1]",
        '"global"',
        '{"batches": "global"}',
        '{"warmup_epochs": "3"}',
        "global",
        '{"batch":',
    ],
)
def test_what_no_launcher_writes_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"SYRTOS_OPTIONS can't be read.*same version of syrtos"
    ) as caught:
        options_from({OPTIONS_VARIABLE: text})
    assert caught.value.__cause__ is not None


def test_bad_values_on_the_wire_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"`bucket_mb` must be more than 0\. Received: -1"):
        options_from({OPTIONS_VARIABLE: json.dumps({"bucket_mb": -1})})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": "local"}, "`batch` must be one of global, per-worker. Received: 'local'"),
        ({"scale_lr": "cubic"}, "`scale_lr` must be one of none, linear, sqrt. Received: 'cubic'"),
        ({"warmup_epochs": -1}, "`warmup_epochs` must be 0 or more. Received: -1"),
        (
            {"check_every": -2},
            r"`check_every` must be steps, 0 \(never\) or -1 \(automatic\)\. Received: -2",
        ),
        ({"timeout": 0.0}, "`timeout` must be more than 0. Received: 0.0"),
        ({"bucket_mb": -2.0}, "`bucket_mb` must be more than 0. Received: -2.0"),
    ],
)
def test_impossible_options_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options(**values)


@pytest.mark.parametrize("name", ["warmup_epochs", "check_every"])
def test_zero_turns_off(name: str) -> None:
    values: dict[str, Any] = {name: 0}
    assert getattr(Options(**values), name) == 0


@pytest.mark.parametrize("name", ["timeout", "bucket_mb"])
def test_nan_is_no_limit(name: str) -> None:
    values: dict[str, Any] = {name: float("nan")}
    with pytest.raises(ConfigurationError):
        Options(**values)


def test_replicas_are_compared_as_often_as_is_cheap_unless_told() -> None:
    assert Options().check_every == -1


def test_options_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        Options().timeout = 1.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "other",
    [
        {"servers": 1, "staleness": 0}, {"batch": "per-worker"}, {"sync_batchnorm": True}, {"on_divergence": "repair"}, {"on_nan": "skip"},
        {"scale_lr": "linear"},
    ],
)  # fmt: skip
def test_workers_that_train_alone_make_no_update_together(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="`--sync-every 8` lets each worker train alone"):
        Options(sync_every=8, **other)


@pytest.mark.parametrize(
    "wrong",
    [{"sync_every": -1}, {"outer_lr": 0.0}, {"outer_momentum": 1.0}, {"outer_momentum": -0.1}],
)
def test_numbers_of_an_outer_optimizer_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Options(**{"sync_every": 8, **wrong})
