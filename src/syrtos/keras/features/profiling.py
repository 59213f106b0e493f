"""`--profile steps=A:B`: one trace of all workers on one clock, with the framework's own profile.

The trace is in the format of Chrome's and Perfetto's viewers: "Trace Event Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from syrtos.comm import clocks
from syrtos.comm.world import Session
from syrtos.keras import backend
from syrtos.keras.features.feature import Feature
from syrtos.observe import trace
from syrtos.observe.trace import ProfiledEvent, Span, SpanRecorder

# What a framework's profiler is told while both clocks are read, to tell how far apart they are.
MARK = "syrtos clock"
FILE = "trace.json.gz"


class _TraceEvent(TypedDict):
    """An event in the form of the viewers; times in µs."""

    ph: str
    pid: int
    name: str
    tid: NotRequired[int]
    ts: NotRequired[float]
    dur: NotRequired[float]
    args: NotRequired[dict[str, str]]


class Recording:
    """A recording of what this worker does, from its beginning until `stop`."""

    def __init__(self, session: Session, with_framework: bool) -> None:
        self._session = session
        self._folder: str | None = None
        self._stop: Callable[[], Sequence[ProfiledEvent]] | None = None
        if with_framework:
            self._start_framework()
        self._seen: Sequence[ProfiledEvent] = ()
        self._marked = time.perf_counter()
        if self._stop:
            with backend.active().annotation(MARK):
                time.sleep(0.001)
        self._recorder = trace.state.recorder = SpanRecorder()

    def _start_framework(self) -> None:
        try:
            self._folder = tempfile.mkdtemp(prefix="profile-", dir=self._session.options.run_dir)
            self._stop = backend.active().start_profiler(Path(self._folder))
        # Another profiler of the script's own may be running, or the framework may have been built
        # without one.
        except Exception as error:
            print(f"syrtos: the framework's own profiler did not start: {error}", file=sys.stderr)

    def add(self, track: str, name: str, start: float, end: float) -> None:
        """Notes a span."""
        self._recorder.add(track, name, start, end)

    def stop(self) -> None:
        """Ends the recording."""
        if trace.state.recorder is not self._recorder:
            return
        trace.state.recorder = None
        if self._stop:
            self._seen = self._stop()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._recorder.left_out:
            print(
                f"syrtos: the profile is full: {self._recorder.left_out:,} later spans are not"
                " in it.",
                file=sys.stderr,
            )

    def events(self, ahead: Callable[[float], float]) -> list[_TraceEvent]:
        """Returns all that was seen, as events on rank 0's clock.

        ``ahead``: returns by how many seconds this worker's `time.perf_counter` was ahead of rank
            0's at a moment.
        """
        rank, shift = self._session.world.rank, ahead(self._marked)
        marks = [event.start for event in self._seen if event.name == MARK]
        theirs = [event for event in self._seen if event.name != MARK] if marks else []
        return [
            *_ours(rank, self._session.ledger.host, self._recorder.spans(), shift),
            *(_theirs(rank, theirs, self._marked - shift - marks[0]) if theirs else []),
        ]


class Profile:
    """`--profile`: some training steps of the run, with the framework's profiler."""

    def __init__(self, session: Session, first: int, last: int) -> None:
        """Profiles the steps with index ``first`` to ``last`` - 1."""
        self._session, self._all = session, session.part(_Recordings)
        self._first, self._last = first, last
        self._since, self._made = 0.0, 0

    def at_step(self, made: int, coming: int) -> None:
        """Starts and ends the recording at its steps; called before and after steps.

        Args:
            made: how many steps are made.
            coming: how many steps begin now, which may be executed as one.
        """
        now, recording = time.perf_counter(), self._all.recordings.get(PROFILE)
        if recording is None:
            if (
                made < self._last
                and made + coming > self._first
                and coming
                and _is_free("nothing is profiled")
            ):
                with self._session.ledger.span("profile"):
                    self._all.recordings[PROFILE] = Recording(self._session, with_framework=True)
                self._since, self._made = time.perf_counter(), made
            return
        if made > self._made:
            several = (
                f"steps {self._made + 1} to {made}" if made - self._made > 1 else f"step {made}"
            )
            recording.add("steps", several, self._since, now)
            self._since, self._made = now, made
        if made >= self._last:
            self._session.ledger.at_step = None
            with self._session.ledger.span("profile"):
                recording.stop()
                write_own(self._session, PROFILE)


def begin_timeline(session: Session, path: Path) -> None:
    """Begins to record Horovod's timeline, for a file that rank 0 writes."""
    found = session.part(_Recordings)
    if TIMELINE not in found.recordings and _is_free(f"no timeline is written to {path}"):
        found.recordings[TIMELINE] = Recording(session, with_framework=False)
        found.timeline = path.absolute()


def stop_timeline(session: Session) -> None:
    """Ends the recording of Horovod's timeline."""
    if recording := session.part(_Recordings).recordings.get(TIMELINE):
        recording.stop()
        write_own(session, TIMELINE)


def _is_free(otherwise: str) -> bool:
    """Returns whether nothing is recorded now.

    If something is, it prints ``otherwise``, which says what does not happen.
    """
    if trace.state.recorder is None:
        return True
    print(
        f"syrtos: {otherwise}: Horovod's timeline and `--profile` can't be recorded at the same"
        " time.",
        file=sys.stderr,
    )
    return False


