"""An emulation of Kubernetes' API server in this process, for tests: it stores objects, lists pods by label, streams their logs and runs commands.

It is no Kubernetes: no controller makes pods of a Job, and a test says what becomes of them. What is refused, and in what words, is
what API servers answer; a test chooses when.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from websocket import ABNF
from websocket._abnf import frame_buffer

TOKEN = "a token of a test"
PLURALS = {
    "secrets": ("v1", "Secret"),
    "configmaps": ("v1", "ConfigMap"),
    "services": ("v1", "Service"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "jobs": ("batch/v1", "Job"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
}
# What a server's answer to a key is made with (RFC 6455, 1.3).
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
INDEX = "batch.kubernetes.io/job-completion-index"


class Emulated:
    """The state of the server.

    Attributes:
        objects: all objects, by plural and name.
        logs: the lines that each pod has printed.
        asked: method and plural of each request.
        refusals: status and message of requests that are refused, by method and plural.
        missing: plurals of kinds that are not installed.
        enter: returns the words that run a command in a pod, by the pod's name; by default it runs as a process of this machine.
        protocols: those of `exec` that the server speaks.
        kube_config: a file by which clients find the server.
    """

    def __init__(self, folder: Path) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.logs: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        self.missing: set[str] = set()
        self.enter: Callable[[str], Sequence[str]] = lambda pod: ()
        self.protocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
        self.change = threading.Condition()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"state": self})
        )
        self._server.daemon_threads = True
        self.kube_config = folder / "kube.config"
        self.kube_config.write_text(
            _KUBE_CONFIG.format(port=self._server.server_address[1], token=TOKEN)
        )

    def serve(self) -> None:
        self._server.serve_forever(0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self) -> set[str]:
        """The kinds that are there."""
        return {PLURALS[plural][1] for plural, _ in self.objects}

    def add_pod(
        self,
        run: str,
        host: int,
        phase: str = "Running",
        label: str = "jobset.sigs.k8s.io/jobset-name",
    ) -> str:
        """Adds a pod of a run, as a controller would, and returns its name."""
        name = f"{run}-{host}-{uuid.uuid4().hex[:5]}"
        meta = {
            "name": name,
            "labels": {label: run},
            "annotations": {INDEX: str(host)},
            "uid": uuid.uuid4().hex,
        }
        self.put("pods", {"metadata": meta, "status": {"phase": phase}})
        self.logs[name] = []
        return name

    def put(self, plural: str, found: dict[str, Any]) -> None:
        with self.change:
            self.objects[plural, found["metadata"]["name"]] = found
            self.change.notify_all()

    def say(self, pod: str, *lines: str) -> None:
        """Lets a pod print lines, each with a moment of its own."""
        with self.change:
            for line in lines:
                at = len(self.logs[pod]) + 1
                # As Go writes them: without the zeros at the end of fractions.
                self.logs[pod].append(f"2026-11-25T10:00:{at // 10:02}.{at % 10}Z {line}")
            self.change.notify_all()

    def end_pod(self, pod: str, code: int = 0, reason: str = "Error") -> None:
        terminated = {
            "exitCode": code,
            "reason": reason if code else "Completed",
            "finishedAt": "2026-11-25T10:00:00Z",
        }
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [
            {"name": "node", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": terminated}}]}  # fmt: skip
        self.put("pods", {**self.objects["pods", pod], "status": status})

    def remove_pod(self, pod: str) -> None:
        with self.change:
            del self.objects["pods", pod]
            self.change.notify_all()

    def end_run(
        self, plural: str, name: str, kind: str, reason: str = "", message: str = ""
    ) -> None:
        """Gives the object that owns the pods a condition."""
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        self.put(plural, {**self.objects[plural, name], "status": {"conditions": [condition]}})


@contextmanager
def emulated(folder: Path) -> Iterator[Emulated]:
    """Context manager: an emulated API server of this process."""
    state = Emulated(folder)
    thread = threading.Thread(target=state.serve, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Emulated
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a test's output is its own."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        words = url.path.strip("/").split("/")
        if discovered := _discovered(words, self.state.missing):
            self._answer(200, discovered)
        elif words[-1] == "log" and self._may(words):
            self._log(words[-2], query.get("follow", "").lower() == "true")
        elif words[-1] == "exec" and self._may(words):
            self._execute(words[-2], parse_qs(url.query)["command"])
        elif self._may(words):
            self._read(words, query)

    def _read(self, words: list[str], query: dict[str, str]) -> None:
        plural, name = _place(words)
        if name:
            found = self.state.objects.get((plural, name))
            self._answer(*((200, found) if found else _not_found(plural, name)))
            return
        label, _, value = query.get("labelSelector", "").partition("=")
        items = [
            each
            for (kind, _), each in list(self.state.objects.items())
            if kind == plural
            and (not label or each["metadata"].get("labels", {}).get(label) == value)
        ]
        api, kind = PLURALS[plural]
        self._answer(
            200, {"apiVersion": api, "kind": f"{kind}List", "metadata": {}, "items": items}
        )

    def _log(self, pod: str, follow: bool) -> None:
        if ("pods", pod) not in self.state.objects:
            self._answer(*_not_found("pods", pod))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        told = 0
        while True:
            with self.state.change:
                lines = self.state.logs[pod][told:]
                found = self.state.objects.get(("pods", pod))
                ends = not follow or found is None or found["status"]["phase"] != "Running"
                if not lines and not ends:
                    self.state.change.wait(0.1)
            told += len(lines)
            for line in lines:
                self._chunk(line.encode() + b"\n")
            if ends:
                self._chunk(b"")
                return

    def _execute(self, pod: str, command: list[str]) -> None:
        """Runs a command in a pod, and talks to the client in the channels of `v5.channel.k8s.io`, or version 4."""
        if ("pods", pod) not in self.state.objects:
            self._answer(*_not_found("pods", pod))
            return
        offered = [each.strip() for each in self.headers["Sec-WebSocket-Protocol"].split(",")]
        chosen = next(each for each in self.state.protocols if each in offered)
        accepted = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _WEBSOCKET).encode()).digest()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accepted).decode())
        self.send_header("Sec-WebSocket-Protocol", chosen)
        self.end_headers()
        self.close_connection = True
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [*self.state.enter(pod), *command], stdin=pipe, stdout=pipe, stderr=pipe
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            threading.Thread(target=self._hear, args=(process.stdin,), daemon=True).start()
            lock = threading.Lock()
            readers = [
                threading.Thread(target=self._tell, args=(lock, channel, source), daemon=True)
                for channel, source in ((1, process.stdout), (2, process.stderr))
            ]
            for each in readers:
                each.start()
            for each in readers:
                each.join()
            code = process.wait()
        cause = {
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
            "status": "Failure",
        }
        with contextlib.suppress(OSError):
            self._frame(b"\x03" + json.dumps(cause if code else {"status": "Success"}).encode())
            self._frame(b"\x03\xe8", ABNF.OPCODE_CLOSE)

    def _hear(self, to: IO[bytes]) -> None:
        """Passes on what the client says; the command's input ends with the connection, as with containerd."""

        def take(count: int) -> bytes:
            if not (data := self.rfile.read(count)):
                raise EOFError
            return data

        frames: Any = frame_buffer(take, skip_utf8_validation=True)
        # ValueError: the connection was closed by the thread that serves it.
        with contextlib.suppress(EOFError, OSError, ValueError), to:
            while (frame := frames.recv_frame()).opcode != ABNF.OPCODE_CLOSE:
                if frame.opcode == ABNF.OPCODE_BINARY and frame.data[:1] == b"\x00":
                    to.write(frame.data[1:])
                    to.flush()
                elif frame.data == b"\xff\x00":
                    return

    def _tell(self, lock: threading.Lock, channel: int, source: IO[bytes]) -> None:
        while data := os.read(source.fileno(), 1 << 15):
            with lock, contextlib.suppress(OSError):
                self._frame(bytes([channel]) + data)

    def _frame(self, data: bytes, kind: int = ABNF.OPCODE_BINARY) -> None:
        frame = ABNF.create_frame(data, kind)
        frame.mask_value = 0  # servers do not mask (RFC 6455, 5.1)
        self.wfile.write(frame.format())
        self.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_POST(self) -> None:
        body, words = self._body(), urlsplit(self.path).path.strip("/").split("/")
        if not self._may(words):
            return
        plural, _ = _place(words)
        name = body["metadata"]["name"]
        if (plural, name) in self.state.objects:
            self._answer(*_status(409, f'{plural} "{name}" already exists', "AlreadyExists"))
            return
        api, kind = PLURALS[plural]
        made = {
            "apiVersion": api,
            "kind": kind,
            **body,
            "metadata": {**body["metadata"], "uid": uuid.uuid4().hex},
        }
        self.state.put(plural, made)
        self._answer(201, made)

    def do_PATCH(self) -> None:
        body, words = self._body(), urlsplit(self.path).path.strip("/").split("/")
        if not self._may(words):
            return
        plural, name = _place(words)
        found = self.state.objects[plural, name]
        found["metadata"] |= body["metadata"]
        self._answer(200, found)

    def do_DELETE(self) -> None:
        self._body()
        words = urlsplit(self.path).path.strip("/").split("/")
        if not self._may(words):
            return
        plural, name = _place(words)
        if not name:
            self._answer(200, {"kind": "Status", "status": "Success"})
            return
        with self.state.change:
            found = self.state.objects.pop((plural, name), None)
            self.state.change.notify_all()
        self._answer(*((200, found) if found else _not_found(plural, name)))

    def _may(self, words: list[str]) -> bool:
        """Returns whether the request is allowed; answers it if it is not."""
        plural, name = _place(words)
        self.state.asked.append((self.command, plural))
        # kubectl sends no token without TLS, and stands for a client behind `kubectl proxy`.
        if self.headers.get("Authorization", f"Bearer {TOKEN}") != f"Bearer {TOKEN}":
            self._answer(*_status(401, "Unauthorized", "Unauthorized"))
        elif plural in self.state.missing or plural not in PLURALS:
            self._answer(404, "404 page not found\n")
        elif refusal := self.state.refusals.get((self.command, plural)):
            code, message = refusal
            self._answer(*_status(code, message, "Forbidden"))
        else:
            return True
        return False

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(length) or b"{}")

    def _answer(self, code: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header(
            "Content-Type", "text/plain" if isinstance(body, str) else "application/json"
        )
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _place(words: list[str]) -> tuple[str, str]:
    """Returns plural and name of the words of an address: ``api/v1/namespaces/default/pods/x``."""
    after = words[words.index("namespaces") + 2 :] if "namespaces" in words else [""]
    return after[0], after[1] if len(after) > 1 else ""


def _status(code: int, message: str, reason: str) -> tuple[int, dict[str, Any]]:
    told = {"message": message, "reason": reason, "code": code, "metadata": {}}
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", **told}


def _not_found(plural: str, name: str) -> tuple[int, dict[str, Any]]:
    return _status(404, f'{plural} "{name}" not found', "NotFound")


def _discovered(words: list[str], missing: set[str]) -> dict[str, Any] | None:
    """Returns what the server tells of its kinds, which kubectl asks for."""
    if words == ["version"]:
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
    if words == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    here = {plural: found for plural, found in PLURALS.items() if plural not in missing}
    if words == ["apis"]:
        versions = sorted({api for api, _ in here.values() if "/" in api})
        groups = [{"name": api.split("/")[0], "versions": [v := {"groupVersion": api, "version": api.split("/")[1]}], "preferredVersion": v}
                  for api in versions]  # fmt: skip
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if words[0] in ("api", "apis") and len(words) == (2 if words[0] == "api" else 3):
        api = "/".join(words[1:])
        verbs = ["create", "delete", "get", "list", "patch"]
        found = [{"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
                 for plural, (version, kind) in here.items() if version == api]  # fmt: skip
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": api,
            "resources": found,
        }
    return None


_KUBE_CONFIG = """\
apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test, namespace: training}}}}]
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: test, user: {{token: "{token}"}}}}]
"""
