"""An interpreter that has imported the frameworks, and forks processes which go on as if they were new: ``zygote.py SOCKET MODULE[=FILE] ...``.

It ends if a module's file is not FILE.

TensorFlow and Keras take some 8 s of processor time to import, a fork takes milliseconds. The zygote does nothing but import: a fork
after TensorFlow has run an operation hangs. It is a program by itself and imports nothing of syrtos, so that its children haven't either.

A client connects to SOCKET and sends a request for each process: a JSON object with ``argv`` (``["-m", module, ...]`` or
``[script, ...]``), ``env`` (all of it), ``cwd``, and with it the descriptors of standard input, output and error, and of the socket for
PMI if MPI is to start. It hears ``{"pid": ...}``, and later ``{"pid": ..., "status": ...}`` with the wait status. When it closes the
connection its processes are killed; the zygote ends with its standard input.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

_LONGEST = 1 << 20
_PR_SET_PDEATHSIG = 1
# Signals that a terminal or a scheduler sends to all processes of a run: its end is that of standard input.
_FOR_WORKERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(path: str, names: list[str]) -> None:
    """Imports ``names`` and serves requests; in a child, returns from that and runs what was asked for."""
    del sys.path[0]  # the folder of this file
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path + ".new")
    listener.listen(64)  # clients that connect during the imports are served afterwards
    os.rename(path + ".new", path)  # a path that exists can be connected to
    modules = Imported(names)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)  # from now on the end of standard input is the end
    sys.stdout.flush()  # else each child prints it too
    sys.stderr.flush()
    gc.freeze()  # else the first collection of each child copies all pages
    open(imported(path), "w").close()
    request = Server(listener).run()
    if request is None:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)  # its starter may have been killed
    else:
        modules.hide()
        become(request, modules.variables)


def imported(path: str) -> str:
    """The file that is there once a zygote at ``path`` has imported everything."""
    return f"{path}.imported"


# -- what is imported --------------------------------------------------------------------------------


class Imported(MetaPathFinder, Loader):
    """Modules that are here already, and that a script finds only when it imports them, as in a new interpreter.

    What waits for an import (`syrtos.launch.import_hook`) would come too early otherwise.
    """

    def __init__(self, names: list[str]) -> None:
        before = dict(os.environ)
        files = {name: file for name, _, file in (word.partition("=") for word in names)}
        self._modules = {name: importlib.import_module(name) for name in files}
        for name, module in self._modules.items():
            if files[name] not in ("", module.__file__):
                raise ImportError(f"{name} is {module.__file__} here, and was {files[name]}")
        self._origins = {name: (module.__spec__, module.__loader__) for name, module in self._modules.items()}
        self.variables = {name: value for name, value in os.environ.items() if before.get(name) != value}

    def hide(self) -> None:
        """From now on they count as not imported."""
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        module = self._modules.get(fullname)
        if module is None or module.__spec__ is None:
            return None
        spec = ModuleSpec(fullname, self, origin=module.__spec__.origin, is_package=True)
        spec.submodule_search_locations = module.__spec__.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """TensorFlow and Keras import each other."""
        module.__spec__, module.__loader__ = self._origins[module.__name__]
        for name in self._modules:
            importlib.import_module(name)


# -- serving -----------------------------------------------------------------------------------------


class Server:
    """Forks for its clients, and tells them how their processes end."""

    def __init__(self, listener: socket.socket) -> None:
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._ended, self._wakes = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(self._wakes, False)
        self._handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _FOR_WORKERS}
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the default would not wake
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for source in (listener, self._ended, 0):
            self._selector.register(source, selectors.EVENT_READ)
        self._listener = listener

    def run(self) -> dict[str, Any] | None:
        """Serves until standard input ends, and returns None; in a child returns the request at once."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return self._end()
                if key.fileobj is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif key.fileobj == self._ended:
                    os.read(self._ended, 1024)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and (request := self._hear(key.fileobj)):
                    return request

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _hear(self, client: socket.socket) -> dict[str, Any] | None:
        """The request, in the child that is forked for it."""
        try:
            text, descriptors, _, _ = socket.recv_fds(client, _LONGEST, 8)
        except OSError:
            text, descriptors = b"", []
        if not text:
            return self._forget(client)
        try:
            pid = os.fork()
        except OSError:  # no memory, or too many processes: the client sees the end of the connection
            return self._forget(client)
        if pid == 0:
            self._leave()
            return {**json.loads(text), "descriptors": descriptors}
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
        """A child has nothing of the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
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


# -- in a child --------------------------------------------------------------------------------------


def become(request: dict[str, Any], variables: dict[str, str]) -> None:
    """Runs a script or a module as a new interpreter would; the imports have set ``variables``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.environ.clear()
    os.environ.update({**variables, **request["env"]})
    os.chdir(request["cwd"])
    _take(request["descriptors"])
    tempfile.tempdir = None
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    first, *rest = request["argv"]
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = [first, *rest]
        _run(first)


def _take(descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in descriptors[3:]:
        os.environ["PMI_FD"] = str(descriptor)


def _run(script: str) -> None:
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main_module
    with open(script, "rb") as source:
        code = compile(source.read(), script, "exec")
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
