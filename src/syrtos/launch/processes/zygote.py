"""An interpreter that has imported the frameworks and forks processes: ``zygote.py [ORDER]``.

The forked processes go on as if they were new interpreters.

ORDER is a JSON object:

- ``path``: its socket.
- ``modules``: the modules that it imports, by name, each with its file, or an empty text; it ends
  if a module has another file.
- ``libraries``: further modules that it imports, and that its children find imported.
- ``shared_libraries``: the paths of shared libraries that it loads.
- ``compare``: whether a process that imports a module must have the environment and the places of
  modules in which the module was imported.
- ``idle``: whether it imports only while the processors have nothing else to do.

Without ORDER the first line of standard input is it, with ``env`` beside, the environment to import
in: meanwhile the interpreter imports what the workers of any script do.

TensorFlow and Keras take seconds of processor time to import, a fork takes milliseconds. The zygote
does nothing but import: a fork after TensorFlow has run an operation hangs. It is a program by
itself: of syrtos it imports what it is told to, so that other children than workers have nothing of
it.

A client connects to the socket and sends a request for each process: a JSON object with ``argv``
(``["-m", module, ...]`` or ``[script, ...]``), ``env`` (all of it), ``cwd``, and with it the
descriptors of standard input, output and error, and of the socket for PMI if MPI is to start. It
hears ``{"pid": ...}``, and later ``{"pid": ..., "status": ...}`` with the wait status. When it
closes the connection its processes are killed; the zygote ends with its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import logging
import os
import random
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_LONGEST = 1 << 20
_PR_SET_PDEATHSIG = 1
# Signals that a terminal or a scheduler sends to all processes of a run: its end is that of
# standard input.
_FOR_WORKERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# Frameworks, which adapters wait for: hidden also where another one has imported them.
FRAMEWORKS = ("keras", "tf_keras", "tensorflow", "jax", "torch")
# Variables that no framework reads: of launchers and job services, which have another value for
# each worker, and of services that keep records.
_OF_OTHERS = (
    "SYRTOS_", "PMI", "MPI", "HYD", "OMPI_", "HOROVOD_", "UCX_", "FI_", "SLURM_", "NCCL_", "SM_", "AWS_", "MASTER_", "TF_CONFIG", "PYTHON",
    "WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "TOKENIZERS_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES",
)  # fmt: skip


def is_compared(variable: str) -> bool:
    """Returns whether a framework, or a library of one, may read a variable when it is imported."""
    return not variable.startswith(_OF_OTHERS) and variable != "_"


def main(order: dict[str, Any] | None) -> None:
    """Imports what is ordered and serves requests.

    A child stops serving and runs the program of its request.
    """
    if not sys.flags.safe_path:
        # The folder of this file is no place of the script's modules.
        del sys.path[0]
    order = order or _prepare_for_workers()
    path: str = order["path"]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path + ".new")
    # Clients that connect during the imports are served afterwards.
    listener.listen(64)
    # Renamed only now: a path that exists can be connected to.
    os.rename(path + ".new", path)
    _put_imports_off()
    modules = Imported(
        order["modules"],
        order.get("libraries", ()),
        bool(order.get("compare")),
        bool(order.get("idle")),
    )
    for library in order.get("shared_libraries", ()):
        with contextlib.suppress(OSError):
            ctypes.CDLL(library)
    # from now on the end of standard input is the end
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    # What is still in the buffers would be printed by each child too.
    sys.stdout.flush()
    sys.stderr.flush()
    # Without it the first garbage collection of each child copies all pages.
    gc.freeze()
    open(marker_path(path), "w").close()
    request = ForkServer(listener).run()
    if request is None:
        # the starter removes the folder too, unless it was killed
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    else:
        modules.hide()
        become(request)


def _prepare_for_workers() -> dict[str, Any]:
    """Imports what workers of any script do, and waits for the order; ends if none comes."""
    for name in ("syrtos.worker", "syrtos.comm.world", "numpy.random"):
        importlib.import_module(name)
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit()
    order = json.loads(line)
    _set_environment(order["env"])
    return order


def marker_path(path: str) -> str:
    """Returns the path of a file that exists once a zygote at ``path`` has imported everything."""
    return f"{path}.imported"


def _put_imports_off() -> None:
    """Calls `deferred_imports.install`, of the file beside this one."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "deferred_imports.py")
    spec = importlib.util.spec_from_file_location("deferred_imports", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


# -- what is imported ------------------------------------------------------------------------------


class Imported(MetaPathFinder, Loader):
    """Modules that are imported already, but that a script finds only when it imports them.

    The script finds them as in a new interpreter. What waits for an import
    (`syrtos.launch.worker.import_hook`) would come too early otherwise.
    """

    def __init__(
        self,
        files: dict[str, str],
        libraries: Sequence[str] = (),
        compare: bool = False,
        idle: bool = False,
    ) -> None:
        self._before, self._compare = dict(os.environ), compare
        if idle:
            # In a thread, whose low priority no fork of another one inherits (sched(7)).
            importing = threading.Thread(target=_when_idle, args=([*files, *libraries],))
            importing.start()
            importing.join()
        for name in files:
            importlib.import_module(name)
        for name in libraries:
            # A script may do without the library.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._path, self._logs = list(sys.path), _loggers()
        self._handlers = list(logging.getLogger("tensorflow").handlers)
        self._modules = {
            name: sys.modules[name]
            for name in dict.fromkeys((*files, *FRAMEWORKS))
            if name in sys.modules
        }
        for name, file in files.items():
            if file not in ("", self._modules[name].__file__):
                raise ImportError(f"{name} is {self._modules[name].__file__} here, and was {file}")
        self._origins = {
            name: (module.__spec__, module.__loader__) for name, module in self._modules.items()
        }
        self._set = {
            name: value for name, value in os.environ.items() if self._before.get(name) != value
        }
        self.on_difference: Callable[[str], None] = _raise

    def hide(self) -> None:
        """Makes the modules count as not imported from now on."""
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        module = self._modules.get(fullname)
        if module is None or module.__spec__ is None:
            return None
        if self._compare:
            self._check(fullname, module.__spec__)
        spec = ModuleSpec(fullname, self, origin=module.__spec__.origin, is_package=True)
        spec.submodule_search_locations = module.__spec__.submodule_search_locations
        return spec

    def _check(self, name: str, spec: ModuleSpec) -> None:
        """Refuses an import that would have given something else in an interpreter of its own."""
        # The level of TensorFlow's log changes nothing that is computed, and workers are given one
        # that the script's `setdefault` finds.
        for variable in filter(
            is_compared, sorted({*self._before, *os.environ} - {"TF_CPP_MIN_LOG_LEVEL"})
        ):
            here, there = os.environ.get(variable), self._before.get(variable)
            if here not in (there, self._set.get(variable, there)):
                self.on_difference(
                    f"{_describe_variable(variable, here)} where the script imports {name};"
                    f" {_describe_variable(variable, there)} for the workers' import"
                )
        for other in {name, *self._shadowed_modules()}:
            found, had = (
                PathFinder.find_spec(other),
                sys.modules.get(other, self._modules.get(other)),
            )
            origin = (
                spec.origin
                if other == name
                else getattr(getattr(had, "__spec__", None), "origin", None)
            )
            if found is not None and found.origin != origin:
                self.on_difference(
                    f"the script imports {other} from {found.origin}, and the workers' import has"
                    f" {origin}"
                )

    def _shadowed_modules(self) -> set[str]:
        """Returns imported top-level modules that also stand in folders new in `sys.path`.

        The script has added those folders.
        """
        known = (
            {module.partition(".")[0] for module in sys.modules}
            - set(sys.stdlib_module_names)
            - {"__main__", "syrtos"}
        )
        found: set[str] = set()
        for folder in set(sys.path) - set(self._path):
            with contextlib.suppress(OSError):
                found |= {file.partition(".")[0] for file in os.listdir(folder or ".")} & known
        return found

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Restores the module, and imports the others with it."""
        module.__spec__, module.__loader__ = self._origins[module.__name__]
        self._as_if_imported_now()
        # TensorFlow and Keras import each other.
        for name in self._modules:
            importlib.import_module(name)

    def _as_if_imported_now(self) -> None:
        """Sets what the imports have set beside modules, except where the script has changed it."""
        os.environ.update(
            {
                name: value
                for name, value in self._set.items()
                if os.environ.get(name) == self._before.get(name)
            }
        )
        # TensorFlow's logger gets a handler of its own only where the root has none
        if logging.getLogger().handlers:
            for handler in self._handlers:
                logging.getLogger("tensorflow").removeHandler(handler)
        # `logging.config` disables the loggers that there are; without the imports there would be
        # none.
        if all(logger.disabled for logger in self._logs):
            for logger in self._logs:
                logger.disabled = False


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [
        logger for logger in known if isinstance(logger, logging.Logger) and not logger.disabled
    ]


class ImportedOtherwise(BaseException):
    """A module was imported in another environment than the script's."""


def _raise(difference: str) -> None:
    raise ImportedOtherwise(difference)


def _describe_variable(variable: str, value: str | None) -> str:
    return f"{variable} is not set" if value is None else f"{variable} is {value!r}"


def _when_idle(names: Sequence[str]) -> None:
    """Imports modules while the processors have nothing else to do.

    The priority of this thread is lowered for that.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            # The main thread imports again, and raises it for all to see.
            return


# -- serving ---------------------------------------------------------------------------------------


class ForkServer:
    """Forks for its clients, and tells them how their processes end."""

    def __init__(self, listener: socket.socket) -> None:
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._ended, self._wakes = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(self._wakes, False)
        self._handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _FOR_WORKERS}
        # By default this signal is ignored, and would not wake the selector.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for source in (listener, self._ended, 0):
            self._selector.register(source, selectors.EVENT_READ)
        self._listener = listener

    def run(self) -> dict[str, Any] | None:
        """Serves until standard input ends, returning None; a child returns its request at once."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return self._end()
                if key.fileobj is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif key.fileobj == self._ended:
                    os.read(self._ended, 1024)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and (
                    request := self._hear(key.fileobj)
                ):
                    return request

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _hear(self, client: socket.socket) -> dict[str, Any] | None:
        """Forks for a client's request; returns the request in the child, None in the zygote."""
        try:
            text, descriptors, _, _ = socket.recv_fds(client, _LONGEST, 8)
        except OSError:
            text, descriptors = b"", []
        if not text:
            return self._forget(client)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            # no memory, or too many processes: the client sees the end of the connection
            return self._forget(client)
        if pid == 0:
            self._leave()
            return {**json.loads(text), "descriptors": descriptors, "parent": parent}
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = client
        _tell(client, {"pid": pid})
        return None

    def _forget(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        client.close()
        for pid, owner in self._children.items():
            if owner is client:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _tell(self._children.pop(pid), {"pid": pid, "status": status})

    def _leave(self) -> None:
        """Closes, in a child, what belongs to the server, and restores the signals."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self._handlers.items():
            # A shell's `command &` ignores it; the launcher answers it, and passes it on.
            ignores = number == signal.SIGINT and handler is signal.SIG_IGN
            signal.signal(number, signal.default_int_handler if ignores else handler)
        for client in {*self._children.values(), self._listener}:
            client.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        os.close(self._ended)
        os.close(self._wakes)


def _tell(client: socket.socket, what: dict[str, int]) -> None:
    try:
        client.send(json.dumps(what).encode())
    except OSError:
        return  # it is gone


# -- in a child ------------------------------------------------------------------------------------


def become(request: dict[str, Any]) -> None:
    """Runs a script or a module as a new interpreter would."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The zygote has ended before the line above: nothing else would end this process.
    if os.getppid() != request["parent"]:
        os.kill(os.getpid(), signal.SIGKILL)
    # As of a new interpreter: Ctrl-C is the launcher's to pass on.
    os.setsid()
    _set_environment(request["env"])
    os.chdir(request["cwd"])
    _take(request["descriptors"])
    _open_streams()
    # TMPDIR may be another one in the new environment.
    tempfile.tempdir = None
    # A fork has the zygote's state: all children would draw the same numbers.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    first, *rest = argv = request["argv"]
    sys.orig_argv = [sys.executable, *argv]
    if first == "-m":
        if not sys.flags.safe_path:
            sys.path.insert(0, os.getcwd())
        _run_module(rest[0], rest[1:])
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = [first, *rest]
        with open(first, "rb") as source:
            _run(compile(source.read(), first, "exec"), __file__=first)


def _set_environment(env: dict[str, str]) -> None:
    # Python itself sets it where there is no locale (PEP 538).
    coerced = {name: value for name, value in os.environ.items() if name == "LC_CTYPE"}
    os.environ.clear()
    os.environ.update({**coerced, **env})


def _run_module(name: str, arguments: list[str]) -> None:
    """Runs a module as ``python -m name`` does; of a package its ``__main__``."""
    # Not by runpy, which puts the zygote's ``__main__`` back before the interpreter ends.
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or not isinstance(spec.loader, InspectLoader):
        raise ImportError(f"there is no module {name} that can be run")
    sys.argv = [str(spec.origin), *arguments]
    code = spec.loader.get_code(spec.name)
    _run(code, __spec__=spec, __file__=spec.origin, __package__=spec.parent, __loader__=spec.loader)


def _open_streams() -> None:
    """Opens standard input, output and error anew."""
    # The zygote's streams know of its own files whether they can be sought.
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        new: Any = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        if mode == "w":
            # By lines also where it is no terminal: a process that is killed keeps none back.
            new.reconfigure(line_buffering=True, write_through="PYTHONUNBUFFERED" in os.environ)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        _log_to(new, old)


def _log_to(new: Any, old: Any) -> None:
    """Gives handlers of `logging` that frameworks made when they were imported the new stream."""
    # absl closes what is not `sys.stderr` at the end, and what is logged after it would be a
    # traceback. all of them; seen in Python 3.11 to 3.13
    for reference in getattr(logging, "_handlerList", ()):
        handler = reference()
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


def _take(descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in descriptors[3:]:
        os.environ["PMI_FD"] = str(descriptor)


def _run(code: types.CodeType | None, **facts: object) -> None:
    assert code is not None
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(facts, __builtins__=__builtins__)
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]) if len(sys.argv) > 1 else None)
