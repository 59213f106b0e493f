"""A worker's program: joins the world, runs the script as `python` would, and reports its end."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, runtime_checkable

from syrtos import settings
from syrtos.comm.interrupted import OtherInterruptedError
from syrtos.errors import ConfigurationError
from syrtos.launch import events, lost_workers, resources, seeds
from syrtos.launch.processes import deferred_imports, leftovers, standard_input
from syrtos.launch.program import Program, parse
from syrtos.launch.remote import tasks
from syrtos.launch.spec import new_run_dir
from syrtos.launch.terminal import streams
from syrtos.launch.worker import (
    debugging,
    heartbeat,
    interpreters,
    log_files,
    made_folders,
    main_module,
    script_processes,
    tracebacks,
)
from syrtos.launch.worker.import_hook import after_import
from syrtos.observe import steady
from syrtos.topology import (
    check_keras_backend,
    check_servers,
    check_tf_config,
    detect,
    tf_config_of,
)

if TYPE_CHECKING:
    from syrtos.comm.world import Session

_exit = os._exit
# seconds in which all workers write their stacks, before the first of them ends the run
_STACKS = 0.3
_LINGERS = 10.0  # seconds after the end of a script in which its own threads may end unmentioned
_FORKABLE = ("keras", "tf_keras", "tensorflow")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs ``script [argument ...]`` or ``-m module [argument ...]``.

    The process ends with the script's exit code.
    """
    program = parse(sys.argv[1:] if arguments is None else arguments)
    env = settings.environment()
    # These two may start the interpreter again, so they come before all else.
    tasks.adopt(env, _rank_before_mpi(env))
    if detect(env):
        seeds.hash_alike(env)
    hidden = settings.take_arguments()
    program = dataclasses.replace(program, arguments=(*program.arguments, *hidden))
    settings.forget_secret()
    options, rank = settings.options_from(env), _rank_before_mpi(env)
    supervised, inputs = (
        bool(settings.take(settings.SUPERVISED_VARIABLE)),
        settings.take(settings.INPUT_VARIABLE),
    )
    if supervised:
        standard_input.adopt(inputs, rank)
    worker = _WorkerProcess(rank, options, supervised)
    code = worker.run(program)
    worker.leave(code)


@runtime_checkable
class _ComparesImports(Protocol):
    """A finder that compares the script's imports with those that this process was forked with."""

    on_difference: Callable[[str], NoReturn]


