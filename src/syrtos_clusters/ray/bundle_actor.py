"""The actor that takes a worker's place on a node.

It reserves what the worker needs, and starts an agent there when asked to.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.launch.processes import signalling
from syrtos.launch.remote.held_call import HeldCall
from syrtos.run_dir import RunDir
from syrtos.settings import environment, is_harmless
from syrtos_clusters.ray import links

_KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "TZ",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)


class WorkerPlace:
    """A worker's place. Ray makes it anew on another node when its own is lost."""

    def __init__(self) -> None:
        self._agents: list[subprocess.Popen[bytes]] = []
        self._call: HeldCall | None = None

    def facts(self, python: str, folder: str) -> dict[str, Any]:
        """Returns where the place is, and whether the run's interpreter and folder are there."""
        # not above: tests of what needs no Ray import this file
        ray: Any = importlib.import_module("ray")
        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "gpus": list(context.get_accelerator_ids().get("GPU", [])),
            "has_python": os.access(python, os.X_OK),
            "has_folder": os.path.isdir(folder),
        }

    def start(
        self,
        address: tuple[str, int],
        key: bytes,
        tickets: Sequence[str],
        command: Sequence[str],
        variables: Mapping[str, str],
        parcel: bytes = b"",
        for_job: bool = False,
    ) -> None:
        """Starts an agent whose standard input and output are a connection to the run.

        The agent's errors go over another connection. The agent ends with this process.

        Args:
            address: where the run listens.
            key: what it must be shown to know.
            tickets: the words by which it knows the two connections.
            command: the agent's command.
            variables: variables on top of this process's.
            parcel: a function that workers are to call, as `syrtos.notebook.parcel` packs it;
                empty: there is none.
            for_job: whether it gets, of this process's variables, only those that are known to be
                harmless.
        """
        self._agents = [agent for agent in self._agents if agent.poll() is None]
        if parcel and self._call is None:
            self._call = HeldCall(parcel)
        of_call = self._call.begin() if self._call else {}
        with (
            links.dial(address, key, tickets[0]) as link,
            links.dial(address, key, tickets[1]) as complaints,
        ):
            agent = subprocess.Popen(
                command,
                env={
                    **(_harmless_variables() if for_job else environment()),
                    **variables,
                    **of_call,
                },
                stdin=link.fileno(),
                stdout=link.fileno(),
                stderr=complaints.fileno(),
                start_new_session=True,
                # The thread counts, not the process (prctl(2)): Ray's main thread, which calls
                # this, lives as long.
                preexec_fn=signalling.death_with_parent(),
            )
        self._agents.append(agent)

    def result(self) -> bytes:
        """Returns the result of the function that workers called, if rank 0 was on this node."""
        return self._call.result() if self._call else b""

    def epochs(self, run_dir: str) -> dict[str, list[str]]:
        """Returns the lines about ends of epochs that rank 0 wrote on this node, by file name."""
        found = [RunDir(folder).epochs for folder in RunDir(Path(run_dir)).generations()]
        return {str(path): _lines(path) for path in found}


def _harmless_variables() -> dict[str, str]:
    """Returns the variables of this process that hold no secrets.

    A raylet has the variables of the shell that started it.
    """
    return {
        name: value for name, value in environment().items() if name in _KEPT or is_harmless(name)
    }


def _lines(path: Path) -> list[str]:
    try:
        # what follows the last of them is still written
        *whole, _ = path.read_text().split("\n")
    except OSError:
        return []
    return whole
