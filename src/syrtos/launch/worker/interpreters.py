"""The interpreters and packages of the workers, which are to be alike."""

from __future__ import annotations

import contextlib
import platform
import socket
import sys
from typing import TYPE_CHECKING

from syrtos.errors import WorldError

if TYPE_CHECKING:
    from syrtos.comm.communicator import Communicator

_COMPARED = (
    "syrtos",
    "keras",
    "tf_keras",
    "tensorflow",
    "jax",
    "jaxlib",
    "torch",
    "numpy",
    "mpi4py",
    "mpich",
)


def check(comm: Communicator, several_hosts: bool) -> None:
    """Refuses unequal versions, which only several hosts can have, and says where hashes differ."""
    installed = {name: version(name) for name in _COMPARED} if several_hosts else {}
    mine = {"python": platform.python_version(), **installed}
    everyone = comm.allgather_object([socket.gethostname(), mine, hash("syrtos")])
    for host, theirs, _ in everyone:
        different = {
            name: (everyone[0][1][name], theirs[name])
            for name in theirs
            if theirs[name] != everyone[0][1][name]
        }
        if different:
            lines = [
                f"  {name}: {a} on {everyone[0][0]}, {b} on {host}"
                for name, (a, b) in different.items()
            ]
            raise WorldError(
                "Hosts run different versions:\n"
                + "\n".join(lines)
                + "\nInstall the same versions on all hosts."
            )
    if len({hashed for _, _, hashed in everyone}) > 1 and comm.rank == 0:
        print(
            "syrtos: hashes of texts differ between the workers, and so does the order of a"
            " script's sets: a flag of the interpreter (-R, -E, -I) or unequal values of"
            " PYTHONHASHSEED ask for it.",
            file=sys.stderr,
        )


def version(name: str, absent: str = "not installed") -> str:
    """Returns the version of a package, found without importing it; ``absent`` where there is none."""
    # Only here: it takes 25 ms to import.
    import importlib.metadata

    # What is not released yet stands under a name of its own.
    for package in (name, f"{name}-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return absent
