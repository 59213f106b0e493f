"""The process manager's side of PMI-1, by which a run's workers find each other when MPI starts.

Each worker inherits one end of a socket pair; a thread of its host's launcher or agent reads the
other. There is no port and no program beside them. Source of the messages: the PMI-1 wire protocol
as MPICH's `src/pmi` speaks it (seen with MPICH 5.0.2).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import uuid
from collections.abc import Callable, Sequence

Reply = tuple[int, str]  # for a rank: a line


class KeyValues:
    """The store by which the workers of one world find each other before MPI connects them.

    It answers their messages.
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        """Begins a store for as many workers as there are ``nodes``.

        ``nodes`` has the number of each rank's host, in rank order.
        """
        self._size = len(nodes)
        # MPICH names its shared memory by it: never the same twice
        self._name = f"kvs_{uuid.uuid4().hex[:12]}"
        self._values = {"PMI_process_mapping": _mapping(nodes)}
        self._arrived: list[int] = []

    def answer(self, rank: int, line: str) -> list[Reply]:
        """Returns the lines that a message of ``rank`` is answered with.

        The last message at a barrier is answered with a line for each rank: it lets all of them
        through.
        """
        asked = words(line)
        command = asked.get("cmd", "")
        if command == "barrier_in":
            return self._arrive(rank)
        if command == "put" and asked.keys() >= {"key", "value"}:
            self._values[asked["key"]] = asked["value"]
            return [(rank, "cmd=put_result rc=0 msg=success")]
        if command == "get":
            found = self._values.get(asked.get("key", ""))
            return [
                (rank, f"cmd=get_result rc=0 msg=success value={found}" if found else _NO_VALUE)
            ]
        return [(rank, self._fact(command))]

    def _arrive(self, rank: int) -> list[Reply]:
        self._arrived.append(rank)
        if len(self._arrived) < self._size:
            return []
        through, self._arrived = self._arrived, []
        return [(each, "cmd=barrier_out rc=0") for each in through]

    def _fact(self, command: str) -> str:
        facts = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=4096",
            "get_appnum": "cmd=appnum rc=0 appnum=0",
            "get_my_kvsname": f"cmd=my_kvsname rc=0 kvsname={self._name}",
            "get_universe_size": f"cmd=universe_size rc=0 size={self._size}",
            "finalize": "cmd=finalize_ack rc=0",
        }
        return facts.get(command, f"cmd={command} rc=-1")


def words(line: str) -> dict[str, str]:
    """Returns the parts of a message, by name."""
    return {name: value for name, _, value in (word.partition("=") for word in line.split())}


_NO_VALUE = "cmd=get_result rc=-1 msg=key_not_found value=unknown"


def _mapping(nodes: Sequence[int]) -> str:
    """Returns which ranks share a host, in PMI's notation.

    The text has blocks of (first host, number of hosts, ranks on each).
    """
    blocks: list[list[int]] = []
    for node in nodes:
        if blocks and blocks[-1][0] == node:
            blocks[-1][2] += 1
        else:
            blocks.append([node, 1, 1])
    return f"(vector,{','.join(f'({a},{b},{c})' for a, b, c in blocks)})"


def environment(rank: int, nodes: Sequence[int], descriptor: int) -> dict[str, str]:
    """Returns variables that give the MPI of a worker its rank and the end of its socket pair.

    The names are those that MPICH's `mpiexec` sets.
    """
    alike = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    place = {"PMI_RANK": rank, "PMI_ID": rank, "PMI_SIZE": len(nodes), "PMI_FD": descriptor}
    here = {"MPI_LOCALRANKID": alike.index(rank), "MPI_LOCALNRANKS": len(alike)}
    return {name: str(value) for name, value in {**place, **here}.items()}


class Sockets:
    """Socket pairs to the workers of this host.

    Attributes:
        ends: the workers' ends by rank; the descriptor must be inherited, see `environment`. Close
            them once the workers run.
    """

    def __init__(self, ranks: Sequence[int], on_line: Callable[[int, str], None]) -> None:
        """Makes the socket pairs; ``on_line`` is called with each message, in a thread."""
        self._on_line = on_line
        self._ours: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self.ends: dict[int, socket.socket] = {}
        for rank in ranks:
            self._ours[rank], self.ends[rank] = socket.socketpair()
            self._selector.register(self._ours[rank], selectors.EVENT_READ, rank)

    def start(self) -> None:
        """Starts the thread that listens; it ends with the last worker."""
        threading.Thread(target=self._serve, name="syrtos-pmi", daemon=True).start()

    def _serve(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                rank: int = key.data
                lines = self._lines(rank)
                for line in lines:
                    self._on_line(rank, line)
                if not lines:
                    self._selector.unregister(key.fileobj)
                    self._ours[rank].close()

    def _lines(self, rank: int) -> list[str]:
        """Returns a worker's next messages; none if the worker is gone."""
        # A worker waits for the answer to a line before it sends the next, but for an abort: MPI
        # goes on to its finalization, whose first message may have arrived with it.
        text = b""
        with contextlib.suppress(OSError):
            while not text.endswith(b"\n") and (part := self._ours[rank].recv(1 << 16)):
                text += part
        # Where the connection ends within a line, those before it count.
        return text.decode(errors="replace").split("\n")[:-1]

    def tell(self, rank: int, text: str) -> None:
        """Sends a worker a line as the answer to its message."""
        try:
            self._ours[rank].sendall(text.encode() + b"\n")
        except OSError:
            # The worker is gone, which its exit code says.
            return
