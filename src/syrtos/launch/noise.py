"""Lines that tell a user nothing, and that libraries print on each start: they are for a run's log files, not for terminals."""

from __future__ import annotations

import re

# Lines that TensorFlow 2.21 prints on each start, twice and at any TF_CPP_MIN_LOG_LEVEL: more than many scripts print.
_WARNING = b"WARNING: All log messages before absl::InitializeLog"
_START = re.compile(rb"[IE]0000 \S+ +\d+ (port|cudart_stub|cuda_platform|cuda_executor)\.cc:\d+\]")
_MAY_START = re.compile(rb"[IE]0{0,4}\Z|[IE]0000 ")


def is_noise(line: bytes) -> bool:
    """Whether this line is one of them."""
    return line.startswith(_WARNING) or bool(_START.match(line))


def may_be_noise(beginning: bytes) -> bool:
    """Whether a line that begins so may turn out to be one."""
    return beginning.startswith(_WARNING[: len(beginning)]) or bool(_MAY_START.match(beginning))
