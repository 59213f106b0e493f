"""The actor that takes a worker's place on a node: it reserves what the worker needs, and starts an agent there when asked to."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from syrtos.engines.ray import links
from syrtos.launch import signalling
from syrtos.settings import environment


class Place:
    """A worker's place. Ray makes it anew on another node when its own is lost."""

    def __init__(self) -> None:
        self._agents: list[subprocess.Popen[bytes]] = []

    def facts(self, python: str, folder: str) -> dict[str, Any]:
        """Returns where the place is, and whether the interpreter and the folder of the run are there."""
        ray: Any = importlib.import_module("ray")  # not above: tests of what needs no Ray import this file
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
    ) -> None:
        """Starts an agent whose standard input and output are a connection to the run, and whose errors go another.

        It ends with this process: Ray's main thread, which calls this, lives as long.

        Args:
            address: where the run listens.
            key: what it must be shown to know.
            tickets: the words by which it knows the two connections.
            command: the agent's command.
            variables: variables on top of this process's.
        """
        self._agents = [agent for agent in self._agents if agent.poll() is None]
        with links.dial(address, key, tickets[0]) as link, links.dial(address, key, tickets[1]) as complaints:
            agent = subprocess.Popen(
                command,
                env={**environment(), **variables},
                stdin=link,
                stdout=link,
                stderr=complaints,
                start_new_session=True,
                preexec_fn=signalling.die_with_parent,
            )
        self._agents.append(agent)
