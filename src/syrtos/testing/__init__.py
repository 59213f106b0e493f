"""Tools for tests of your own: real workers inside a test, and faults on demand."""

from syrtos.testing.faults import fail_at
from syrtos.testing.world import WorldFailed, run_world

__all__ = ["WorldFailed", "fail_at", "run_world"]
