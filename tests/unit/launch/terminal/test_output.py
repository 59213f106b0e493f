"""The threads that pass on what workers print: nothing that they meet ends them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import pytest

from syrtos.launch import events
from syrtos.launch.terminal.output import Listener, Pump
from syrtos.launch.terminal.reader import Reader


def passed_on(pieces: list[bytes], target: Any, on_event: Callable[[Any], None]) -> None:
    """What a worker writes goes through a pump, to the end of its pipe."""
    reader, writer = os.pipe()
    pump = Pump(os.fdopen(reader, "rb"), target, Listener(on_event, quiet=True))
    for piece in pieces:
        os.write(writer, piece)
    os.close(writer)
    pump.join(30)
    assert pump.is_drained()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "full"), ValueError("closed")])
def test_events_behind_a_line_that_can_not_be_shown_are_heard(error: Exception) -> None:
    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    heard: list[Any] = []
    passed_on([b"epoch 1\n" + events.line("finished", 1)], Lost(), heard.append)
    assert heard == [{"kind": "finished", "rank": 1}]


def test_a_line_of_the_script_that_only_looks_like_an_event_is_shown() -> None:
    def on_event(event: dict[str, Any]) -> None:
        assert event["kind"] == "finished" or event["modules"]

    lines = [events.MARK + b'{"kind": "imported", "rank": 0}\n', b"after\n"]
    shown = io.StringIO()
    passed_on(lines, shown, on_event)
    assert shown.getvalue() == b"".join(lines).decode()


def test_a_pipe_is_read_on_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[bytes] = []

    def take(piece: bytes) -> None:
        taken.append(piece)
        raise RuntimeError("no more")

    reader, writer = os.pipe()
    read = Reader(os.fdopen(reader, "rb"), take)
    for _ in range(40):  # more than the pipe holds
        os.write(writer, b"a" * 4096)
    os.close(writer)
    read.join(30)
    assert read.is_drained()
    assert len(b"".join(taken)) == 40 * 4096
    assert capsys.readouterr().err.count("RuntimeError: no more") == 1
