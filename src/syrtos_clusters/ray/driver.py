"""The one process of a run that is connected to Ray: `python -m syrtos_clusters.ray.driver DOOR`.

It is not the launcher: Ray ends a process whose head node is lost, and a process with Ray's threads
can't be forked at ease. The request comes as a line of JSON on standard input, whose end is the end
of the run; answers go to standard output, a line of JSON each: what it waits for, and then the
hosts, or an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator

from syrtos.engines.reservation import EngineAwayError
from syrtos.errors import SyrtosError
from syrtos_clusters.ray.agent_socket import AgentSocket
from syrtos_clusters.ray.request import RayRequest

_LONGEST_END = 8.0  # seconds


def main(path: str) -> int:
    """Serves a run until its launcher is gone."""
    answers = os.dup(1)
    # Ray prints what its processes say, which must not be taken for answers.
    os.dup2(2, 1)
    asked = RayRequest(**json.loads(_line(0)))
    over = threading.Event()
    threading.Thread(target=_watch, args=(0, over), name="syrtos-launcher", daemon=True).start()
    try:
        with _reserve_places(asked, path, over, lambda why: _tell(answers, waits=why)) as hosts:
            _tell(answers, hosts=hosts)
            over.wait()
    except SyrtosError as error:
        _tell(answers, error=str(error), is_away=isinstance(error, EngineAwayError))
        return 1
    return 0


@contextlib.contextmanager
def _reserve_places(
    asked: RayRequest, path: str, over: threading.Event, tell: Callable[[str], None]
) -> Iterator[list[tuple[str, int]]]:
    """Context manager: yields the hosts, on which agents can be started at the door."""
    # only here: it takes a second to import, and the launcher may be gone
    from syrtos_clusters.ray.placement_group import WorkerPlaces

    with (
        contextlib.closing(WorkerPlaces(asked, over.is_set, tell=tell)) as places,
        contextlib.closing(AgentSocket(path, places)),
    ):
        yield [(host.name, host.slots) for host in places.hosts()]


def _line(launcher: int) -> bytes:
    """Reads a line without a buffer."""
    # A thread that reads on would hold the lock of a buffer at the end of this process.
    line = b""
    while not line.endswith(b"\n") and (piece := os.read(launcher, 1)):
        line += piece
    return line


def _watch(launcher: int, over: threading.Event) -> None:
    """Waits for the end of the launcher; ends this process if it does not end by itself then."""
    with contextlib.suppress(OSError):
        while os.read(launcher, 1):
            pass
    over.set()
    threading.Event().wait(_LONGEST_END)
    os._exit(1)


def _tell(answers: int, **facts: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(answers, json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
