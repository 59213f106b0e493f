"""A world of processes that something has started on each host.

The processes are the tasks of TF_CONFIG, pods, or hosts of a cloud's job.

The first process launches the run as `syrtos run --hosts` does; the first process of each other
host is the agent there, so that ssh is not needed. Processes meet at the first one's address, and
prove to each other that they know the same secret (the challenge of `multiprocessing.connection`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import ipaddress
import json
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path

from syrtos import settings
from syrtos.errors import ConfigurationError, WorldError
from syrtos.launch.processes import signalling
from syrtos.launch.remote import agent, tasks
from syrtos.launch.remote.agents import Agent
from syrtos.launch.remote.channel import Channel, Message
from syrtos.launch.terminal import output
from syrtos.topology import check_tf_config

_QUIET = 10.0  # seconds of waiting for tasks without a word
_INTRODUCTION = 10.0  # seconds in which a process must say which task it is
_TRAINING = ("chief", "master", "worker")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that something has started, in the order of their ranks.

    Attributes:
        source: what describes them, as a name for a person: ``TF_CONFIG``, ``SageMaker``.
        names: the name of each process in words: ``worker 0 at host:port``.
        rank: the rank of this process.
        address: the address, as (host, port), at which all processes meet.
        host: a name for this process's host.
        workers: the number of workers on this host.
        leads: whether this is the first process of its host.
        are_workers: whether each process stands for one worker, whose environment is its own; else
            a process stands for all workers of its host.
    """

    source: str
    names: tuple[str, ...]
    rank: int
    address: tuple[str, int]
    host: str
    workers: int
    leads: bool = True
    are_workers: bool = False

    @property
    def key(self) -> bytes:
        """The key that processes prove to know, derived from the secret and this cluster."""
        # Not the secret alone: the proof of another run is not valid here.
        return hmac.digest(
            secret(), json.dumps([self.source, self.names, self.address[1]]).encode(), "sha256"
        )