class _WorkerProcess:
    """The state of a worker for its whole life."""

    def __init__(self, rank: int, options: settings.Options, supervised: bool) -> None:
        self.rank = rank
        self._options = options
        self._pid = os.getpid()
        # Standard error goes to a log later on; the launcher reads from here.
        self._control = os.dup(2)
        self._supervised = supervised  # else no launcher reads the reports
        self._log: log_files.WorkerLog | None = None
        self._has_finished = False

    # -- running -------------------------------------------------------------------------------

    def run(self, program: Program) -> int:
        """Runs the program and returns its exit code; failures have been reported."""
        try:
            if self._supervised:
                events.report_start(self._control, self.rank)
                os._exit = self._exit_at_once
                script_processes.refuse_to_be_replaced(
                    lambda: not (self._is_forked() or self._has_finished) and self._size() > 1
                )
            # The finder of the program that has forked this process: see
            # `syrtos.launch.processes.zygote`.
            for finder in sys.meta_path:
                if isinstance(finder, _ComparesImports):
                    finder.on_difference = self._imported_otherwise
            if self._join() == "server":
                _serve(program, self._options.run_dir)
                self._say_finished()
                return 0
            unread = self._watch_hyperparameters(program)
            code = self._script_code(program)
            if code == 0 and not self._is_forked():
                self._finish()
                # a hint that can't be given must not fail a script that has come to its end
                with contextlib.suppress(Exception):
                    sentence = script_processes.describe_training_in_children(_session())
                    if sentence and self.rank == 0:
                        print(f"syrtos: {sentence}", file=sys.stderr, flush=True)
                    for name in unread():
                        print(
                            f"syrtos: hyperparameter `{name}` was never read by the script",
                            file=sys.stderr,
                            flush=True,
                        )
                self._say_finished()
            return code
        except KeyboardInterrupt as error:
            if tracebacks.is_raised(error):
                return self._report_error(error)
            by = error.rank if isinstance(error, OtherInterruptedError) else self.rank
            self._tell("interrupted", by=by)
            return 130
        except BaseException as error:
            return self._report_error(error)

    def _watch_hyperparameters(self, program: Program) -> Callable[[], list[str]]:
        """Returns a function that names a job's hyperparameters that its script has not read.

        On ranks other than 0 it names none.
        """
        if self.rank or program.is_module or "SM_HPS" not in settings.environment():
            return list
        from syrtos.launch.worker import unread_hyperparameters

        return unread_hyperparameters.watch(Path(program.name), settings.environment())

    def _script_code(self, program: Program) -> int:
        try:
            _script_begins()
            main_module.run(program)
        except SystemExit as end:
            return self._exit_code(end)
        return 0

    def _join(self) -> Literal["worker", "server"]:
        from syrtos.comm import clocks, world

        resources.apply(settings.environment())
        session = world.init()
        self.rank = session.world.rank
        session.watchdog.on_stall = self._report_stall
        session.watchdog.on_long_wait = self._report_wait
        session.end = self._end_here
        if self._supervised and session.world.size > 1:
            heartbeat.start(lambda position: self._tell("alive", position=position))
        leftovers.unlink_early(session)
        interpreters.check(session.comm, several_hosts=session.world.node_count > 1)
        run_dir = session.options.run_dir or session.comm.broadcast_object(
            str(new_run_dir().resolve())
        )
        session.record_in(run_dir)
        if imported := settings.take(settings.IMPORTED_VARIABLE):
            session.ledger.say(imported=[float(moment) for moment in imported.split()])
        check_servers(settings.environment(), session.options.servers)
        logs = Path(run_dir) / "logs"
        if session.questions is not None:
            self._log_to(logs / f"server-{self.rank}.log")
            self.rank = session.questions.Get_rank()
            self._tell("serves")
            return "server"
        self._log_to(logs / f"rank-{self.rank}.log", is_shown=self.rank == 0)
        debugging.watch(Path(run_dir), self.rank, session.watchdog.wait_without_limit)
        if not self._supervised and session.world.size > 1 and self.rank == 0:
            print(
                f"syrtos: {session.world.size} workers, logs in {logs}", file=sys.stderr, flush=True
            )
        seeds.agree(session.comm, run_dir)
        if session.options.profile and session.world.size > 1:
            session.ledger.began_ahead = time.perf_counter(), clocks.ahead(session.comm)
        if session.world.size > 1:
            made_folders.install(world.claims_folder(session), lambda: session.rank_aware)
        check_tf_config(settings.environment())
        settings.set_environment(
            tf_config_of(settings.environment(), self.rank, session.world.size)
        )
        self._adapt_imports(session)
        return "worker"

    def _adapt_imports(self, session: Session) -> None:
        """Lets each framework be adapted once the script has imported it, and its import timed."""

        def importing() -> AbstractContextManager[None]:
            return session.ledger.span("import")

        def check() -> None:
            check_keras_backend(settings.environment(), session.world.size)

        deferred_imports.install()
        after_import("tensorflow", _activate("tensorflow"), around=importing)
        after_import("keras", _activate("keras3"), check, importing)
        after_import("tf_keras", _activate("legacy"), around=importing)
        if self.rank == 0 and settings.SNAPSHOTS_VARIABLE in settings.environment():
            after_import("keras", self._tell_imported)
            after_import("tf_keras", self._tell_imported)
        loading = _activate("loading_jax")
        after_import("jax", _activate("jax"), around=lambda: loading(importing()))
        after_import("torch", _activate("torch"), around=importing)
        from syrtos import dialects  # needed by scripts alone, and not by parameter servers

        dialects.install()

    def _tell_imported(self) -> None:
        """Lets the launcher prepare a process for the next generation.

        The process has the modules that this worker has imported.
        """
        keras = sys.modules.get("keras")
        # Only with Keras on TensorFlow: other backends set up threads or a GPU when they are
        # imported, which a fork does not have.
        if "torch" in sys.modules or (
            keras is not None and keras.backend.backend() != "tensorflow"
        ):
            return
        modules = {name: sys.modules[name].__file__ for name in _FORKABLE if name in sys.modules}
        self._tell(
            "imported", modules=modules, variables=settings.read_at_import(settings.environment())
        )

    def _imported_otherwise(self, difference: str) -> NoReturn:
        """Ends this process, since its script needs an import of its own.

        The launcher starts the workers again.
        """
        # Not by an exception, as a child of the script, or another thread, may be what imports.
        events.send(self._control, "imported otherwise", self.rank, text=difference)
        events.drain(self._control)
        _exit(1)

    def _is_forked(self) -> bool:
        """Returns whether this is a child that the script has made with `os.fork`.

        Such a child has come out of the script too.
        """
        return os.getpid() != self._pid

    def _finish(self) -> None:
        """Comes to the end together with the other workers."""
        # A worker that ends while others still exchange is out of step.
        session = _session()
        # a worker may upload or evaluate for as long as it likes
        session.watchdog.timeout = float("inf")
        if session.servers:
            session.servers.leave()
        if self._options.asynchronous:
            return
        profiling = sys.modules.get("syrtos.keras.features.profiling")
        recorded = session.comm.agree(
            "end of the script", profiling.recordings(session) if profiling else 0.0
        )
        if any(recorded):
            from syrtos.keras.features import profiling as ours

            ours.end_of_script(session, recorded)

    def _end_here(self) -> NoReturn:
        """Ends this worker in the middle of its script, successfully.

        The rest of the script, and what it has registered for its exit, does not run.
        """
        self._finish()
        self._say_finished()
        _session().ledger.close()
        self._close_log()
        script_processes.end_children()
        events.drain(self._control)
        _exit(0)

    def _say_finished(self) -> None:
        """Reports that this worker has finished."""
        # Nothing else counts as an end: a library may end the process with exit code 0.
        self._has_finished = True
        self._tell("finished")

    # -- reporting -----------------------------------------------------------------------------

    def _exit_code(self, end: SystemExit) -> int:
        code = _system_code(end.code) if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        if code and (self._supervised or self._size() > 1):
            self._report_failure(
                f"The script ended with exit code {code} (sys.exit({end.code!r})).", code
            )
        return code

    def _exit_at_once(self, status: int) -> NoReturn:
        """Replaces `os._exit` in scripts, and ends the process at once.

        Before that it reports the end, and logs where it was called.
        """
        status &= 0xFF  # what a kernel passes on of it
        if not self._is_forked():
            faulthandler.dump_traceback(2, all_threads=False)
            self._tell("left", code=status)
            events.drain(self._control)
            if status == 0 and self._has_finished:
                _finalize_mpi()
        _exit(status)

    def _report_error(self, error: BaseException) -> int:
        if self._is_forked():
            traceback.print_exception(error)
            return 1
        cause = tracebacks.cause_of(error)
        # The interpreter notes errors there, which functions of `atexit` may look at.
        sys.last_value = cause
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        size, text = self._size(), tracebacks.short_text(cause)
        if advice := tracebacks.advice(cause, size):
            text += f"\nsyrtos: {advice}\n"
        self._report_failure(text, code, tracebacks.advice_if_alone(cause, size))
        # After the report and before the log is closed: it may end this process, and print.
        tracebacks.call_hook(error)
        if self._log is not None:
            self._log.append(tracebacks.full_text(cause))
        return code

    def _size(self) -> int:
        world = tracebacks.imported_world()
        return _session().world.size if world and world.is_initialized() else 1

    def _report_failure(self, text: str, code: int, if_alone: str = "") -> None:
        """Reports a failure by event, and in a file in case the event is lost in a sudden end.

        ``if_alone``: what to say as well unless all workers have failed alike.
        """
        if self._is_forked():
            return
        self._tell("failed", text=text, code=code, if_alone=if_alone)
        if not self._supervised:
            self._print(text)
        if self._log is not None:
            facts = {
                "rank": self.rank,
                "host": socket.gethostname(),
                "text": text,
                "code": code,
                "if_alone": if_alone,
                "time": steady.now(),
            }
            self._log.write_failure(facts)

    def _print(self, text: str) -> None:
        """Prints a failure on the terminal, where no launcher of ours does."""
        # A worker alone fails as a plain script does.
        if self._size() > 1:
            text = (
                f"\nsyrtos: rank {self.rank} failed:\n\n{text.rstrip()}\n\nIts output is in"
                f" {self._log.path if self._log else 'no log'}\n"
            )
        streams.flush()
        os.write(self._control, text.encode(errors="replace"))

    def _report_stall(self, text: str) -> None:
        self._tell("stalled", text=text)
        faulthandler.dump_traceback(2, all_threads=True)
        events.drain(self._control)
        time.sleep(_STACKS)

    def _report_wait(self, call: str, seconds: float, watchdog: str) -> None:
        self._tell("waiting", call=call, seconds=seconds, watchdog=watchdog)

    def _log_to(self, path: Path, is_shown: bool = False) -> None:
        """Sends output to a log; if it is shown, to the terminal too."""
        self._log = log_files.WorkerLog(path, self._control, is_shown)
        atexit.register(self._close_log)
        faulthandler.enable()
        # The launcher asks for the stacks of all threads by this signal.
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    def _tell(self, kind: str, **facts: object) -> None:
        if self._supervised and not self._is_forked():
            events.send(self._control, kind, self.rank, **facts)

    # -- ending --------------------------------------------------------------------------------

    def leave(self, code: int) -> NoReturn:
        """Ends this worker; after a failure, the whole run."""
        world = tracebacks.imported_world()
        if self._is_forked():
            streams.flush()
            _exit(code)
        if world and world.is_initialized():
            _session().ledger.close()
        streams.flush()
        events.drain(self._control)
        if (
            self._options.asynchronous
            and detect(settings.environment())
            and (code == 0 or self.rank > 0)
        ):
            self._close_log()
            # MPI would wait for processes that have died.
            _exit(code)
        if threading.active_count() > 1:
            threading.Thread(target=self._tell_threads, daemon=True).start()
        if code and "mpi4py.MPI" in sys.modules:
            from mpi4py import MPI

            self._close_log()
            MPI.COMM_WORLD.Abort(code)
        if "tensorflow" in sys.modules:
            # A pipeline that is freed while Python ends waits for ever for its thread, if that was
            # in a generator of the script (seen with TensorFlow 2.21, in plain Python too).
            gc.collect()
        # The log is closed at the exit, after all that the script has registered for it.
        sys.exit(code)

    def _tell_threads(self) -> None:
        """Names threads of the script that keep this process from ending, as in plain Python."""
        time.sleep(_LINGERS)
        if names := script_processes.lingering_threads():
            self._tell("lingers", threads=", ".join(names))

    def _close_log(self) -> None:
        if self._log is None or self._is_forked():
            streams.flush()
        else:
            self._log.close()


