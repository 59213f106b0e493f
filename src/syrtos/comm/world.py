"""The world of workers, which a process joins once."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from syrtos import settings, topology
from syrtos.comm.communicator import Communicator
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import ConfigurationError, WorldError
from syrtos.observe import usage
from syrtos.observe.ledger import Ledger
from syrtos.settings import Options

if TYPE_CHECKING:
    from mpi4py import MPI

    from syrtos.comm.servers import Servers


PartT = TypeVar("PartT")

# The number of errors that are kept: an old one that the script has caught must not push out the
# one that ends it.
_REMEMBERED = 8


@dataclasses.dataclass
class Session:
    """This process's place in the world.

    Attributes:
        world: ranks and sizes.
        comm: exchanges between all workers.
        input_comm: exchanges between the same workers, by their input pipelines while a step runs.
        options: the options of the run.
        ledger: the account of the worker's time; one object for the life of the process.
        watchdog: counts and bounds the waiting of ``comm``.
        errors: the latest errors of exchanges and readers, of all threads, oldest first; frameworks
            wrap them into errors of their own.
        servers: asks the parameter servers, if the run has some.
        questions: on a parameter server, the communicator by which workers ask; a server is no
            worker, and runs no script.
        same_processors: whether all workers compute on processors of one kind, for which compilers
            make the same instructions.
        rank_aware: whether the script has asked for its rank. Such a script decides itself which
            rank writes a file.
        claims: the folder of the files by which workers tell each other about files that one of
            them writes, if the launcher has made one; None: it is in the run directory.
        end: ends this worker in the middle of its script, as if it had come to its end; all workers
            call it together. None outside of a run.
        parts: the objects of higher rooms that last as long as the session, by their classes: see
            `part`.
    """

    world: topology.World
    comm: Communicator
    input_comm: Communicator
    options: Options
    ledger: Ledger
    watchdog: Watchdog
    servers: Servers | None = None
    questions: MPI.Comm | None = None
    same_processors: bool = True
    rank_aware: bool = False
    claims: Path | None = None
    end: Callable[[], NoReturn] | None = None
    errors: collections.deque[BaseException] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_REMEMBERED)
    )
    # Of any class.
    parts: dict[Callable[..., object], Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watchdog.on_wait = self._count_wait

    def _count_wait(self, seconds: float) -> None:
        # While exchanges go on that nobody waits for, this worker computes.
        if not self.comm.background.ahead:
            self.ledger.spend("wait", seconds)

    def part(self, kind: Callable[[Session], PartT]) -> PartT:
        """Returns the one object of a class that belongs to this session.

        The object is made when it is first asked for.

        State of a room lives there in place of a module's: another world begins without it. The
        sessions of `alone` and `asynchronously` have the same parts.
        """
        if kind not in self.parts:
            self.parts[kind] = kind(self)
        return self.parts[kind]

    def alone(self) -> Session:
        """Returns this worker as a world of one that writes into the same record."""
        own = InProcessCommunicator()
        return dataclasses.replace(self, world=topology.World(), comm=own, input_comm=own)

    def asynchronously(self) -> Session:
        """Returns this worker as a world of one that keeps its rank.

        Files that one worker writes are written by rank 0 then.
        """
        return dataclasses.replace(self.alone(), world=topology.World(rank=self.world.rank))

    def record_in(self, run_dir: str) -> None:
        """Writes this worker's part of the run's record under ``run_dir`` from now on."""
        self.options = dataclasses.replace(self.options, run_dir=run_dir)
        if _joined.sharing is not None:
            _joined.sharing.options = self.options
        # A server is no worker, and has no ledger.
        if self.questions is None:
            self.ledger.open(run_dir, self.world.rank)
            machine = None if self.world.local_rank else self.world.node_rank
            usage.sample(run_dir, self.world.rank, machine, lambda: self.ledger.trained)
        if self.options.asynchronous:
            self.ledger.say(training="asynchronous")
        if self.world.node_count > 1:
            self.ledger.say(hosts=self.world.node_count, node=self.world.node_rank)
        if self.options.sync_every:
            self.ledger.say(asked_to_sync_every=self.options.sync_every)
        if self.options.shard_update:
            self.ledger.say(asked_to_shard_update=True)
        if given := settings.take(settings.CLAIMS_VARIABLE):
            self.claims = Path(given)
        # The claims of an earlier run in the same folder are none of this run's.
        elif self.world.local_rank == 0:
            shutil.rmtree(claims_folder(self), ignore_errors=True)


@dataclasses.dataclass
class _Joined:
    """The world that this process has joined.

    Attributes:
        session: the session of the world; None before `init`.
        sharing: the session over which data sets, steps and callbacks are split; None where
            ``session`` is.
    """

    session: Session | None = None
    sharing: Session | None = None


_joined = _Joined()


def init(options: Options | None = None) -> Session:
    """Joins the world this process was started in; a plain process is a world of one.

    Later calls return the same session.

    Raises:
        WorldError: fewer workers met than were started.
        ConfigurationError: other options than at the first call.
    """
    session = _joined.session
    if session is None:
        session = _joined.session = _join(options or settings.options_from(settings.environment()))
        # Workers that update asynchronously share no step: each splits nothing, but keeps its rank
        # for files.
        _joined.sharing = (
            session.asynchronously() if session.options.asynchronous and session.servers else None
        )
    elif options is not None and options != session.options:
        raise ConfigurationError(
            "syrtos.init() was called a second time with other options. Give them at the first call"
            " only."
        )
    return session


def current() -> Session:
    """Returns the session of this process.

    Raises:
        WorldError: `init` has not been called.
    """
    if _joined.session is None:
        raise WorldError(
            "The world has not been joined yet: call `syrtos.init()` first, or start with `syrtos"
            " run`."
        )
    return _joined.session


def part(kind: Callable[[Session], PartT]) -> PartT:
    """Returns the one object of a class that belongs to this process's session: see `Session.part`.

    Raises:
        WorldError: `init` has not been called.
    """
    return current().part(kind)


def sharing() -> Session:
    """Returns the session over which data sets, steps and callbacks are split.

    Its workers are all of the run, or this one alone after `each_for_itself` or in an asynchronous
    run.
    """
    return _joined.sharing or current()


def each_for_itself() -> None:
    """Leaves exchanges to the script's own calls from now on.

    `fit` trains on all data it is given, as in one process.

    Raises:
        ConfigurationError: the run has parameter servers, workers that train alone for some steps,
            or divided updates.
    """
    if current().servers:
        raise ConfigurationError(
            "This script exchanges gradients between its workers itself, by Horovod or SMDDP, and"
            " the run has parameter servers (`--ps`). Run it without."
        )
    if current().options.sync_every:
        raise ConfigurationError(
            "This script exchanges gradients between its workers itself, by Horovod or SMDDP, in"
            " each step. Run it without `--sync-every`."
        )
    if current().options.shard_update:
        raise ConfigurationError(
            "This script exchanges gradients between its workers itself, by Horovod or SMDDP, and"
            " its rank 0 saves the optimizer alone, whose state `--shard-update` divides among the"
            " workers. Run it without."
        )
    _joined.sharing = _joined.sharing or current().alone()


def explicit() -> bool:
    """Returns whether only the script's own calls exchange."""
    return _joined.sharing is not None and current().servers is None


