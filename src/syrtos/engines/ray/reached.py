"""The launcher's side of a run on Ray: it starts the process that is connected to the cluster, and ends with it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from syrtos import settings
from syrtos.engines.engine import Reached
from syrtos.engines.ray.asked import Asked
from syrtos.engines.ray.door import VARIABLE, ask
from syrtos.errors import LaunchError
from syrtos.launch.processes import signalling
from syrtos.launch.spec import Host, parse_hosts
from syrtos.launch.terminal import output

_COMMAND = shlex.join([sys.executable, "-P", "-m", "syrtos.engines.ray.reach"])
_LONGEST_END = 15.0  # seconds


@contextlib.contextmanager
def reach_cluster(asked: Asked, run_dir: Path) -> Iterator[Reached]:
    """Context manager: yields the hosts on which Ray has placed the workers.

    If the connection to the cluster is lost meanwhile, the run is stopped: workers save their state.

    Raises:
        LaunchError: Ray gives no places.
        SystemExit: a signal has come meanwhile.
    """
    # this process's own: workers would get it in the place of what Ray gives them
    settings.take("CUDA_VISIBLE_DEVICES")
    with tempfile.TemporaryDirectory(prefix="syrtos-ray-") as folder:
        door = str(Path(folder) / "door")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "syrtos.engines.ray.driver", door],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # It outlives Ctrl-C: agents run until the workers have ended.
            start_new_session=True,
        )
        over = threading.Event()
        with process, _ending_process(process, over):
            hosts = _hosts(process, asked)
            threading.Thread(target=_watch, args=(process, over, run_dir), name="syrtos-ray", daemon=True).start()
            settings.set_environment({VARIABLE: door})
            yield Reached(hosts, _COMMAND, discover=_COMMAND, is_for_all=True)


@contextlib.contextmanager
def at_door(path: str) -> Iterator[Reached]:
    """Context manager: yields the hosts of places that the process which has started this one holds, as `syrtos.ray.run` does."""
    # As in `reach_cluster`: workers have what Ray gives them.
    settings.take("CUDA_VISIBLE_DEVICES")
    hosts = parse_hosts(ask(path)[0].replace(" ", ","))
    yield Reached(hosts, _COMMAND, discover=_COMMAND, is_for_all=True)


@contextlib.contextmanager
def _ending_process(process: subprocess.Popen[bytes], over: threading.Event) -> Iterator[None]:
    """Context manager: at its end the process that is connected to Ray gives the places back, and ends."""
    try:
        yield
    finally:
        over.set()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_LONGEST_END)
        except subprocess.TimeoutExpired:
            process.kill()


def _hosts(process: subprocess.Popen[bytes], asked: Asked) -> tuple[Host, ...]:
    """Asks for the places, and waits for them or for a signal."""
    assert process.stdin is not None
    assert process.stdout is not None
    came: list[int] = []
    with signalling.answering_signals(came.append):
        # The process may have ended, and said why.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(dataclasses.asdict(asked)).encode() + b"\n")
        while not came and not select.select([process.stdout], [], [], 0.1)[0]:
            pass
    if came:
        output.say("stopped while it waited for Ray")
        raise SystemExit(128 + came[0])
    answer = b""
    while not answer.endswith(b"\n") and (piece := process.stdout.read(1 << 16)):
        answer += piece
    if not answer.endswith(b"\n"):
        raise LaunchError(
            f"The process that connects to Ray has ended with exit code {process.wait()}; the lines above say why."
        )
    facts = json.loads(answer)
    if "error" in facts:
        raise LaunchError(facts["error"])
    return tuple(Host(name, slots) for name, slots in facts["hosts"])


def _watch(process: subprocess.Popen[bytes], over: threading.Event, run_dir: Path) -> None:
    """Stops the run when the connection to Ray is lost: Ray then ends what it has started."""
    process.wait()
    if not over.is_set():
        output.say(
            "the connection to the Ray cluster is lost, as when its head node is: the run stops. Once there is a cluster again, the same command with "
            f"--run-dir {shlex.quote(str(run_dir))} goes on from the last snapshot"
        )
        signalling.terminate()
