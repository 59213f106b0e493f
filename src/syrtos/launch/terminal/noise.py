"""Lines that libraries print on each start and that tell a user nothing.

They go to a run's log files, not to terminals.
"""

from __future__ import annotations

import re

# Lines that TensorFlow 2.21 prints on each start, twice and at any TF_CPP_MIN_LOG_LEVEL: more than
# many scripts print.
_WARNING = b"WARNING: All log messages before absl::InitializeLog"
_START = re.compile(rb"[IE]0000 \S+ +\d+ (port|cudart_stub|cuda_platform|cuda_executor)\.cc:\d+\]")
_MAY_START = re.compile(rb"[IE]0{0,4}\Z|[IE]0000 |W\d{0,4}\Z|W\d{4} |\[\Z|\[W\d*\Z|\[W\d+ ")
# What JAX 0.10 prints on each start of several processes: that they are connected, and that their
# ends don't wait for each other.
_GLOO = b"[Gloo] Rank "
_RECOVERABLE = re.compile(
    rb"W\d{4} \S+ +\d+ coordination_service\.cc:\d+\] \S+ Using experimental recoverable task"
    rb" feature"
)
# What torch 2.13 prints where a name service does not know the address of a host that has
# connected: it was for messages only.
_UNNAMED = re.compile(
    rb"\[W\d+ \S+ socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be retrieved"
)


def is_noise(line: bytes) -> bool:
    """Returns whether a line is noise."""
    return line.startswith((_WARNING, _GLOO)) or any(
        known.match(line) for known in (_START, _RECOVERABLE, _UNNAMED)
    )


def may_be_noise(beginning: bytes) -> bool:
    """Returns whether a line that begins like this may turn out to be noise."""
    known = any(beginning.startswith(text[: len(beginning)]) for text in (_WARNING, _GLOO))
    return known or bool(_MAY_START.match(beginning))
