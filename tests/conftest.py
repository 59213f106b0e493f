"""Helpers of each folder are importable by name; interrupts reach what tests start."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

for folder in (".", "contract", "parity", "e2e"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

# A shell starts what runs in its background with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
