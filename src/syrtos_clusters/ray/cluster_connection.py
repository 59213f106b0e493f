"""The launcher's side of a run on Ray, which starts `driver.py`.

The driver is the one process that is connected to the cluster. It ends when this process does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import select
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.engines.engine import ReachableHosts
from syrtos.engines.reservation import EngineAwayError, Node, NodeRequest, Requester, Reservation
from syrtos.errors import LaunchError
from syrtos.launch.processes import signalling
from syrtos.launch.spec import Host, parse_hosts
from syrtos.launch.terminal import output
from syrtos_clusters.ray.agent_socket import VARIABLE, ask
from syrtos_clusters.ray.request import RayRequest, request_of_nodes

_COMMAND = shlex.join([sys.executable, "-P", "-m", "syrtos_clusters.ray.reach"])
_LONGEST_END = 15.0  # seconds
_LOST = "the connection to the Ray cluster is lost, for example because its head node is gone"


@contextlib.contextmanager
def reach_cluster(asked: RayRequest, run_dir: Path) -> Iterator[ReachableHosts]:
    """Context manager: yields the hosts on which Ray has placed the workers.

    If the connection to the cluster is lost meanwhile, the run is stopped: workers save their
    state.

    Raises:
        LaunchError: Ray gives no places.
        SystemExit: a signal has come while it waited for places.
    """

    def stop_run() -> None:
        output.say(
            f"{_LOST}: the run stops. Once there is a cluster again, the same command with"
            f" --run-dir {shlex.quote(str(run_dir))} goes on from the last snapshot"
        )
        signalling.terminate()

    # Workers would inherit this process's own in the place of what Ray gives them.
    settings.take("CUDA_VISIBLE_DEVICES")
    came: list[int] = []
    with contextlib.ExitStack() as stack:
        with signalling.answering_signals(came.append):
            connected = _connected(asked, lambda: bool(came), output.say, stop_run)
            try:
                door, hosts = stack.enter_context(connected)
            except _GivenUpError:
                output.say("stopped while it waited for Ray")
                raise SystemExit(128 + signalling.stop_signal(came[0])) from None
        settings.set_environment({VARIABLE: door})
        yield ReachableHosts(hosts, _COMMAND, discover=_COMMAND, is_for_all=True)


@contextlib.contextmanager
def reserve_nodes(wanted: NodeRequest, requester: Requester) -> Iterator[Reservation]:
    """Context manager: waits until Ray has a place on as many nodes as the job has instances.

    It yields the places, and releases them at its end.

    Raises:
        ConfigurationError: a value of `--with` is wrong.
        LaunchError: Ray gives no places, or ``requester`` was over before it did.
    """
    lost = functools.partial(requester.note_loss, _LOST)
    try:
        with _connected(request_of_nodes(wanted), requester.is_over, requester.tell, lost) as (
            door,
            _,
        ):
            yield _ReservedPlaces(door)
    except _GivenUpError as error:
        raise LaunchError(
            "Gave up waiting for nodes of Ray: the job was stopped, or has waited for too long."
        ) from error


class _ReservedPlaces(Reservation):
    command = _COMMAND

    def __init__(self, door: str) -> None:
        self.variables = {VARIABLE: door}

    def nodes(self) -> tuple[Node, ...]:
        try:
            found = [
                text.split("=") for text in ask(self.variables[VARIABLE], nodes=True)[0].split()
            ]
        except OSError:
            # The driver is gone, which `on_loss` is told.
            return ()
        return tuple(Node(name, address, int(cpus)) for name, address, cpus in found)


class _GivenUpError(Exception):
    """The process that waits for places is to end."""


@contextlib.contextmanager
def _connected(
    asked: RayRequest,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
    on_loss: Callable[[], None],
) -> Iterator[tuple[str, tuple[Host, ...]]]:
    """Context manager: starts the process that is connected to Ray.

    It yields the path of that process's socket (`agent_socket.py`), and the hosts of the places.

    Args:
        asked: the request.
        is_over: whether to give up waiting.
        tell: gets a sentence that says what it waits for.
        on_loss: called, in another thread, when the connection to the cluster is lost.
    """
    with tempfile.TemporaryDirectory(prefix="syrtos-ray-") as folder:
        door = str(Path(folder) / "door")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "syrtos_clusters.ray.driver", door],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # It outlives Ctrl-C: agents run until the workers have ended.
            start_new_session=True,
        )
        over = threading.Event()
        with process, _ending_process(process, over):
            hosts = _hosts(process, asked, is_over, tell)
            threading.Thread(
                target=_watch, args=(process, over, on_loss), name="syrtos-ray", daemon=True
            ).start()
            yield door, hosts


@contextlib.contextmanager
def at_door(path: str) -> Iterator[ReachableHosts]:
    """Context manager: yields the hosts of places that another process holds.

    The other process has started this one, as `syrtos.ray.run` does.
    """
    # As in `reach_cluster`: workers have what Ray gives them.
    settings.take("CUDA_VISIBLE_DEVICES")
    hosts = parse_hosts(ask(path)[0].replace(" ", ","))
    yield ReachableHosts(hosts, _COMMAND, discover=_COMMAND, is_for_all=True)


@contextlib.contextmanager
def _ending_process(process: subprocess.Popen[bytes], over: threading.Event) -> Iterator[None]:
    """Context manager: at its end the process connected to Ray gives the places back and ends."""
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


def _hosts(
    process: subprocess.Popen[bytes],
    asked: RayRequest,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
) -> tuple[Host, ...]:
    """Asks for the places, and waits for them."""
    assert process.stdin is not None
    # The process may have ended, and said why.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(dataclasses.asdict(asked)).encode() + b"\n")
    while True:
        facts = _answer(process, is_over)
        if "error" in facts:
            raise (EngineAwayError if facts.get("is_away") else LaunchError)(facts["error"])
        if "hosts" in facts:
            return tuple(Host(name, slots) for name, slots in facts["hosts"])
        tell(facts["waits"])


def _answer(process: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> dict[str, Any]:
    """Returns the next line of the process that is connected to Ray."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        while not select.select([process.stdout], [], [], 0.1)[0]:
            if is_over():
                raise _GivenUpError
        # A byte at a time: what follows the line is for the next call.
        if not (piece := process.stdout.read(1)):
            raise LaunchError(
                f"The process that connects to Ray has ended with exit code {process.wait()}; it"
                " has said why (of a job, in its runner.log)."
            )
        line += piece
    return json.loads(line)


def _watch(
    process: subprocess.Popen[bytes], over: threading.Event, on_loss: Callable[[], None]
) -> None:
    """Waits for the end of the driver, after which Ray ends its actors.

    ``on_loss`` is called unless this process has ended the driver.
    """
    process.wait()
    if not over.is_set():
        on_loss()
