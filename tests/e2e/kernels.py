"""A Jupyter kernel for tests: a process of its own, as a notebook has it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

LONG = 300.0


@dataclasses.dataclass
class Cell:
    """What a cell has shown.

    Attributes:
        out: standard output.
        err: standard error.
        error: name and text of the exception; empty if there was none.
        value: the last expression's, as text.
    """

    out: str = ""
    err: str = ""
    error: str = ""
    value: str = ""

    def hear(self, message: dict[str, Any]) -> None:
        """Takes one message of the kernel."""
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            self.out += content["text"]
        elif message["msg_type"] == "stream":
            self.err += content["text"]
        elif message["msg_type"] == "error":
            self.error = f"{content['ename']}: {content['evalue']}"
        elif message["msg_type"] == "execute_result":
            self.value = content["data"]["text/plain"]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel that runs."""

    manager: KernelManager
    client: BlockingKernelClient

    def run(self, code: str) -> Cell:
        """Executes a cell to its end."""
        cell = Cell()
        self.client.execute_interactive(code, timeout=LONG, output_hook=cell.hear)
        return cell

    def right(self, code: str) -> Cell:
        """The same, for cells that must not fail."""
        cell = self.run(code)
        assert not cell.error, cell
        return cell


@contextmanager
def kernel(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Kernel]:
    """Inside, a kernel runs in this folder."""
    manager, client = start_new_kernel(
        kernel_name="python3",
        cwd=str(folder),
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
    )
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
