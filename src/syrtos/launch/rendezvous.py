"""A world from TF_CONFIG alone: `python -m syrtos train.py` on each host, as TensorFlow's cluster resolvers expect.

The first task's process launches the run as `syrtos run --hosts` does; the process of the first task of each other host
is the agent there, so that ssh is not needed. Processes meet at the first task's address in TF_CONFIG, and prove to
each other that they know the same secret (the challenge of `multiprocessing.connection`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path

from syrtos import settings
from syrtos.errors import ConfigurationError, WorldError
from syrtos.launch import agent, output, tasks
from syrtos.launch.agents import Agent
from syrtos.launch.channel import Channel, Message
from syrtos.topology import check_tf_config, detect

_QUIET = 10.0  # seconds of waiting for tasks without a word
_INTRODUCTION = 10.0  # seconds in which a process must say which task it is
_TRAINING = ("chief", "master", "worker")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The training tasks of TF_CONFIG, in the order of their ranks.

    Attributes:
        tasks: role, index and address of each.
        rank: the rank of this process's task.
    """

    tasks: tuple[tuple[str, int, str], ...]
    rank: int

    @property
    def address(self) -> tuple[str, int]:
        """The address, as (host, port), at which all tasks meet."""
        host, _, port = self.tasks[0][2].rpartition(":")
        return host, int(port)

    def name(self, rank: int) -> str:
        """Returns the name of a task in words: ``worker 0 at host:port``."""
        role, index, address = self.tasks[rank]
        return f"{role} {index} at {address}"

    @property
    def host(self) -> str:
        """This process's host, as TF_CONFIG names it."""
        return self.tasks[self.rank][2].rpartition(":")[0]

    @property
    def key(self) -> bytes:
        """The key that processes prove to know.

        It is derived from the secret and this cluster, so that the proof of another run is not valid here.
        """
        return hmac.digest(secret(), json.dumps(self.tasks).encode(), "sha256")

    @property
    def slots(self) -> dict[str, int]:
        """The number of tasks on each host."""
        hosts = [address.rpartition(":")[0] for _, _, address in self.tasks]
        return {host: hosts.count(host) for host in hosts}

    @property
    def leads(self) -> bool:
        """Returns whether this is the first task of its host."""
        hosts = [address.rpartition(":")[0] for _, _, address in self.tasks]
        return hosts.index(self.host) == self.rank


def cluster_of(env: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that TF_CONFIG describes, if this process is one of several that train; else None.

    Raises:
        ConfigurationError: TF_CONFIG names a task that is not in its cluster, addresses without ports, or a host's
            tasks apart from each other.
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
    """Returns the cluster of `cluster_of`; None if something has started this process as a worker."""
    return None if detect(env) else cluster_of(env)


def secret() -> bytes:
    """Returns the secret of this user: SYRTOS_SECRET, or the contents of a file that is created on first use."""
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
    """Reads the file with the secret, and waits while it is empty: another process may just be writing it."""
    for _ in range(100):
        if text := path.read_text():
            return text.encode()
        time.sleep(0.01)
    raise ConfigurationError(f"{path} is empty: remove it, or set {settings.SECRET_VARIABLE}.")


# -- the first task ------------------------------------------------------------------------------------


class Meeting:
    """The place to which the other tasks come, as long as the run lasts.

    Attributes:
        agents: the processes that start the workers of the other hosts, by host.
    """

    def __init__(self, cluster: Cluster, patience: float) -> None:
        """Listens at the first task's address."""
        self.agents: dict[str, Agent] = {}
        self._others: dict[int, Channel] = {}
        self._processes = {0: tasks.this_process()}
        self._change = threading.Condition()
        self._cluster = cluster
        self._key = cluster.key
        self._patience = patience
        self._closed = False
        self._listener = Listener(cluster.address, backlog=len(cluster.tasks) + 64)
        threading.Thread(target=self._accept, daemon=True).start()

    def wait(self) -> None:
        """Waits until all tasks are here, and lets workers know of their processes.

        Raises:
            WorldError: some have not come in time, or one has ended.
        """
        everybody, began, told = len(self._cluster.tasks), time.monotonic(), False
        while len(self._processes) < everybody:
            waited = time.monotonic() - began
            if waited > _QUIET and not told:
                output.say(f"waiting for {self._missing()}, at most {self._patience:.0f} s")
                told = True
            if waited > self._patience:
                raise WorldError(
                    f"Nobody has started {self._missing()} of TF_CONFIG for {self._patience:.0f} s; training needs all {everybody} tasks. Start "
                    "`python -m syrtos train.py` for each, or take it out of TF_CONFIG everywhere."
                )
            if lost := next((agent for agent in self.agents.values() if agent.lost), None):
                raise WorldError(f"The first task of TF_CONFIG on {lost.host} has ended before all tasks were there.")
            with self._change:
                self._change.wait(0.2)
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
        channel = _channel_of(connection)
        with contextlib.suppress(EOFError, OSError):
            asked = channel.receive(_INTRODUCTION)
            if asked is None:
                return
            with self._change:
                self._others[asked["rank"]] = channel
                self._processes[asked["rank"]] = asked["process"]
                if asked["leads"]:
                    self.agents[asked["host"]] = Agent(asked["host"], channel)
                self._change.notify_all()
            if not asked["leads"]:
                self._watch(channel, asked["rank"])

    def _watch(self, channel: Channel, rank: int) -> None:
        """Ends the run when the process of a task is gone: its worker must not continue, nor the others without it."""
        with contextlib.suppress(EOFError, OSError):
            channel.receive()
        if not self._closed:
            output.say(f"{self._cluster.name(rank)} of TF_CONFIG is gone: the run ends")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def close(self, code: int) -> None:
        """Tells the other tasks the exit code of the run."""
        self._closed = True
        for channel in list(self._others.values()):
            with contextlib.suppress(OSError):
                channel.send("over", code=code)
        self._listener.close()


# -- the other tasks -----------------------------------------------------------------------------------


def attend(cluster: Cluster, patience: float) -> int:
    """Starts the workers of this host if this is its first task, and waits for the end of the run.

    Returns:
        The exit code of the run; 1 if the first task is gone.

    Raises:
        WorldError: the first task could not be reached within ``patience`` seconds, or knows another secret.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    channel = _channel_of(_connected(cluster.address, cluster.key, patience))
    channel.send("task", host=cluster.host, leads=cluster.leads, rank=cluster.rank, process=tasks.this_process())
    first = f"{cluster.name(0)} of TF_CONFIG"
    output.say(
        f"{cluster.name(cluster.rank)} is rank {cluster.rank} of {len(cluster.tasks)}; {first} shows the run, and where its logs are"
    )
    over = agent.serve(channel) if cluster.leads else _end_of(channel)
    if over is None:
        output.say(f"{first} is gone, and the run with it")
        return 1
    if over["code"]:
        output.say(f"the run ended with exit code {over['code']}; {first} says why")
    return over["code"]


def _channel_of(connection: Connection) -> Channel:
    """Turns a connection into a channel, once both sides have proved that they know the secret."""
    descriptor = os.dup(connection.fileno())
    connection.close()
    return Channel(descriptor, descriptor)


def _end_of(channel: Channel) -> Message | None:
    try:
        return channel.receive()
    except (EOFError, OSError):
        return None


@contextlib.contextmanager
def _in_time(connection: Connection, seconds: int = 10) -> Iterator[None]:
    """Context manager: reading from a peer that says nothing for ``seconds`` raises an OSError."""
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
