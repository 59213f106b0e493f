"""The output of all pods of a run, as it comes, also of those that take the place of others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import urllib3
from kubernetes.client.exceptions import ApiException

from syrtos.errors import LaunchError
from syrtos_clusters.kubernetes.diagnosis import host_of

_EVERY = 1.0  # seconds between two looks at the pods
_PATIENCE = 120  # looks in a row that may fail, as while the control plane is upgraded


class LogSource(Protocol):
    """A place that logs are read from."""

    def log(self, pod: str, follow: bool) -> Iterator[bytes]:
        """Yields the lines of a pod, each with its moment before it."""
        ...


class PodLogs:
    """The lines of a run's pods, each after the number of its host where there are several."""

    def __init__(self, source: LogSource, several: bool) -> None:
        self._source, self._several = source, several
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._phases: dict[str, str] = {}
        self._threads: dict[str, threading.Thread] = {}

    def read_until_now(self, pods: list[Mapping[str, Any]]) -> Iterator[bytes]:
        """Yields what pods have printed until now, one pod after the other."""
        for pod in sorted(pods, key=host_of):
            for line in self._read(pod["metadata"]["name"], follow=False):
                yield self._with_host(pod, line.partition(b" ")[2])

    def follow_pods(
        self, look: Callable[[], tuple[list[Mapping[str, Any]], bool]]
    ) -> Iterator[bytes]:
        """Yields what pods print until the run has ended.

        Args:
            look: returns the pods, and whether the run has ended.

        Raises:
            LaunchError: the cluster does not answer any more.
        """
        failures = 0
        while True:
            try:
                pods, over = look()
                failures = 0
            except LaunchError:
                failures += 1
                if failures > _PATIENCE:
                    raise
                over = False
            else:
                self._take(pods)
            yield from self._take_lines(0.0 if over else _EVERY)
            if over:
                yield from self._remaining_lines()
                return

    def _take(self, pods: list[Mapping[str, Any]]) -> None:
        """Begins to read pods that are new; those that are gone have ended."""
        phases = {
            pod["metadata"]["uid"]: (pod.get("status") or {}).get("phase", "Pending")
            for pod in pods
        }
        self._phases = phases
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._threads and phases[uid] != "Pending":
                self._threads[uid] = threading.Thread(target=self._follow, args=(pod,), daemon=True)
                self._threads[uid].start()

    def _take_lines(self, seconds: float) -> Iterator[bytes]:
        """Yields lines that are there, after waiting for the first."""
        try:
            yield self._lines.get(timeout=seconds) if seconds else self._lines.get_nowait()
            while True:
                yield self._lines.get_nowait()
        except queue.Empty:
            return

    def _remaining_lines(self) -> Iterator[bytes]:
        self._phases = {}
        while any(thread.is_alive() for thread in self._threads.values()):
            yield from self._take_lines(0.1)
        yield from self._take_lines(0.0)

    def _follow(self, pod: Mapping[str, Any]) -> None:
        """Reads a pod's log until its container has ended, again and again.

        Servers close connections that last long.
        """
        meta, last = pod["metadata"], ""
        while True:
            # Before reading: what the container has printed up to its end is read once more.
            ended = self._phases.get(meta["uid"]) != "Running"
            for line in self._read(meta["name"], follow=True):
                stamp, _, text = line.partition(b" ")
                moment = _sortable_time(stamp)
                # A connection that is made anew gives all lines again.
                if moment > last:
                    last = moment
                    self._lines.put(self._with_host(pod, text))
            if ended:
                return
            threading.Event().wait(_EVERY)

    def _read(self, name: str, follow: bool) -> Iterator[bytes]:
        try:
            yield from self._source.log(name, follow)
        except (ApiException, urllib3.exceptions.HTTPError):
            # The pod is gone, or has not begun, or the connection was lost.
            return

    def _with_host(self, pod: Mapping[str, Any], text: bytes) -> bytes:
        prefix = b"host %d | " % host_of(pod) if self._several else b""
        return prefix + text + b"\n"


def _sortable_time(stamp: bytes) -> str:
    """Returns a moment of RFC 3339 as a text, so that the order of texts is that of time."""
    # Fractions of a second have any number of digits there.
    seconds, _, fraction = stamp.decode("ascii", "replace").rstrip("Z").partition(".")
    return f"{seconds}.{fraction:0<9}"
