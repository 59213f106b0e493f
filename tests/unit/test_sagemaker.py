"""The front door of `syrtos.sagemaker`."""

from __future__ import annotations

import sys

import pytest

from syrtos.errors import ConfigurationError


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import syrtos.sagemaker

    monkeypatch.delitem(sys.modules, "syrtos.sagemaker.distributed", raising=False)
    monkeypatch.setitem(sys.modules, "sagemaker", None)
    with pytest.raises(ConfigurationError, match="pip install 'sagemaker>=3'"):
        _ = syrtos.sagemaker.Syrtos
