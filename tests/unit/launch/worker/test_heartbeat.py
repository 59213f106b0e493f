"""Signs of life, and the position of a script."""

from __future__ import annotations

import json
import queue
import sys
import threading

import pytest

from syrtos.launch.worker import heartbeat


def test_the_position_is_the_innermost_line_of_the_script() -> None:
    here = sys._getframe()
    name = "test_the_position_is_the_innermost_line_of_the_script"
    assert heartbeat.position(here) == f"test_heartbeat.py:{here.f_lineno}, in `{name}`"
    inside = []
    json.loads(
        "[1]",
        object_hook=None,
        parse_int=lambda text: inside.append(heartbeat.position(sys._getframe())),
    )
    assert inside[0].endswith("in `<lambda>`")
    assert heartbeat.position(None) == ""


def test_a_thread_tells_where_the_main_thread_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.01)
    before = set(threading.enumerate())
    told: queue.Queue[str] = queue.Queue()
    heartbeat.start(told.put)
    assert "in `test_a_thread_tells_where_the_main_thread_is`" in told.get(timeout=10)
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)
