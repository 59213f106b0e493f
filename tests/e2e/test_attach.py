"""`syrtos attach`: a debugger holds a worker of a run, by debugpy's own protocol (DAP)."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SYRTOS = str(Path(sys.executable).with_name("syrtos"))
SCRIPT = """
import os, pathlib, time
import syrtos
rank = syrtos.rank()
pathlib.Path(f"begun-{rank}").touch()
step = 0
while not os.path.exists("enough"):
    time.sleep(0.05)
    step += 1
syrtos.barrier()
print("all came", flush=True)
"""


class DebugClient:
    """What an editor is to debugpy: requests, responses and events as JSON over a socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)

    def send(self, command: str, **arguments: object) -> None:
        request = {"seq": next(self._numbers), "type": "request", "command": command}
        body = json.dumps(request | {"arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def until(self, **wanted: object) -> dict[str, Any]:
        """Reads until a message has these fields; returns its body."""
        while True:
            size = 0
            while line := self._stream.readline().strip():
                size = int(line.partition(b":")[2])
            message = json.loads(self._stream.read(size))
            if wanted.items() <= message.items():
                return message.get("body") or {}

    def close(self) -> None:
        self._socket.close()


def attach(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SYRTOS, "attach", "run", *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_worker_is_held_for_longer_than_others_wait(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [SYRTOS, "run", "-n", "2", "--oversubscribe", "--timeout", "3", "--run-dir", "run", "train.py"]  # fmt: skip
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: all((tmp_path / f"begun-{rank}").exists() for rank in range(2)))
        refused = attach(tmp_path, "--rank", "7")
        assert "its ranks are 0, 1." in refused.stderr
        answer = attach(tmp_path, "--rank", "1")
        assert answer.returncode == 0, answer.stderr
        assert re.search(r"at train\.py:\d+, in `<module>`", answer.stdout)
        found = re.search(r"listens at 127\.0\.0\.1:(\d+)", answer.stdout)
        assert found
        client = DebugClient(int(found[1]))
        client.send("initialize", adapterID="syrtos")
        client.until(command="initialize")
        client.send("attach", justMyCode=False)
        client.until(event="initialized")
        line = SCRIPT.splitlines().index("    step += 1") + 1
        client.send("setBreakpoints", source={"path": str(script)}, breakpoints=[{"line": line}])
        client.send("configurationDone")
        thread = client.until(event="stopped")["threadId"]
        client.send("stackTrace", threadId=thread)
        frame = client.until(command="stackTrace")["stackFrames"][0]["id"]
        client.send("evaluate", expression="rank", frameId=frame)
        assert client.until(command="evaluate")["result"] == "1"
        (tmp_path / "enough").touch()  # rank 0 goes to the barrier, and waits
        time.sleep(5)
        client.send("setBreakpoints", source={"path": str(script)}, breakpoints=[])
        client.send("continue", threadId=thread)
        client.until(command="continue")
        client.send("disconnect")
        client.close()
        assert run.wait(60) == 0
        assert run.stdout
        assert "all came" in run.stdout.read()
    finally:
        if run.poll() is None:
            os.kill(run.pid, signal.SIGTERM)
            run.wait(60)
    ended = attach(tmp_path)
    assert ended.returncode == 2
    assert "No run is going on" in ended.stderr
