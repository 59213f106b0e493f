"""The process manager's side of PMI-1, by which the workers of one host find each other when MPI starts in them.

Each worker inherits one end of a socket pair; a thread answers all other ends. There is no port and no program beside them.
Source of the messages: the PMI-1 wire protocol as MPICH's `src/pmi` speaks it (seen with MPICH 5.0.2).
"""

from __future__ import annotations

import selectors
import socket
import threading
import uuid
from collections.abc import Callable
from typing import IO


class ProcessManager:
    """Answers the workers of one world until the last of them has gone.

    Attributes:
        ends: the workers' ends, in rank order; the descriptor must be inherited, see `environment`. Close them once the workers run.
        aborted: exit codes of the ranks that have called MPI_Abort. ``end_all`` is called then: MPI leaves it to us to end the others, and
            itself, which may wait for threads of its own in C's exit handlers.
    """

    def __init__(self, size: int, end_all: Callable[[], None]) -> None:
        self._size = size
        self._end_all = end_all
        self._ranks: dict[object, int] = {}
        self.aborted: dict[int, int] = {}
        self._name = f"kvs_{uuid.uuid4().hex[:12]}"  # MPICH names its shared memory by it: never the same twice
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._arrived: list[IO[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self.ends: list[socket.socket] = []
        for rank in range(size):
            ours, theirs = socket.socketpair()
            file = ours.makefile("rwb", buffering=0)
            self._ranks[file] = rank
            self._selector.register(ours, selectors.EVENT_READ, file)
            self.ends.append(theirs)

    def environment(self, rank: int, descriptor: int) -> dict[str, str]:
        """Variables that give the MPI of a worker its rank and the address of this server; the names are those that hydra sets."""
        place = {"PMI_RANK": rank, "PMI_ID": rank, "PMI_SIZE": self._size, "PMI_FD": descriptor}
        here = {"MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": self._size}
        return {name: str(value) for name, value in {**place, **here}.items()}

    def start(self) -> None:
        """Answers from now on, in a thread that ends with the last worker."""
        threading.Thread(target=self._serve, name="syrtos-pmi", daemon=True).start()

    def _serve(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                worker: IO[bytes] = key.data
                line = _line(worker)
                if line:
                    self._answer(worker, _words(line))
                else:
                    self._selector.unregister(key.fileobj)
                    worker.close()
                    if isinstance(key.fileobj, socket.socket):
                        key.fileobj.close()

    def _answer(self, worker: IO[bytes], asked: dict[str, str]) -> None:
        command = asked.get("cmd", "")
        if command == "barrier_in":
            self._arrive(worker)
        elif command == "put":
            self._values[asked["key"]] = asked["value"]
            _say(worker, "cmd=put_result rc=0 msg=success")
        elif command == "get":
            found = self._values.get(asked["key"])
            _say(worker, f"cmd=get_result rc=0 msg=success value={found}" if found else _NO_VALUE)
        elif command == "abort":
            self.aborted[self._ranks[worker]] = int(asked.get("exitcode", "1")) & 0xFF or 1  # never a success
            self._end_all()
        else:
            _say(worker, self._fact(command))

    def _arrive(self, worker: IO[bytes]) -> None:
        """The last one lets all of them through the barrier."""
        self._arrived.append(worker)
        if len(self._arrived) == self._size:
            for each in self._arrived:
                _say(each, "cmd=barrier_out rc=0")
            self._arrived.clear()

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


def _words(line: str) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in line.split())}


_NO_VALUE = "cmd=get_result rc=-1 msg=key_not_found value=unknown"


def _line(worker: IO[bytes]) -> str:
    """A worker's next message; empty if it is gone. Each is one line, and it waits for the answer before the next."""
    try:
        return worker.readline().decode()
    except OSError:
        return ""


def _say(worker: IO[bytes], text: str) -> None:
    try:
        worker.write(text.encode() + b"\n")
    except OSError:
        return  # it is gone: its end is seen by its exit code
