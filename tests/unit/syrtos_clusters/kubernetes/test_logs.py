"""Logs are followed over lost connections: each line comes once, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("kubernetes")

import urllib3
from kubernetes.client.exceptions import ApiException

from syrtos.errors import LaunchError
from syrtos_clusters.kubernetes import logs

Looked = tuple[list[Mapping[str, Any]], bool]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_EVERY", 0.01)


class Source:
    """Answers, one after the other: lines, then an error if there is one."""

    def __init__(self, *answers: tuple[list[str], Exception | None]) -> None:
        self.answers = list(answers)

    def log(self, pod: str, follow: bool) -> Iterator[bytes]:
        lines, error = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        yield from (line.encode() for line in lines)
        if error:
            raise error


def pod(phase: str) -> Mapping[str, Any]:
    return {"metadata": {"name": "digits-0", "uid": "u"}, "status": {"phase": phase}}


def follow_pods(source: Source, until_read: int) -> list[bytes]:
    """All lines of a pod that runs until so many answers are left."""

    def look() -> Looked:
        over = len(source.answers) <= until_read
        return [pod("Succeeded" if over else "Running")], over

    return list(logs.PodLogs(source, several=False).follow_pods(look))


# As Go writes moments: fractions end with their last digit that is not 0, so that the order of texts is not that of time.
LINES = [
    "2026-11-25T10:00:00Z a",
    "2026-11-25T10:00:00.5Z b",
    "2026-11-25T10:00:00.55Z c",
    "2026-11-25T10:00:01Z d",
]


def test_a_lost_connection_repeats_and_loses_nothing() -> None:
    lost = urllib3.exceptions.ProtocolError("Connection broken")
    source = Source((LINES[:2], lost), (LINES[:3], None), (LINES, None))
    assert follow_pods(source, 1) == [b"a\n", b"b\n", b"c\n", b"d\n"]


def test_lines_may_hold_anything() -> None:
    lines = ["2026-11-25T10:00:00Z ", "2026-11-25T10:00:01Z  2026 | \u00fc\r"]
    assert follow_pods(Source((lines, None)), 1) == [b"\n", " 2026 | \u00fc\r\n".encode()]


def test_a_pod_that_is_gone_ends() -> None:
    assert follow_pods(Source(([], ApiException(404))), 1) == []


def test_a_cluster_that_is_away_for_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PATIENCE", 3)
    looks = 0

    def look() -> Looked:
        nonlocal looks
        looks += 1
        raise LaunchError("away")

    with pytest.raises(LaunchError, match="away"):
        list(logs.PodLogs(Source(([], None)), several=True).follow_pods(look))
    assert looks == 4
