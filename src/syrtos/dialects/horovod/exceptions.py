"""`horovod.common.exceptions`."""

from __future__ import annotations

from syrtos.errors import SyrtosError


class HorovodInternalError(SyrtosError, RuntimeError):
    """An exchange failed. Here a failed worker ends the run: start it again with the same ``--run-dir``."""


class HostsUpdatedInterrupt(SyrtosError, RuntimeError):
    """Hosts have come or gone. Never raised here: a run keeps its workers."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were updated")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(SyrtosError, ImportError):
    """Never raised here: there is nothing compiled that could mismatch."""
