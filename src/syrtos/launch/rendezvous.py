"""A world from TF_CONFIG alone: `python -m syrtos train.py` on each host, as TensorFlow's own cluster resolvers expect.

The first task's process launches the run as `syrtos run --hosts` does. Where that would reach a host by ssh, a relay (this file as a
program) asks the process that somebody has started there already. Processes meet at the first task's address in TF_CONFIG, and prove to
each other that they know the same secret (the challenge of `multiprocessing.connection`); their messages are JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
import secrets
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.errors import ConfigurationError, WorldError
from syrtos.launch import output, tasks
from syrtos.launch.signalling import die_with_parent
from syrtos.topology import check_tf_config, detect

_ADDRESS = "SYRTOS_RENDEZVOUS"
_KEY = settings.SECRET_VARIABLE  # for the relays it is the run's own
_QUIET = 10.0  # seconds of waiting for tasks without a word
_TRAINING = ("chief", "master", "worker")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The training tasks of TF_CONFIG, in the order of their ranks.

    Attributes:
        tasks: role, index and address of each.
        rank: which of them this process is.
    """

    tasks: tuple[tuple[str, int, str], ...]
    rank: int

    @property
    def address(self) -> tuple[str, int]:
        """Where all meet."""
        host, _, port = self.tasks[0][2].rpartition(":")
        return host, int(port)

    def name(self, rank: int) -> str:
        """A task in words: ``worker 0 at host:port``."""
        role, index, address = self.tasks[rank]
        return f"{role} {index} at {address}"

    @property
    def host(self) -> str:
        """This process's host, as TF_CONFIG names it."""
        return self.tasks[self.rank][2].rpartition(":")[0]

    @property
    def key(self) -> bytes:
        """The key that processes prove to know: derived from the secret and this cluster, so that the proof of another run is not valid here."""
        return hmac.digest(secret(), json.dumps(self.tasks).encode(), "sha256")

    @property
    def slots(self) -> dict[str, int]:
        """Tasks on each host."""
        hosts = [address.rpartition(":")[0] for _, _, address in self.tasks]
        return {host: hosts.count(host) for host in hosts}

    @property
    def leads(self) -> bool:
        """Whether this is the first task of its host."""
        hosts = [address.rpartition(":")[0] for _, _, address in self.tasks]
        return hosts.index(self.host) == self.rank


def cluster_of(env: Mapping[str, str]) -> Cluster | None:
    """The cluster that TF_CONFIG describes, if this process is one of several that train.

    Raises:
        ConfigurationError: TF_CONFIG names a task that is not in its cluster, or addresses without ports.
    """
    check_tf_config(env)
    config = json.loads(env.get("TF_CONFIG") or "{}")
    task, jobs = config.get("task", {}), config.get("cluster", {})
    tasks = tuple((role, index, address) for role in _TRAINING for index, address in enumerate(jobs.get(role, [])))
    if len(tasks) < 2 or task.get("type") not in _TRAINING:
        return None
    mine = [k for k, (role, index, _) in enumerate(tasks) if (role, index) == (task["type"], int(task.get("index", 0)))]
    if not mine or any(not address.rpartition(":")[2].isdigit() for _, _, address in tasks):
        raise ConfigurationError(
            f"TF_CONFIG names task {task.get('type')} {task.get('index')}, and the cluster has {[f'{r} {i} at {a}' for r, i, a in tasks]}. "
            "The task must be one of them, and addresses are written host:port."
        )
    hosts = [address.rpartition(":")[0] for _, _, address in tasks]
    if len(set(hosts)) != sum(host != before for host, before in zip(hosts, ["", *hosts], strict=False)):
        raise ConfigurationError(
            "TF_CONFIG names a host's tasks apart from each other: put all tasks of a host next to each other."
        )
    return Cluster(tasks, mine[0])


def cluster_to_form(env: Mapping[str, str]) -> Cluster | None:
    """The same, unless something has started this process as a worker."""
    return None if detect(env) else cluster_of(env)


def secret() -> bytes:
    """The secret of this user: SYRTOS_SECRET, or a file that is created on first use."""
    given = settings.environment().get(settings.SECRET_VARIABLE)
    if given:
        return given.encode()
    path = Path.home() / ".config" / "syrtos" / "secret"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return _read(path)