def cluster_of(env: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of TF_CONFIG, if this process is one of several that train; else None.

    Raises:
        ConfigurationError: TF_CONFIG names a task that is not in its cluster, addresses without
            ports, or a host's tasks apart from each other.
    """
    check_tf_config(env)
    config = json.loads(env.get("TF_CONFIG") or "{}")
    task, jobs = config.get("task", {}), config.get("cluster", {})
    tasks = tuple(
        (role, index, address)
        for role in _TRAINING
        for index, address in enumerate(jobs.get(role, []))
    )
    if len(tasks) < 2 or task.get("type") not in _TRAINING:
        return None
    mine = [
        k
        for k, (role, index, _) in enumerate(tasks)
        if (role, index) == (task["type"], int(task.get("index", 0)))
    ]
    if not mine or any(not address.rpartition(":")[2].isdigit() for _, _, address in tasks):
        raise ConfigurationError(
            f"TF_CONFIG names task {task.get('type')} {task.get('index')}, and the cluster has"
            f" {[f'{r} {i} at {a}' for r, i, a in tasks]}. The task must be one of them, and"
            " addresses are written host:port."
        )
    hosts = [address.rpartition(":")[0] for _, _, address in tasks]
    if len(set(hosts)) != sum(
        host != before for host, before in zip(hosts, ["", *hosts], strict=False)
    ):
        raise ConfigurationError(
            "TF_CONFIG names a host's tasks apart from each other: put all tasks of a host next to"
            " each other."
        )
    rank, (first, _, port) = mine[0], tasks[0][2].rpartition(":")
    names = tuple(f"{role} {index} at {address}" for role, index, address in tasks)
    return Cluster(
        source="TF_CONFIG",
        names=names,
        rank=rank,
        address=(first, int(port)),
        host=hosts[rank],
        workers=hosts.count(hosts[rank]),
        leads=hosts.index(hosts[rank]) == rank,
        are_workers=True,
    )


def secret() -> bytes:
    """Returns this user's secret: SYRTOS_SECRET, or the contents of a file created on first use."""
    given = settings.environment().get(settings.SECRET_VARIABLE)
    if given:
        return given.encode()
    path = Path.home() / ".config" / "syrtos" / "secret"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        # One process makes the file (O_EXCL); those that come second read it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return _read(path)


def _read(path: Path) -> bytes:
    """Reads the secret's file, and waits while it is empty: another process may be writing it."""
    for _ in range(100):
        if text := path.read_text():
            return text.encode()
        time.sleep(0.01)
    raise ConfigurationError(f"{path} is empty: remove it, or set {settings.SECRET_VARIABLE}.")


# -- the first task --------------------------------------------------------------------------------


class Meeting:
    """The place to which the other processes come, as long as the run lasts.

    Attributes:
        agents: the processes that start the workers of the other hosts, by host.
        returned: called with an agent of a host whose agent was lost, and which has been started
            again.
    """

    def __init__(self, cluster: Cluster, patience: float) -> None:
        """Listens at the first process's address."""
        self.agents: dict[str, Agent] = {}
        self.returned: Callable[[Agent], None] = lambda agent: None
        self._hosts: dict[int, tuple[str, int]] = {0: (cluster.host, cluster.workers)}
        self._others: dict[int, Channel] = {}
        self._processes = {0: tasks.this_process()}
        self._change = threading.Condition()
        self._cluster = cluster
        self._key = cluster.key
        self._patience = patience
        self._closed = False
        self._listener = _listener_at(cluster.address, len(cluster.names) + 64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def slots(self) -> dict[str, int]:
        """The number of workers on each host, in rank order; complete once `wait` has returned."""
        return dict(self._hosts[rank] for rank in sorted(self._hosts))

    def wait(self) -> None:
        """Waits until all processes are here, and lets workers know of theirs.

        Raises:
            WorldError: some have not come in time, or one has ended.
        """
        source, everybody, began, told = (
            self._cluster.source,
            len(self._cluster.names),
            time.monotonic(),
            False,
        )
        while len(self._processes) < everybody:
            waited = time.monotonic() - began
            if waited > _QUIET and not told:
                output.say(f"waiting for {self._missing_names()}, at most {self._patience:.0f} s")
                told = True
            if waited > self._patience:
                raise WorldError(
                    f"Nobody has started {self._missing_names()} of {source} for"
                    f" {self._patience:.0f} s; training needs all {everybody}. Start `python -m"
                    f" syrtos train.py` for each, or take it out of {source} everywhere."
                )
            if lost := next((agent for agent in self.agents.values() if agent.lost), None):
                raise WorldError(
                    f"The process on {lost.host} has ended before all of {source} were there."
                )
            with self._change:
                self._change.wait(0.2)
        settings.set_environment(
            tasks.task_variables(self._processes if self._cluster.are_workers else {})
        )

    def _missing_names(self) -> str:
        return ", ".join(
            name for rank, name in enumerate(self._cluster.names) if rank not in self._processes
        )

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
            print(
                f"syrtos: refused a connection that does not know the secret: {error}",
                file=sys.stderr,
            )
            connection.close()
            return
        self._attend(connection)

    def _attend(self, connection: Connection) -> None:
        channel = _channel_of(connection)
        with contextlib.suppress(EOFError, OSError):
            asked = channel.receive(_INTRODUCTION)
            if asked is None:
                return
            self._take(channel, asked["rank"], asked)
            if not asked["leads"]:
                self._watch(channel, asked["rank"])

    def _take(self, channel: Channel, rank: int, asked: Message) -> None:
        """Takes in a process, which may come in the place of an earlier one of its rank."""
        with self._change:
            self._others[rank], self._processes[rank] = channel, asked["process"]
            if not asked["leads"]:
                self._change.notify_all()
                return
            known = rank in self._hosts
            if not known:
                taken = any(asked["host"] == host for host, _ in self._hosts.values())
                self._hosts[rank] = (
                    f"{asked['host']}-{rank}" if taken else asked["host"],
                    asked["workers"],
                )
            host = self._hosts[rank][0]
            agent = self.agents[host] = Agent(host, channel)
            self._change.notify_all()
        if known:
            output.say(f"{host} is back")
            self.returned(agent)

    def _watch(self, channel: Channel, rank: int) -> None:
        """Ends the run when the process of a worker is gone.

        That process's worker must not continue, nor the others without it.
        """
        with contextlib.suppress(EOFError, OSError):
            while (message := channel.receive()) and message["is"] == "terminated":
                signalling.terminate()
        if not self._closed:
            output.say(
                f"{self._cluster.names[rank]} of {self._cluster.source} is gone: the run ends"
            )
            signalling.terminate()

    def close(self, code: int) -> None:
        """Tells the other tasks the exit code of the run."""
        self._closed = True
        for channel in list(self._others.values()):
            with contextlib.suppress(OSError):
                channel.send("over", code=code)
        self._listener.close()


# -- the other tasks -------------------------------------------------------------------------------


def attend(cluster: Cluster, patience: float) -> int:
    """Starts this host's workers if this is its first process, and waits for the end of the run.

    A SIGTERM is passed on to the first process, which ends the run: workers save their state, and
    all processes end with the run's exit code.

    Returns:
        The exit code of the run; 1 if the first process is gone.

    Raises:
        WorldError: the first process could not be reached within ``patience`` seconds, or knows
            another secret.
    """
    # Until the first process is reached there is no run to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    channel = _channel_of(_connect(cluster, patience))
    channel.send(
        "task",
        host=cluster.host,
        leads=cluster.leads,
        rank=cluster.rank,
        workers=cluster.workers,
        process=tasks.this_process(),
    )
    first = f"{cluster.names[0]} of {cluster.source}"
    name = cluster.names[cluster.rank]
    output.say(
        f"{name} is rank {cluster.rank} of {len(cluster.names)}; {first} shows the run, and where"
        " its logs are"
    )
    agent.pass_on_signals(channel)
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
        # `Connection` reads from the descriptor itself, where a timeout of Python's socket does not
        # hold.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
        yield
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def _listener_at(address: tuple[str, int], backlog: int) -> Listener:
    """Returns a listener at an address of this host.

    Raises:
        WorldError: something else listens there.
    """
    try:
        return Listener((_interface_of(address[0]), address[1]), backlog=backlog)
    except OSError as error:
        raise WorldError(
            f"This host can't listen at port {address[1]}, at which the hosts are to meet:"
            f" {error.strerror}. Another run may be there: choose another port in what starts the"
            " hosts."
        ) from error


def _interface_of(name: str) -> str:
    """Returns the address to listen at for hosts that know this one by a name.

    An empty text means all addresses of this host. Those who connect must know the secret.
    """
    try:
        found = socket.gethostbyname(name)
        with socket.socket() as probe:
            probe.bind((found, 0))
    except OSError:
        return ""  # the name of a gateway, or not known yet
    # Distributions give a host's own name an address of 127/8, at which no other host could come.
    # Those of instances of a local job are here: their neighbours on this machine use the same
    # port.
    of_job = ipaddress.ip_address(found) in ipaddress.ip_network("127.64.0.0/10")
    own_name = name not in (found, "localhost") and found.startswith("127.") and not of_job
    return "" if own_name else found


def _connect(cluster: Cluster, patience: float) -> Connection:
    deadline, where = time.monotonic() + patience, "{}:{}".format(*cluster.address)
    while True:
        try:
            return Client(cluster.address, authkey=cluster.key)
        except AuthenticationError as error:
            raise WorldError(
                f"{cluster.names[0]} of {cluster.source}, at {where}, knows another secret. Set"
                f" {settings.SECRET_VARIABLE} to the same value on all hosts, or copy"
                " ~/.config/syrtos/secret."
            ) from error
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                raise WorldError(
                    f"{cluster.names[0]} of {cluster.source} could not be reached at {where} for"
                    f" {patience:.0f} s: {error}. Start `python -m syrtos` there too."
                ) from error
            time.sleep(0.2)