PROFILE, TIMELINE = "profile", "timeline"


class _Recordings:
    """The recordings of this process, and the path of the timeline."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.recordings: dict[str, Recording] = {}
        self.timeline = Path()

    def path(self, kind: str) -> Path:
        """Returns the file of a kind of recording."""
        run_dir = self._session.options.run_dir
        return self.timeline if kind == TIMELINE else Path(run_dir) / FILE


def write_own(session: Session, kind: str) -> None:
    """Writes what rank 0 itself has recorded, in case the script fails before its end."""
    if session.world.rank == 0:
        found = session.part(_Recordings)
        write(found.recordings[kind].events(lambda _: 0.0), found.path(kind))


def end_of_script(session: Session, recorded: Sequence[float]) -> None:
    """Writes one trace of all workers, when all of them have come to the end of the script.

    Only here they are sure to meet, for they may make different numbers of steps. ``recorded``:
    what `recordings` is on each of them.
    """
    comm = session.comm
    session.ledger.become("profile")
    ahead = session.ledger.clock_ahead(clocks.ahead(comm) if comm.size > 1 else 0.0)
    for bit, kind in enumerate((PROFILE, TIMELINE)):
        if any(int(each) >> bit & 1 for each in recorded):
            _write_together(session, kind, ahead)


def _write_together(session: Session, kind: str, ahead: Callable[[float], float]) -> None:
    """Writes the recordings of a kind of all workers, on the first worker that has one."""
    comm, found = session.comm, session.part(_Recordings)
    mine, path = b"", ""
    if recording := found.recordings.get(kind):
        recording.stop()
        mine, path = (
            gzip.compress(json.dumps(recording.events(ahead)).encode()),
            str(found.path(kind)),
        )
    parts = [
        (rank, *each) for rank, each in enumerate(comm.allgather_object([mine, path])) if each[0]
    ]
    first, _, place = parts[0]
    if comm.rank == first:
        write(
            [event for _, part, _ in parts for event in json.loads(gzip.decompress(part))],
            Path(place),
        )
        print(
            f"syrtos: the {kind} is in {place}; open it in ui.perfetto.dev or chrome://tracing",
            file=sys.stderr,
        )


def recordings(session: Session) -> float:
    """Returns what this worker has recorded, as the bits of a number: 1 a profile, 2 a timeline."""
    asked, ledger = session.options.profiled_steps, session.ledger
    found = session.part(_Recordings).recordings
    if (
        asked
        and PROFILE not in found
        and session.world.rank == 0
        and ledger.steps_of_run < asked[1]
    ):
        print(
            f"syrtos: nothing was profiled: the script has made {ledger.steps_of_run} training"
            " steps.",
            file=sys.stderr,
        )
    return float((PROFILE in found) + 2 * (TIMELINE in found))


def write(events: list[_TraceEvent], path: Path) -> None:
    """Writes a trace whose time begins at 0; compressed if the file's name says so."""
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    shifted = [
        {**event, "ts": round(event["ts"] - first, 3)} if "ts" in event else event
        for event in events
    ]
    text = json.dumps({"traceEvents": shifted, "displayTimeUnit": "ms"}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    except OSError as error:
        # a full disk, for example, is no reason to end the training
        print(f"syrtos: {path} can't be written: {error.strerror}", file=sys.stderr)


# Lines of a worker, from above.
_TRACKS = ("steps", "worker", "exchange", "agreement", "input and update")
_FRAMEWORK = 100


def _ours(rank: int, host: str, spans: Sequence[Span], ahead: float) -> list[_TraceEvent]:
    process: _TraceEvent = {
        "ph": "M",
        "pid": rank,
        "name": "process_name",
        "args": {"name": f"rank {rank} on {host}"},
    }
    slices = (
        _slice(rank, _TRACKS.index(s.track), s.name, s.start - ahead, s.end - s.start)
        for s in spans
    )
    return [process, *(_line(rank, number, track) for number, track in enumerate(_TRACKS)), *slices]


def _theirs(rank: int, events: Sequence[ProfiledEvent], shift: float) -> list[_TraceEvent]:
    lines = {
        line: _FRAMEWORK + number
        for number, line in enumerate(dict.fromkeys(event.line for event in events))
    }
    slices = (_slice(rank, lines[e.line], e.name, e.start + shift, e.seconds) for e in events)
    return [*(_line(rank, number, line) for line, number in lines.items()), *slices]


def _line(rank: int, number: int, name: str) -> _TraceEvent:
    return {"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": name}}


def _slice(rank: int, line: int, name: str, start: float, seconds: float) -> _TraceEvent:
    return {
        "ph": "X",
        "pid": rank,
        "tid": line,
        "name": name,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
    }


class Profiling(Feature):
    """`--profile`: the ledger calls it around each step."""

    name = "profiling"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        first, last = session.options.profiled_steps or (0, 0)
        session.ledger.at_step = Profile(session, first, last).at_step

    @classmethod
    def is_asked(cls, session: Session) -> bool:
        return bool(session.options.profiled_steps)


FEATURE = Profiling
