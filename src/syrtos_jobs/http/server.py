"""The service's process: its port, its queue, and an end that leaves running jobs alone."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from syrtos.errors import ConfigurationError
from syrtos.launch.processes import signalling
from syrtos_jobs.api.service import Service
from syrtos_jobs.http.app import App
from syrtos_jobs.http.health import Health
from syrtos_jobs.placement import Placement
from syrtos_jobs.polling import PollingThread
from syrtos_jobs.queue import Queue
from syrtos_jobs.storage.objects import FolderStore
from syrtos_jobs.storage.storage_uris import StorageURIs, store_of
from syrtos_jobs.store.home import Home, try_lock
from syrtos_jobs.store.job_store import Store
from syrtos_jobs.tuning.driver import Driver

_HEADERS_IN = 20.0
_LARGEST_HEAD = 1 << 17
_MOST_SILENT = 300  # connections
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Patient(HttpToolsProtocol):
    """Closes connections whose headers don't come or don't end.

    With TLS it is called only after the handshake.
    """

    # connections whose request has not come whole, in the order in which they have sent something
    # last
    _silent: ClassVar[dict[_Patient, None]] = {}
    # ends the connection if the headers are late
    _late: asyncio.TimerHandle | None = None
    # bytes of headers so far; None: they are complete
    _head: int | None = 0

    def data_received(self, data: bytes) -> None:
        self._hears()
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _LARGEST_HEAD:
                self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect()
        self._hears()

    def _hears(self) -> None:
        self._silent.pop(self, None)
        self._silent[self] = None
        # thousands of them would hold the service up: the one that has been silent for longest
        # makes room
        if len(self._silent) > _MOST_SILENT:
            longest = next(iter(self._silent))
            del self._silent[longest]
            longest.transport.abort()

    def on_message_complete(self) -> None:
        self._silent.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._hears()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._head = None
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent.pop(self, None)
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._head = 0
        self._stop_waiting()
        self._late = self.loop.call_later(_HEADERS_IN, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()


class _WatchedServer(uvicorn.Server):
    """Starts threads again that have died."""

    def __init__(self, config: uvicorn.Config, threads: Sequence[PollingThread]) -> None:
        super().__init__(config)
        self._threads = threads

    async def on_tick(self, counter: int) -> bool:
        """Looks after the threads, ten times a second."""
        for thread in self._threads:
            thread.revive()
        return await super().on_tick(counter)


class Server:
    """A service that answers at an address.

    Args:
        home: its folder, which only one service at a time may have.
        capacity: the number of workers that may run at the same time.
        host, port: the address; port 0: any free port.
        tls: certificate and key, in PEM; needed beyond loopback.
        files: folders that ``file://`` may name; None: all on loopback, none beyond it.
        placement: where the jobs run; None: on this machine.

    Raises:
        ConfigurationError: another service has the folder or the port, the address needs TLS, or
            the database is damaged.
    """

    def __init__(
        self,
        home: Home,
        capacity: int,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[Path, Path] | None = None,
        files: list[Path] | None = None,
        placement: Placement | None = None,
    ) -> None:
        if host not in _LOOPBACK and tls is None:
            raise ConfigurationError(
                f"{host} can be reached from other machines: give a certificate (`--tls-cert FILE"
                " --tls-key FILE`), or stay on 127.0.0.1."
            )
        # before anything is changed in the folder
        self._lock = try_lock(home.path / "serving")
        if self._lock is None:
            raise ConfigurationError(
                f"A service already runs in {home.path},"
                f" {_address_of(home)}. Stop it, or set SYRTOS_HOME."
            )
        if home.backups:
            home.backups.check()
        allowed = files if files is not None else (None if host in _LOOPBACK else [])
        # the limits are this service's from now on; the address of the service before must not be
        # taken for this one's
        home.announce(None, None, allowed, capacity, placement)
        objects = store_of(home)
        if isinstance(objects, FolderStore):
            objects.repair()
            objects.sweep()
        self._store = Store(home.database, home.place)
        self.service = Service(
            home, self._store, StorageURIs(objects, allowed), capacity, placement
        )
        self.queue = Queue(self.service)
        self.tuning = Driver(self.service, self.queue.wake)
        self._threads = (self.queue, self.tuning)
        self._socket = _listening(host, port)
        scheme = "https" if tls else "http"
        self.url = (
            f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"
        )
        home.announce(
            self.url, str(tls[0].resolve()) if tls else None, allowed, capacity, placement
        )
        app = App(self.service, self._wake, Health(self._threads, home.reserve))
        self._server = _WatchedServer(_configuration(app, tls), self._threads)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serves until SIGINT, SIGTERM or SIGHUP."""
        # uvicorn raises a SIGTERM again when it has closed its connections: it must not end the
        # process before `close`
        for number in filter(signalling.is_wanted, (signal.SIGTERM, signal.SIGHUP)):
            signal.signal(number, self._end)
        self._start_threads()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def _end(self, *_: object) -> None:
        self._server.should_exit = True

    async def serve(self) -> None:
        """Serves in the present event loop, in a thread that gets no signals, until `close`."""
        self._start_threads()
        # without the handlers of signals that `serve` would install
        await self._server._serve([self._socket])

    def start(self) -> None:
        """Serves in a thread, until `close`."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True)
        self._thread.start()

    def _start_threads(self) -> None:
        for thread in self._threads:
            thread.start()

    def _wake(self) -> None:
        self.tuning.wake()
        self.queue.wake()

    def close(self) -> None:
        """Ends the service; running jobs go on."""
        self._server.should_exit = True
        self.tuning.close()
        self.queue.close()
        if self._thread:
            self._thread.join()
        self._socket.close()
        self._store.close()
        self.service.objects.close()
        if self._lock:
            self._lock.close()


def _configuration(app: App, tls: tuple[Path, Path] | None) -> uvicorn.Config:
    """Returns uvicorn's settings for a service; ``tls`` is a certificate and its key, or None."""
    return uvicorn.Config(
        app,
        http=_Patient,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=3,
        # above it uvicorn answers 503; silent connections alone must not get there
        limit_concurrency=2 * _MOST_SILENT,
        ssl_certfile=str(tls[0]) if tls else None,
        ssl_keyfile=str(tls[1]) if tls else None,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )


def _address_of(home: Home) -> str:
    found = home.endpoint()
    return f"at {found}" if found else "whose endpoint.json there is missing or damaged"


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        # at once: a client that has read the address may connect before the service is ready
        found.listen(512)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", "") or "ports are numbers from 0 to 65535"
        raise ConfigurationError(
            f"The service can't listen on {host}:{port}: {why}. Give another `--port`."
        ) from error
    return found
