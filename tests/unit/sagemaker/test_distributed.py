"""The argument of ModelTrainer, without the SDK: its base class has a stand-in."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError


class _Config:
    """What the SDK's class does: fields with defaults, as pydantic has them."""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)
        self.model_post_init(None)

    def model_post_init(self, context: Any, /) -> None:
        pass


@pytest.fixture
def syrtos_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("sagemaker.train.distributed")
    module.DistributedConfig = _Config  # type: ignore[attr-defined]
    for name in ("sagemaker", "sagemaker.train"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "syrtos.sagemaker.distributed", raising=False)
    yield importlib.import_module("syrtos.sagemaker").Syrtos
    sys.modules.pop("syrtos.sagemaker.distributed", None)


def test_the_driver_is_in_the_folder(syrtos_class: Any) -> None:
    asked = syrtos_class(workers_per_host=2)
    assert (Path(asked.driver_dir) / asked.driver_script).is_file()


def test_options_that_choose_hosts_are_refused(syrtos_class: Any) -> None:
    syrtos_class(options=["--batch", "per-worker"])
    with pytest.raises(ConfigurationError, match="`options` can't have --run-dir=x"):
        syrtos_class(options=["--run-dir=x"])


def test_no_workers_are_refused(syrtos_class: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        syrtos_class(workers_per_host=0)
