"""What is said of errors of a step."""

from __future__ import annotations

import pytest

from syrtos.keras.split.described_errors import describe_error


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("{{function_node __wrapped__AddV2_device_/job:x}} Incompatible shapes. [Op:AddV2]", "ValueError: Incompatible shapes. [Op:AddV2]"),
        ("in user code:\n\n    File \"a.py\", line 3, in f\n\n    TypeError: no rows\n", "TypeError: no rows"),
        ("Exception encountered when calling A.call().\n\n\x1b[1mno rows\x1b[0m\n\nArguments received by A.call():", "ValueError: no rows"),
        ("", "ValueError"),
    ],
)  # fmt: skip
def test_the_cause_is_named(message: str, said: str) -> None:
    assert describe_error(ValueError(message)) == said
