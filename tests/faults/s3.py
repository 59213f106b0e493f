"""A local S3 server, and a way to it on which things go wrong."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator

Fault = Callable[["Proxy", str, int], str | None]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def server() -> Iterator[int]:
    """The port of moto's S3 server, a process of its own."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            assert time.monotonic() < deadline, "moto's server did not start"
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def put(port: int, bucket: str, key: str, content: bytes) -> None:
    """Makes the bucket and the object."""
    for path, body in ((f"/{bucket}", b""), (f"/{bucket}/{key}", content)):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(
            "PUT",
            path,
            body,
            {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"},
        )
        assert connection.getresponse().status in (200, 409)
        connection.close()


class Proxy:
    """Passes requests on, and asks ``fault`` what goes wrong with the n-th GET of a range: ``"503"``, ``"truncate"``, ``"slow"``.

    Attributes:
        seen: how often each fault, and each path, has occurred.
        sent: bytes of bodies that were passed on whole.
    """

    def __init__(self, behind: int, fault: Fault | None = None) -> None:
        self.seen: Counter[str] = Counter()
        self.sent = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._pass_on(self, behind, fault)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _pass_on(
        self, handler: http.server.BaseHTTPRequestHandler, behind: int, fault: Fault | None
    ) -> None:
        ranged = "Range" in handler.headers
        with self._lock:
            self.seen["ranges"] += ranged
            number = self.seen["ranges"]
            wrong = fault(self, handler.path, number) if fault and ranged else None
            self.seen[wrong or "well"] += 1
        if wrong == "503":
            handler.send_response(503)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if wrong == "slow":
            time.sleep(1.0)
        connection = http.client.HTTPConnection("127.0.0.1", behind)
        connection.request(handler.command, handler.path, headers=dict(handler.headers))
        answer = connection.getresponse()
        body = answer.read()
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if wrong == "truncate":
            handler.wfile.write(body[: len(body) // 2])
            handler.close_connection = True
            return
        handler.wfile.write(body)
        with self._lock:
            self.sent += len(body) if ranged else 0

    def close(self) -> None:
        """Ends the proxy."""
        self._server.shutdown()
        self._server.server_close()
