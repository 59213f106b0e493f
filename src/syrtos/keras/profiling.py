"""`--profile steps=A:B`: one trace of all workers, on one clock, with what the framework's own profiler saw.

The trace is in the format of Chrome's and Perfetto's viewers: "Trace Event Format" (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from syrtos.comm import clocks, world
from syrtos.keras import backend
from syrtos.observe import trace
from syrtos.observe.trace import Event, Recorder, Span

# What a framework's profiler is told while both clocks are read, to tell how far apart they are.
MARK = "syrtos clock"
FILE = "trace.json.gz"


class Profile:
    """The profile of some steps of this run."""

    def __init__(self, first: int, last: int) -> None:
        """Of the steps with index ``first`` to ``last`` - 1."""
        self._first, self._last = first, last
        self._recording: Recording | None = None
        self._since, self._trained = 0.0, 0

    def at_step(self, trained: int) -> None:
        """So many steps have been made: called before and after each."""
        now = time.perf_counter()
        if self._recording:
            if trained > self._trained:
                self._recording.recorder.add("steps", f"step {trained - 1}", self._since, now)
                self._since, self._trained = now, trained
            if trained >= self._last:
                self.end()
        elif self._first <= trained < self._last:
            self._recording = Recording(with_framework=True)
            self._since, self._trained = time.perf_counter(), trained

    def end(self) -> None:
        """Writes the trace, if it was begun. All workers call this at the same step, or at the end of the script."""
        ledger = world.current().ledger
        ledger.at_step = ledger.at_end = None
        if self._recording:
            gather(self._recording, Path(world.current().options.run_dir) / FILE)
        else:
            print(
                f"syrtos: nothing was profiled: the script has made {ledger.trained} training steps.", file=sys.stderr
            )


class Timeline:
    """Horovod's timeline: each worker records from `begin` to `stop`. Rank 0 writes its own spans then, and those of all workers when the script has ended:
    only there all workers are sure to meet."""

    def __init__(self) -> None:
        self._recording: Recording | None = None
        self._path = Path()

    def begin(self, path: Path) -> None:
        """Begins to record, for a file; nothing if this worker records already."""
        if trace.state.recorder is None:
            self._recording, self._path = Recording(with_framework=False), path.absolute()
            world.current().ledger.at_end = self.end

    def stop(self) -> None:
        """This worker records no more."""
        if self._recording and trace.state.recorder is self._recording.recorder:
            trace.state.recorder = None
            if world.current().world.rank == 0:
                write(self._recording.events(0.0), self._path)

    def end(self) -> None:
        """All workers call this together."""
        self.stop()
        if self._recording:
            recording, self._recording = self._recording, None
            gather(recording, self._path)


def end_of_script() -> None:
    """All workers have come to the end of the script, and at least one of them has recorded something."""
    if at_end := world.current().ledger.at_end:
        at_end()
    else:
        gather(None, Path())


class Recording:
    """What is recorded of this worker, from now on until `events` is called."""

    def __init__(self, with_framework: bool) -> None:
        self._stop: Callable[[], Sequence[Event]] | None = None
        self._folder = tempfile.mkdtemp(prefix="syrtos-profile-")
        if with_framework:
            try:
                self._stop = backend.active().start_profiler(Path(self._folder))
            except Exception as error:  # another profiler of the script's own, or a build without one
                print(f"syrtos: the framework's own profiler did not start: {error}", file=sys.stderr)
        began = time.perf_counter()
        with backend.active().annotation(MARK) if self._stop else contextlib.nullcontext():
            time.sleep(0.001)
        self._marked = began
        self.recorder = trace.state.recorder = Recorder()

    def events(self, ahead: float) -> list[dict[str, Any]]:
        """All that was seen by this worker, on rank 0's clock, whose `time.perf_counter` this one is so many seconds ahead of."""
        if trace.state.recorder is self.recorder:
            trace.state.recorder = None
        rank = world.current().world.rank
        found = list(_ours(rank, self.recorder.spans(), ahead))
        if self._stop:
            seen = self._stop()
            marks = [event.start for event in seen if event.name == MARK]
            shift = self._marked - ahead - marks[0] if marks else 0.0
            found += _theirs(rank, [event for event in seen if event.name != MARK], shift) if marks else []
            self._stop = None
        shutil.rmtree(self._folder, ignore_errors=True)
        return found


def gather(recording: Recording | None, path: Path) -> None:
    """The first worker that has a recording writes one trace of all. All of them call this together."""
    session = world.current()
    comm = session.comm
    with session.ledger.span("rest"):
        ahead = clocks.ahead(comm) if comm.size > 1 else 0.0
        mine = gzip.compress(json.dumps(recording.events(ahead)).encode()) if recording else b""
        parts = comm.allgather_object(mine) if comm.size > 1 else [mine]
        first = next((rank for rank, part in enumerate(parts) if part), -1)
        if session.world.rank == first:
            write([event for part in parts if part for event in json.loads(gzip.decompress(part))], path)
            print(f"syrtos: the profile is in {path}; open it in ui.perfetto.dev or chrome://tracing", file=sys.stderr)


def write(events: list[dict[str, Any]], path: Path) -> None:
    """Writes a trace whose time begins at 0; compressed if the file's name says so."""
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    shifted = [{**event, "ts": round(event["ts"] - first, 3)} if "ts" in event else event for event in events]
    text = json.dumps({"traceEvents": shifted, "displayTimeUnit": "ms"}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


# Lines of a worker, from above.
_TRACKS = ("steps", "worker", "exchange", "agreement")
_FRAMEWORK = 100


def _ours(rank: int, spans: Sequence[Span], ahead: float) -> Sequence[dict[str, Any]]:
    host = world.current().ledger.host
    names = [{"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank} on {host}"}}]
    names += [
        {"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": track}}
        for number, track in enumerate(_TRACKS)
    ]
    return names + [
        {
            "ph": "X",
            "pid": rank,
            "tid": _TRACKS.index(span.track),
            "name": span.name,
            "ts": (span.start - ahead) * 1e6,
            "dur": (span.end - span.start) * 1e6,
        }
        for span in spans
    ]


def _theirs(rank: int, events: Sequence[Event], shift: float) -> list[dict[str, Any]]:
    lines = {line: _FRAMEWORK + number for number, line in enumerate(dict.fromkeys(event.line for event in events))}
    names = [
        {"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": line}}
        for line, number in lines.items()
    ]
    return names + [
        {
            "ph": "X",
            "pid": rank,
            "tid": lines[event.line],
            "name": event.name,
            "ts": (event.start + shift) * 1e6,
            "dur": event.seconds * 1e6,
        }
        for event in events
    ]


def install() -> None:
    """Profiles the steps that the run's options ask for."""
    asked = world.current().options.profiled
    ledger = world.current().ledger
    if asked and ledger.at_step is None:
        profile = Profile(*asked)
        ledger.at_step, ledger.at_end = profile.at_step, profile.end
