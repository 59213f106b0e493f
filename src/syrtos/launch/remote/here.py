"""A test of whether a host's name is this machine's."""

from __future__ import annotations

import contextlib
import socket


def is_here(host: str) -> bool:
    """Returns whether ``host`` names this machine.

    It does if this machine sends from the addresses of that name what it sends to them. Addresses
    of a family that is off don't count.
    """
    # These are known without a network too.
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    own: set[bool] = set()
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            # For datagrams this only chooses an address to send from: nothing is sent.
            probe.connect(address)
            own.add(probe.getsockname()[0] == address[0])
    return own == {True}
