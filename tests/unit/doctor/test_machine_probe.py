"""The port of the probe that the doctor starts on other hosts, in a real process."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys

from syrtos.doctor.machine_probe import MARK


def test_what_is_sent_to_the_port_is_not_read_and_the_port_ends_with_the_doctor() -> None:
    command = [sys.executable, "-m", "syrtos.doctor.machine_probe"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        port = json.loads(probe.stdout.readline().removeprefix(MARK))["port"]
        for _ in range(3):
            assert answer(port, json.dumps({"folder": "/"}).encode() + b"\n") == b""
        probe.stdin.write("{}\n")
        probe.stdin.flush()
        assert "time" in json.loads(
            probe.stdout.readline().removeprefix(MARK)
        )  # the doctor's own words alone were answered
        probe.stdin.close()
        assert probe.wait(10) == 0
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", port)) != 0


def answer(port: int, said: bytes) -> bytes:
    """All that comes back."""
    found = b""
    with (
        socket.create_connection(("127.0.0.1", port), 5) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(said)
        while piece := connection.recv(100):
            found += piece
    return found
