"""Horovod's Python API for TensorFlow and Keras, over syrtos.

Semantics: horovod 0.28.1, github.com/horovod/horovod. What differs is in docs/dialects.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from syrtos.errors import ConfigurationError

__version__ = "0.28.1"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    np: int | None = None,
    **options: Any,
) -> list[Any]:
    """Calls a function on new workers of this machine and returns their results in rank order.

    Args:
        func: at the top level of a file that can be imported again; it calls ``hvd.init()`` itself.
        args: plain data.
        kwargs: none: give everything in ``args``.
        num_proc: the number of workers.
        np: the same, as it used to be called.
        options: of Horovod's launcher; hosts are not among what can be chosen here.

    Raises:
        ConfigurationError: for other hosts: that is what `syrtos horovodrun` is for.
    """
    from syrtos.testing import run_world

    if kwargs or options.get("hosts") or options.get("hostfile"):
        raise ConfigurationError(
            "horovod.run calls a function with positional arguments on workers of this machine. For other hosts start the script "
            "with `syrtos horovodrun -np N -H a:2,b:2 python train.py`."
        )
    return run_world(num_proc or np or 1, func, *args, timeout=86400.0, dialects=True, forked=False)
