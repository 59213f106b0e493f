"""Events travel between ordinary output and never mix with it."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.launch import events

facts = st.dictionaries(
    st.sampled_from(["text", "code", "host", "pid"]),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()),
)


@given(st.sampled_from(["started", "stalled", "failed"]), st.integers(0, 10**6), facts)
def test_events_round_trip_on_one_line(kind: str, rank: int, values: dict[str, Any]) -> None:
    line = events.line(kind, rank, **values)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert events.parse(line) == {"kind": kind, "rank": rank, **values}


@given(st.binary())
def test_other_bytes_are_ordinary_output(data: bytes) -> None:
    assert events.parse(data.replace(b"\x1e", b"")) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"syrtos {}\n",
        b"Epoch 1/5\n",
        json.dumps({"kind": "failed", "rank": 0}).encode(),
        events.MARK,
        events.MARK + b"is not JSON\n",
        events.line("failed", 0, text="cut off")[:-4],
        b" " + events.line("failed", 0),
        events.MARK + b"\xff\xfe\n",
    ],
)
def test_what_looks_like_an_event_is_ordinary_output(data: bytes) -> None:
    assert events.parse(data) is None


@pytest.mark.parametrize("text", [b"5", b"[]", b"{}"])
def test_json_that_is_no_event_is_ordinary_output(text: bytes) -> None:
    assert events.parse(events.MARK + text + b"\n") is None


def test_an_event_is_sent_whole() -> None:
    reader, writer = os.pipe()
    events.send(writer, "stalled", 3, text="line one\nline two\x1e")
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        assert events.parse(stream.read()) == {
            "kind": "stalled",
            "rank": 3,
            "text": "line one\nline two\x1e",
        }


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "\u8a13" * 2000, "\U0001f40b" * 1500, "\x00" * 3000, "x" * 3900]
)
def test_a_line_is_never_longer_than_a_pipe_takes_at_once(text: str) -> None:
    reader, writer = os.pipe()
    events.send(writer, "failed", 3, text=text, host="here", code=1)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    event = events.parse(data)
    assert event is not None
    assert select.PIPE_BUF * 0.9 < len(data) <= select.PIPE_BUF
    assert (event["rank"], event["host"], event["code"]) == (3, "here", 1)
    start, _, end = event["text"].partition("\n...\n")
    assert text.startswith(start)
    assert text.endswith(end)


def test_draining_waits_until_all_has_been_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"unread")
    late = threading.Timer(0.2, os.read, (reader, 100))
    late.start()
    started = time.monotonic()
    events.drain(writer, seconds=100.0)
    assert 0.15 <= time.monotonic() - started < 30
    late.join()
    os.close(reader)
    os.close(writer)


def test_draining_gives_up_on_a_reader_that_is_gone_astray() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"unread")
    started = time.monotonic()
    events.drain(writer, seconds=0.1)
    assert 0.1 <= time.monotonic() - started < 30
    os.close(reader)
    os.close(writer)
