"""The doctor's part on another host, run as `python -m syrtos.doctor.machine_probe`.

The doctor is at the other end of standard input and output. Each message is a line of JSON; those
of the probe stand behind a mark. The probe first sends facts, among them a port that it listens on
as long as it runs. Then it answers ``{"clock": ...}`` with its time, ``{"folder": path}`` with
whether that folder exists, and ``{"peers": {host: [[address, port], ...]}}`` with the reason why it
can't connect to each host, empty where it can.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any

import psutil

from syrtos.doctor import machine_facts

MARK = "\x1esyrtos doctor "
_SECONDS = 2.0  # for a connection


def main() -> None:
    """Answers the doctor until standard input ends."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        _tell({**_facts(), "port": listener.getsockname()[1]})
        for line in sys.stdin:
            asked = json.loads(line)
            if "folder" in asked:
                _tell({"folder": os.path.isdir(asked["folder"])})
            elif "peers" in asked:
                _tell(
                    {host: _unreachable_reason(places) for host, places in asked["peers"].items()}
                )
            else:
                _tell({"time": time.time()})


def _tell(facts: dict[str, Any]) -> None:
    print(MARK + json.dumps(facts), flush=True)


def _facts() -> dict[str, Any]:
    try:
        shared = machine_facts.shared_memory()
    except OSError:
        shared = 0
    return {
        "versions": machine_facts.versions_to_compare(),
        "host": socket.gethostname(),
        "cores": machine_facts.cores(),
        "memory": psutil.virtual_memory().available,
        "shared": shared,
        "addresses": _addresses(),
    }


def _addresses() -> list[str]:
    """Returns the IPv4 addresses of this host without those of loopback."""
    all_of_them = (address for addresses in psutil.net_if_addrs().values() for address in addresses)
    return [
        each.address
        for each in all_of_them
        if each.family is socket.AF_INET and not each.address.startswith("127.")
    ]


def _accept(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed
        while True:
            listener.accept()[0].close()


def _unreachable_reason(places: list[tuple[str, int]]) -> str:
    """Returns why none of these addresses of a host can be connected to; empty if one can."""
    why = "it has no address but loopback"
    for address, port in places:
        try:
            socket.create_connection((address, port), _SECONDS).close()
        except OSError as error:
            why = f"{address}: {error.strerror or error}"
        else:
            return ""
    return why


if __name__ == "__main__":
    main()