def is_initialized() -> bool:
    """Returns whether `init` has been called."""
    return _joined.session is not None


def claims_folder(session: Session) -> Path:
    """Returns the folder in which the workers of a run note which of them writes a file."""
    return session.claims or Path(session.options.run_dir, "claims")


@contextlib.contextmanager
def remembering_errors() -> Iterator[None]:
    """Context manager: keeps the errors raised in it, in any thread.

    `original_of` finds them when a framework has wrapped them.
    """
    try:
        yield
    except BaseException as error:
        if _joined.session is not None:
            _joined.session.errors.append(error)
        raise


def original_of(wrapped: BaseException) -> BaseException:
    """Returns the remembered error that a framework's error quotes; else ``wrapped`` itself.

    It is the error that comes first in the text, and of equal ones the latest.
    """
    text = str(wrapped)
    errors = () if _joined.session is None else reversed(_joined.session.errors)
    quoted = [error for error in errors if _quote(error) in text]
    return min(quoted, key=lambda error: text.index(_quote(error)), default=wrapped)


def _quote(error: BaseException) -> str:
    """Returns an error of Python as TensorFlow quotes it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def adopt(session: Session | None) -> Session | None:
    """Makes ``session`` the current one and returns the one before.

    It serves tests that play workers in one process.
    """
    before, _joined.session, _joined.sharing = _joined.session, session, None
    return before


def _join(options: Options) -> Session:
    launch = topology.detect(settings.environment())
    watchdog = Watchdog(options.timeout)
    if launch is None:
        alone = InProcessCommunicator()
        return Session(topology.World(), alone, alone, options, Ledger(), watchdog)
    return _join_mpi(launch, options, watchdog)


def _join_mpi(launch: topology.Launch, options: Options, watchdog: Watchdog) -> Session:
    if not launch.joins:
        # our MPI aborts the process inside another one: explain first
        topology.check_world(launch, 1)
    # Importing it starts MPI: only where other workers are expected.
    from mpi4py import MPI

    from syrtos.comm.hierarchical import communicator_over

    everybody = MPI.COMM_WORLD
    topology.check_world(launch, everybody.Get_size())
    workers = everybody.Get_size() - options.servers
    serves = everybody.Get_rank() >= workers
    # Workers exchange among themselves: a server takes part in nothing but questions.
    comm = everybody.Split(int(serves), everybody.Get_rank())
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    first_on_host = host.bcast(comm.Get_rank()) if host.Get_size() > 1 else comm.Get_rank()
    host.Free()
    # one machine may be several hosts by name: the instances of a job
    hosts = comm.allgather(f"{first_on_host} {socket.gethostname()}")
    world = topology.world_from_hosts(comm.Get_rank(), hosts)
    processors = (
        {_processor()} if world.local_size == world.size else set(comm.allgather(_processor()))
    )
    questions = everybody.Dup() if options.servers else None
    servers = None
    if questions is not None and not serves:
        from syrtos.comm.requests import Asking
        from syrtos.comm.servers import Servers

        servers = Servers(Asking(questions, watchdog), workers, options.servers, options.staleness)
    return Session(
        world=world,
        comm=communicator_over(comm.Dup(), watchdog),
        # Input pipelines exchange while a step does, in an order of their own.
        input_comm=communicator_over(comm.Dup(), watchdog.another("input")),
        options=options,
        ledger=Ledger(),
        watchdog=watchdog,
        servers=servers,
        questions=questions if serves else None,
        same_processors=len(processors) == 1,
    )


def _processor() -> str:
    """Returns the model and the instructions of this host's first processor (proc_cpuinfo(5))."""
    try:
        # The processors of one host are alike.
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""
    return "\n".join(
        line
        for line in first.splitlines()
        if line.startswith(("model name", "flags", "Features", "CPU "))
    )
