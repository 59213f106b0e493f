"""The exceptions of `horovod.common.exceptions`."""

from __future__ import annotations

from syrtos.errors import SyrtosError


class HorovodInternalError(SyrtosError, RuntimeError):
    """The error of a failed exchange.

    It is never raised here: the launcher ends all workers, and starts others.
    """


class HostsUpdatedInterrupt(SyrtosError, RuntimeError):
    """The interrupt for hosts that come or go.

    It is never raised here: the launcher ends all workers, and starts others.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were updated")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(SyrtosError, ImportError):
    """The error of compiled parts that do not match. Never raised here: nothing is compiled."""
