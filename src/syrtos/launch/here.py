"""Whether a host's name is this machine's."""

from __future__ import annotations

import contextlib
import socket


def is_here(host: str) -> bool:
    """What this machine sends to an address of its own, it sends from there. Addresses of a family that is off don't count."""
    if host in ("localhost", socket.gethostname()):  # also without a network
        return True
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    own: set[bool] = set()
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # which sends nothing
            own.add(probe.getsockname()[0] == address[0])
    return own == {True}
