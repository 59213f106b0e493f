"""Horovod's Python API for TensorFlow and Keras, over syrtos.

Semantics: horovod 0.28.1, github.com/horovod/horovod. What differs is in docs/dialects.md.
"""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos.launch.spec import parse_hosts, read_hostfile

__version__ = "0.28.1"


# Options of Horovod's launcher that tuned another engine, or chose one.
_IGNORED = {
    "slots", "start_timeout", "disable_cache", "output_filename", "verbose", "use_gloo", "use_mpi", "mpi_args",
    "network_interface", "network_interfaces", "executable", "ssh_port", "ssh_identity_file",
}  # fmt: skip
_ELASTIC = {
    "min_num_proc", "max_num_proc", "min_np", "max_np", "reset_limit", "cooldown_range", "host_discovery_script",
}  # fmt: skip


def run(
    func: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int | None = None,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    np: int | None = None,
    **options: object,
) -> list[Any]:
    """Calls a function on new workers of this machine and returns their results in rank order.

    Args:
        func: a function at the top level of a file that can be imported again; it calls
            ``hvd.init()`` itself.
        args: plain data.
        kwargs: plain data, for arguments that can be given by position too.
        num_proc: the number of workers; None: the number of slots in ``hosts``, or 1.
        hosts: this machine and its slots, ``localhost:4``.
        hostfile: a file with this machine and its slots.
        np: the former name of ``num_proc``.
        options: other options of Horovod's launcher. Those that tune or choose its engine are
            ignored.

    Raises:
        ConfigurationError: other hosts are named, or options of elastic runs are given.
        TypeError: an option that Horovod doesn't know.
    """
    # Not at the top: each `import horovod.tensorflow` imports this module, and few scripts call
    # this function.
    from syrtos.testing import run_world

    _check_options(options)
    bound = inspect.signature(func).bind(*args, **(kwargs or {}))
    if bound.kwargs:
        raise ConfigurationError(
            f"horovod.run gives arguments by position, and `{func.__name__}` takes these by name"
            f" alone: {', '.join(bound.kwargs)}."
        )
    workers = _workers(num_proc or np, hosts, hostfile)
    # A day, for the default timeout is one for tests. New interpreters, for a single call does not
    # repay the process that imports frameworks once, of which the workers of several calls are
    # forked.
    return run_world(workers, func, *bound.args, timeout=86400.0, dialects=True, forked=False)


def _check_options(options: Mapping[str, object]) -> None:
    unknown = sorted(set(options) - _IGNORED - _ELASTIC)
    if unknown:
        raise TypeError(f"horovod.run() got an unexpected keyword argument {unknown[0]!r}")
    elastic = sorted(name for name in _ELASTIC & set(options) if options[name] is not None)
    if elastic:
        raise ConfigurationError(
            f"A run keeps its workers: {', '.join(elastic)} can't be obeyed. Give `num_proc` alone."
        )


def _workers(asked: int | None, hosts: str | None, hostfile: str | None) -> int:
    found = parse_hosts(hosts) if hosts else read_hostfile(Path(hostfile)) if hostfile else ()
    away = [
        host.name
        for host in found
        if host.name not in ("localhost", "127.0.0.1", socket.gethostname())
    ]
    if away:
        raise ConfigurationError(
            f"horovod.run starts workers of this machine, and `hosts` names {', '.join(away)}."
            " Start the script itself on several hosts: `syrtos horovodrun -np N -H a:2,b:2 python"
            " train.py`."
        )
    slots = sum(host.slots for host in found)
    if asked and found and asked > slots:
        raise ConfigurationError(
            f"horovod.run was asked for {asked} workers, and the hosts have {slots} slots."
        )
    return asked or slots or 1
