"""Addresses at which the workers' frameworks meet to join by their own means.

Rank 0 gives them to all workers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.topology import address_of_default_route

LOOPBACK = "127.0.0.1"
_LONGEST = 80  # bytes


def listening_address(framework: str, session: Session) -> str:
    """Returns the address at which this worker's part of a framework's collectives listens.

    It is `LOOPBACK` if all workers are on one machine. All workers call it together.

    Raises:
        ConfigurationError: see `address_of_host`.
    """
    return LOOPBACK if on_one_host(session) else address_of_host(framework, session)


def on_one_host(session: Session) -> bool:
    """Returns whether all workers are on this machine; all of them call it together.

    The instances of a job count as hosts, and may be on one machine all the same.
    """
    if session.world.size == session.world.local_size:
        return True
    return len(set(session.comm.allgather_object(_machine_identity()))) == 1


def _machine_identity() -> str:
    """Returns the boot of this machine, its network, and the place for `folder`, as text.

    They are equal on workers that reach each other by loopback and by files.
    """
    boot, place = (
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        os.stat(_folder_of_socket()),
    )
    return f"{boot} {os.readlink('/proc/self/ns/net')} {place.st_dev} {place.st_ino}"


def folder() -> str:
    """Makes a folder of this user's alone, and returns its path.

    The path is short enough for a socket in the folder (the system takes 108 bytes), however long
    TMPDIR is.
    """
    return tempfile.mkdtemp(prefix="syrtos-", dir=_folder_of_socket())


def _folder_of_socket() -> str:
    place = tempfile.gettempdir()
    return place if len(os.fsencode(place)) < _LONGEST else "/tmp"


def address_of_host(framework: str, session: Session) -> str:
    """Returns the address by which other hosts reach this one. All workers call it together.

    It is that of the host's name, or of its default route where the name stands for a loopback
    address, as Debian writes it into /etc/hosts.

    Raises:
        ConfigurationError: the host has neither, or hosts have the same.
    """
    mine = _address(framework)
    everyone = session.comm.allgather_object([_machine_identity(), mine])
    if len({address for _, address in everyone}) < len({here for here, _ in everyone}):
        raise ConfigurationError(
            f"Hosts name the same address as theirs ({mine}), as virtual machines do behind one"
            f" router: {framework}'s workers would not find each other. Give each host's own name"
            " the address of the network that they share, in /etc/hosts."
        )
    return mine


def _address(framework: str) -> str:
    name = socket.gethostname()
    with contextlib.suppress(socket.gaierror):
        host = socket.gethostbyname(name)
        if not host.startswith("127."):
            return host
    if found := address_of_default_route():
        return found
    raise ConfigurationError(
        f"Host {name} has no address by which other hosts reach it: its own name stands for none"
        f" but loopback, and it has no default route. {framework}'s workers need one: correct"
        " /etc/hosts, or the name service."
    )


def free_port(host: str) -> int:
    """Returns a port of that address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
