"""Zygotes for tests."""

from __future__ import annotations

import functools
import importlib.util
import os

import pytest

from syrtos.testing import warm

ENV = {"PATH": os.environ["PATH"]}


def test_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(warm, "_zygote", functools.cache(warm._zygote.__wrapped__))  # those of other tests stay
    first = warm.zygote(ENV)
    assert warm.zygote(ENV) is first
    first._process.kill()
    first._process.wait()
    assert warm.zygote(ENV) is not first
    assert warm.zygote(ENV).lives()