def _activate(name: str) -> Callable[..., Any]:
    """Returns a function that adapts Keras, loaded when the script imports it."""

    def call(*given: object) -> object:
        from syrtos.keras import activate

        return getattr(activate, name)(*given)

    return call


def _system_code(number: int) -> int:
    """Returns the exit code that Python ends with for a number: its lowest eight bits."""
    return number & 0xFF if -(1 << 63) <= number < 1 << 63 else 0xFF


def _serve(program: Program, run_dir: str) -> None:
    """Does the work of a parameter server, which imports Keras.

    Classes of the script's own are found beside the script.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # the signals are for the workers, which may have a step to finish and weights to save
        signal.signal(number, signal.SIG_IGN)
    main_module.find_modules_of(program)
    from syrtos.keras.tensorflow.parameter_server import server

    server.serve(lambda: lost_workers.lost_ranks(run_dir))


def _session() -> Session:
    # Only here: it imports MPI.
    from syrtos.comm import world

    return world.current()


def _script_begins() -> None:
    settings.hold_ours()
    _session().ledger.script_begins()


def _rank_before_mpi(env: Mapping[str, str]) -> int:
    return int(env.get("PMI_RANK") or env.get("SLURM_PROCID") or 0)


def _finalize_mpi() -> None:
    """Waits for the other workers as at a normal end, for which they wait."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise ConfigurationError("Name the script to run: python -m syrtos train.py")
    main()
