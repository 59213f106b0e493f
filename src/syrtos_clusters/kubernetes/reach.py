"""Runs a command in a pod, as ssh does on a host.

The program is `python -m syrtos_clusters.kubernetes.reach CONTEXT NAMESPACE POD WORDS`.

Its standard input, output and errors are those of the command, over a connection to the API server
(Kubernetes, "exec" of pods, with the channels of `v5.channel.k8s.io`). It ends with the command's
exit code.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDIN_CHANNEL, STDOUT_CHANNEL
from websocket import WebSocketException

from syrtos.errors import SyrtosError
from syrtos_clusters.kubernetes.cluster import KubernetesNamespace

_PIECE = 1 << 16  # bytes
# Seconds without a message, after which one is sent: gateways end connections on which nothing is
# said.
_SILENCE = 20.0
# The exit code where the connection was lost, or could not be made: that of ssh.
_LOST = 255


def main() -> int:
    """Runs the command, and returns its exit code."""
    context, namespace, pod, *words = sys.argv[1:]
    try:
        connection = KubernetesNamespace(context, namespace).execute(pod, " ".join(words))
    except SyrtosError as error:
        print(error, file=sys.stderr)
        return _LOST
    threading.Thread(
        target=_pass_input_on, args=(connection,), name="syrtos-input", daemon=True
    ).start()
    try:
        return _code_of(_pass_output_on(connection))
    except (OSError, WebSocketException) as error:
        print(f"The connection to the pod {pod} was lost: {error}", file=sys.stderr)
        return _LOST


def _pass_input_on(connection: Any) -> None:
    try:
        while piece := os.read(0, _PIECE):
            connection.write_stdin(piece)
        # It does nothing with version 4, by which an input ends with the connection only.
        connection.close_channel(STDIN_CHANNEL)
    except (OSError, WebSocketException):
        # the thread that reads says what has happened
        return


def _pass_output_on(connection: Any) -> bytes:
    """Writes what the command writes until it ends, and returns what the server says of its end."""
    while connection.is_open():
        connection.update(timeout=_SILENCE)
        if not _pass_pieces_on(connection) and connection.is_open():
            connection.sock.ping()
    # Reading one channel may have brought more of the other.
    while _pass_pieces_on(connection):
        pass
    return connection.read_channel(ERROR_CHANNEL)


def _pass_pieces_on(connection: Any) -> bool:
    """Writes what has come, and returns whether anything has."""
    pieces = [connection.read_channel(channel) for channel in (STDOUT_CHANNEL, STDERR_CHANNEL)]
    for descriptor, piece in enumerate(pieces, 1):
        _write(descriptor, piece)
    return any(pieces)


def _write(descriptor: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _code_of(said: bytes) -> int:
    """Returns the exit code that a Status object tells (Kubernetes API, "Response Status Kind")."""
    try:
        status = json.loads(said)
    except ValueError:
        return _LOST
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [each["message"] for each in causes if each.get("reason") == "ExitCode"]
    if not codes:
        print(status.get("message", "The command could not be run."), file=sys.stderr)
    return int(codes[0]) if codes else _LOST


if __name__ == "__main__":
    sys.exit(main())
