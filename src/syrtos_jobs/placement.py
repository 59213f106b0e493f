"""The place of a service's jobs: this machine, or nodes that an engine holds for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from syrtos.launch import resources

# The capacity of a service whose engine alone limits the jobs that run at once.
UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Placement:
    """The placement of the instances of a service's jobs.

    Attributes:
        engine: the name of the engine that holds a node for each of them; empty: they are processes
            of this machine.
        values: what `--with NAME=VALUE` has given for that engine.
        gpus: GPUs of each instance (default: all of this machine).
    """

    engine: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: int = dataclasses.field(default_factory=resources.gpus)