def _read(path: Path) -> bytes:
    """A process that starts at the same moment may just be writing it."""
    for _ in range(100):
        if text := path.read_text():
            return text.encode()
        time.sleep(0.01)
    raise ConfigurationError(f"{path} is empty: remove it, or set {settings.SECRET_VARIABLE}.")


# -- the first task ------------------------------------------------------------------------------------


class Meeting:
    """Where the other tasks come to, as long as the run lasts."""

    def __init__(self, cluster: Cluster, patience: float) -> None:
        """Listens at the first task's address, and lets the launcher's relays know of it."""
        self._agents: dict[str, Connection] = {}
        self._others: dict[int, Connection] = {}
        self._processes = {0: tasks.this_process()}
        self._relays: dict[str, Connection] = {}
        self._change = threading.Condition()
        self._cluster = cluster
        self._key = cluster.key
        self._patience = patience
        self._closed = False
        self._listener = Listener(cluster.address, backlog=len(cluster.tasks) + 64)
        host, port = cluster.address
        settings.set_environment({_ADDRESS: f"{host}:{port}", _KEY: self._key.hex()})
        self.command = shlex.join([sys.executable, "-m", "syrtos.launch.rendezvous"])
        threading.Thread(target=self._accept, daemon=True).start()

    def wait(self) -> None:
        """Returns once all tasks are here, and lets workers know of their processes.

        Raises:
            WorldError: some have not come in time.
        """
        everybody = len(self._cluster.tasks)
        with self._change:
            if not self._change.wait_for(lambda: len(self._processes) == everybody, min(_QUIET, self._patience)):
                print(
                    f"syrtos: waiting for {self._missing()}, at most {self._patience:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
            if not self._change.wait_for(lambda: len(self._processes) == everybody, max(self._patience - _QUIET, 0.0)):
                raise WorldError(
                    f"Nobody has started {self._missing()} of TF_CONFIG for {self._patience:.0f} s; training needs all {everybody} tasks. Start "
                    "`python -m syrtos train.py` for each, or take it out of TF_CONFIG everywhere."
                )
            settings.set_environment(tasks.described(self._processes))

    def _missing(self) -> str:
        names = [self._cluster.name(rank) for rank in range(len(self._cluster.tasks)) if rank not in self._processes]
        return ", ".join(names)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue
            threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

    def _welcome(self, connection: Connection) -> None:
        """Serves connections that know the secret; others delay no task."""
        try:
            with _in_time(connection):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError) as error:
            print(f"syrtos: refused a connection that does not know the secret: {error}", file=sys.stderr)
            connection.close()
            return
        self._attend(connection)

    def _attend(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            asked = _receive(connection)
            if asked["is"] == "relay":
                self._relay(connection, asked)
                return
            with self._change:
                self._others[asked["rank"]] = connection
                self._processes[asked["rank"]] = asked["process"]
                if asked["leads"]:
                    self._agents[asked["host"]] = connection
                self._change.notify_all()
            try:
                while True:
                    ended = _receive(connection)  # an agent's command, so a relay has asked for it by now
                    _send(self._relays[asked["host"]], ended)
            except (EOFError, OSError):  # it is gone, and its command with it
                self._lose(asked)

    def _lose(self, asked: dict[str, Any]) -> None:
        """A task's process is gone: its worker must not continue, nor the others without it."""
        if self._closed:
            return
        print(
            f"syrtos: {self._cluster.name(asked['rank'])} of TF_CONFIG is gone: the run ends",
            file=sys.stderr,
            flush=True,
        )
        if asked["leads"] and asked["host"] in self._relays:
            _send(self._relays[asked["host"]], {"ended": 1})
        os.kill(os.getpid(), signal.SIGTERM)

    def _relay(self, connection: Connection, asked: dict[str, Any]) -> None:
        """Passes a launcher's command to the process on its host, once that is there."""
        host = asked["host"]
        with self._change:
            self._relays[host] = connection
            came = self._change.wait_for(lambda: host in self._agents, self._patience)
        if not came:
            print(
                f"syrtos: nobody has started `python -m syrtos` on {host} for {self._patience:.0f} s.", file=sys.stderr
            )
            _send(connection, {"ended": 1})
            return
        _send(self._agents[host], {"command": asked["command"]})
        with contextlib.suppress(EOFError, OSError):
            connection.recv_bytes()  # the launcher has ended the relay
        with contextlib.suppress(OSError):
            _send(self._agents[host], {"stop": True})

    def close(self, code: int) -> None:
        """Tells the others how the run has ended."""
        self._closed = True
        for connection in list(self._others.values()):
            with contextlib.suppress(OSError):
                _send(connection, {"code": code})
        self._listener.close()


# -- the other tasks -----------------------------------------------------------------------------------


def attend(cluster: Cluster, patience: float) -> int:
    """Executes the requests of the first task's launcher on this host, and waits for the end of the run; its exit code.

    Raises:
        WorldError: the first task could not be reached within ``patience`` seconds, or knows another secret.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    connection = _connected(cluster.address, cluster.key, patience)
    who = {"host": cluster.host, "leads": cluster.leads, "rank": cluster.rank, "process": tasks.this_process()}
    _send(connection, {"is": "task", **who})
    first = f"{cluster.name(0)} of TF_CONFIG"
    output.say(
        f"{cluster.name(cluster.rank)} is rank {cluster.rank} of {len(cluster.tasks)}; {first} shows the run, and where its logs are"
    )
    proxy: subprocess.Popen[bytes] | None = None
    try:
        while True:
            told = _receive(connection)
            if "code" in told:
                if told["code"]:
                    output.say(f"the run ended with exit code {told['code']}; {first} says why")
                return told["code"]
            if "stop" in told and proxy:
                _end(proxy)
            if "command" in told:
                proxy = subprocess.Popen(
                    told["command"], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
                )
                threading.Thread(target=_report, args=(connection, proxy), daemon=True).start()
    except EOFError:
        output.say(f"{first} is gone, and the run with it")
        return 1
    finally:
        if proxy:
            _end(proxy)


def _report(connection: Connection, proxy: subprocess.Popen[bytes]) -> None:
    code = proxy.wait()
    with contextlib.suppress(OSError):
        _send(connection, {"ended": code})


def _end(proxy: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(proxy.pid, signal.SIGTERM)
    try:
        proxy.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(proxy.pid, signal.SIGKILL)


@contextlib.contextmanager
def _in_time(connection: Connection, seconds: int = 10) -> Iterator[None]:
    """Inside, a peer that says nothing is an OSError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
        yield
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def _connected(address: tuple[str, int], key: bytes, patience: float) -> Connection:
    deadline = time.monotonic() + patience
    while True:
        try:
            return Client(address, authkey=key)
        except AuthenticationError as error:
            raise WorldError(
                f"The first task of TF_CONFIG, at {address[0]}:{address[1]}, knows another secret. Set {settings.SECRET_VARIABLE} to the same value on all "
                "hosts, or copy ~/.config/syrtos/secret."
            ) from error
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                raise WorldError(
                    f"The first task of TF_CONFIG could not be reached at {address[0]}:{address[1]} for {patience:.0f} s: {error}. Start "
                    "`python -m syrtos` there too."
                ) from error
            time.sleep(0.2)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _receive(connection: Connection) -> dict[str, Any]:
    return json.loads(connection.recv_bytes(1 << 20))


# -- the relay -----------------------------------------------------------------------------------------


def relay(arguments: list[str]) -> int:
    """The command that our MPI's launcher runs in place of ssh: ``[-x] HOST COMMAND ...``; ends as the command on that host does."""
    host, *command = [word for word in arguments if word != "-x"]
    address, _, port = settings.environment()[_ADDRESS].rpartition(":")
    connection = _connected((address, int(port)), bytes.fromhex(settings.environment()[_KEY]), 30.0)
    _send(connection, {"is": "relay", "host": host, "command": shlex.split(" ".join(command))})
    return int(_receive(connection).get("ended", 1))


if __name__ == "__main__":
    sys.exit(relay(sys.argv[1:]))
