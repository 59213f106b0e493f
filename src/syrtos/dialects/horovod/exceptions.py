"""`horovod.common.exceptions`."""

from __future__ import annotations

from syrtos.errors import SyrtosError


class HorovodInternalError(SyrtosError, RuntimeError):
    """An exchange failed. Never raised here: the launcher ends all workers, and starts others."""


class HostsUpdatedInterrupt(SyrtosError, RuntimeError):
    """Hosts have come or gone. Never raised here: the launcher ends all workers, and starts others."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were updated")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(SyrtosError, ImportError):
    """Never raised here: there is nothing compiled that could mismatch."""
