"""A run from start to end, with a small program as its worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.launch.outcome import End, Outcome
from syrtos.launch.plan import Group, LaunchPlan
from syrtos.launch.process_engine import ProcessEnd
from syrtos.launch.supervise import supervise
from syrtos.settings import OPTIONS_VARIABLE, Options

PRELUDE = """
import os, signal, sys, time
from syrtos.launch.events import drain, line, send
def raw(data, stream=1): os.write(stream, data)
def on_term(function): signal.signal(signal.SIGTERM, lambda *_: function())
def started(rank, host="here"): send(2, "started", rank, host=host, pid=os.getpid())
def heard():
    for _ in range(2):  # who has taken the second has dealt with all before it
        send(2, "mark", 0)
        drain(2, 60.0)
def signal_launcher(number=signal.SIGTERM):
    heard()
    os.kill(os.getppid(), number)
def until(done):
    while not done(): time.sleep(0.01)
seen = []
started(0)
"""
FINISHED = "\nsys.stdout.flush(); send(2, 'finished', 0)"
# Seconds that a busy machine may need for what takes a moment.
LONG = 60.0


def run(code: str, grace: float = 5.0, ranks: int = 1, **variables: str) -> Outcome:
    group = Group((sys.executable, "-c", PRELUDE + code + FINISHED), range(ranks))
    return supervise(LaunchPlan((group,), variables), os.environ, grace)


@pytest.fixture(autouse=True)
def harmless_signals() -> Iterator[None]:
    """A launcher that misses a signal fails a test, and does not end all of them."""
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_output_passes_through(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run(
        "print('Epoch 1/5'); print('é warning', file=sys.stderr); print('no newline', end='')"
    )
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("Epoch 1/5\nno newline", "é warning\n")
    assert outcome.end is End.FINISHED


def test_variables_of_the_plan_are_set(capfd: pytest.CaptureFixture[str]) -> None:
    run("print(os.environ['SYRTOS_OPTIONS'], 'PATH' in os.environ)", SYRTOS_OPTIONS="{}")
    assert capfd.readouterr().out == "{} True\n"


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)]
)
def test_the_exit_code_is_the_launchers(ending: str, code: int) -> None:
    assert run(ending).code == code


def test_workers_and_failures_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run("""
started(1, "far-away")
send(2, "failed", 1, text="ValueError: x", code=7)
send(2, "failed", 0, text="later", code=1)
sys.exit(1)
""")
    assert outcome.code == 7
    assert [(f["rank"], f["text"]) for f in outcome.failures] == [
        (1, "ValueError: x"),
        (0, "later"),
    ]
    assert outcome.failures[0]["host"] == "far-away"
    assert outcome.workers[1]["host"] == "far-away"
    assert capfd.readouterr().err == ""


def test_an_error_that_all_share_is_heard_from_all() -> None:
    """Also where one is a little slower than the first."""
    outcome = run(
        """
rank = int(os.environ["PMI_RANK"])
started(rank)
if rank: time.sleep(0.3)
send(2, "failed", rank, text="ValueError: x", code=1); drain(2, 60.0)
os._exit(1)
""",
        ranks=2,
    )
    assert outcome.failed_alike
    assert outcome.sentence() == "all workers failed alike: ValueError: x."


def test_a_failure_is_never_a_success() -> None:
    assert run("send(2, 'failed', 0, text='x', code=0)").code == 1


def test_an_event_may_follow_an_unfinished_line(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run("raw(b'10/100', 2); send(2, 'failed', 0, text='x', code=4); raw(b'after\\n', 2)")
    assert capfd.readouterr().err == "10/100after\n"
    assert len(outcome.failures) == 1


def test_an_event_may_come_in_pieces(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run("""
whole = b"50%" + line("failed", 2, text="x" * 100_000)
for piece in (whole[:1], whole[1:4], whole[4:9], whole[9:5000], whole[5000:]):
    raw(piece, 2)
    time.sleep(0.02)
""")
    assert outcome.failures[0]["text"] == "x" * 100_000
    assert capfd.readouterr().err == "50%"


def test_output_that_only_looks_like_an_event_is_passed_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    outcome = run("raw(b'\\x1esyrtos is a dance\\n')")
    assert capfd.readouterr().out == "\x1esyrtos is a dance\n"
    assert outcome.failures == []


def test_what_mpi_says_of_an_abort_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    run("raw(b'Epoch 1\\nAbort(1) on node 0\\n', 2)")
    assert capfd.readouterr().err == "Epoch 1\n"


NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795298183.645202   13602 port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795298193.051372   13602 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error
[W1122 08:44:58.961897451 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3
"""


def test_what_frameworks_say_on_each_start_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    run(
        f"raw(b'Epoch 1\\n', 2)\nfor byte in {NOISE!r}.encode(): raw(bytes([byte]), 2)\nraw(b'WARNING: it is hot', 2)"
    )
    assert capfd.readouterr().err == "Epoch 1\nWARNING: it is hot"


@pytest.mark.parametrize(
    "text", ["I0000 00:00:1.0 1 mine.cc:5] x", "Eager", "WARNING", "I0", "E0000 is my code"]
)
def test_what_only_begins_like_it_is_shown(capfd: pytest.CaptureFixture[str], text: str) -> None:
    run(f"print({text!r})")
    assert capfd.readouterr().out == text + "\n"


def test_who_asks_tensorflow_for_all_gets_all(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    run(f"raw({NOISE!r}.encode(), 2)")
    assert capfd.readouterr().err == NOISE


def test_a_signal_reaches_the_script_which_may_clean_up(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run(
        "on_term(lambda: (print('saved'), sys.exit(0))); signal_launcher(); time.sleep(600)"
    )
    assert outcome.code == 128 + signal.SIGTERM
    assert capfd.readouterr().out == "saved\n"


def test_an_interrupt_is_passed_on_as_one() -> None:
    started = time.perf_counter()
    assert run("signal_launcher(signal.SIGINT); time.sleep(600)").code == 130
    assert time.perf_counter() - started < LONG


@pytest.mark.parametrize(("name", "number"), [("SIGUSR1", 10), ("SIGUSR2", 12)])
def test_the_signal_of_a_scheduler_is_passed_on_as_a_stop(
    capfd: pytest.CaptureFixture[str], name: str, number: int
) -> None:
    outcome = run(
        "on_term(lambda: (print('saved'), sys.exit(0)));"
        f" signal_launcher(signal.{name}); time.sleep(600)"
    )
    assert outcome.code == 143
    assert capfd.readouterr().out == "saved\n"
    assert str(outcome) == f"the run was stopped by {name} (signal {number})."


def test_a_script_that_ignores_signals_is_killed_after_its_grace() -> None:
    started = time.perf_counter()
    outcome = run("on_term(lambda: None); signal_launcher()\nwhile True: time.sleep(1)", grace=0.2)
    assert outcome.code == 143
    assert 0.2 <= time.perf_counter() - started < LONG


def test_a_second_signal_ends_the_grace() -> None:
    started = time.perf_counter()
    run(
        "on_term(lambda: seen.append('TERM')); signal_launcher(); until(lambda: seen); signal_launcher(signal.SIGINT)\n"
        "while True: time.sleep(1)",
        grace=2 * LONG,
    )
    assert time.perf_counter() - started < LONG


def test_local_workers_are_signalled_directly_and_once(capfd: pytest.CaptureFixture[str]) -> None:
    run(
        """
for name in ("SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda *_, name=name: (seen.append(name), print(name, flush=True)))
signal_launcher()
until(lambda: seen)
send(2, "stalled", 0, text="waiting")  # another signal, after which none is under way
until(lambda: "SIGUSR1" in seen)
""",
        LONG,
    )
    assert capfd.readouterr().out == "SIGTERM\nSIGUSR1\n"


def test_a_stall_asks_local_workers_for_their_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    run("""
signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), print("stack", flush=True)))
send(2, "stalled", 0, text="waiting")
until(lambda: seen)
""")
    assert capfd.readouterr().out == "stack\n"


LEFT = "started(1, 'far-away'); send(2, 'left', 1, code={}); "


@pytest.mark.parametrize(("status", "grace", "code"), [(0, 0.2, 1), (3, 600, 3)])
def test_others_do_not_wait_for_one_that_has_left(status: int, grace: float, code: int) -> None:
    started = time.perf_counter()
    outcome = run(LEFT.format(status) + "time.sleep(600)", grace=grace)
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 1, status, code)
    assert time.perf_counter() - started < LONG


def test_others_have_their_grace_when_one_has_left_with_code_0(
    capfd: pytest.CaptureFixture[str],
) -> None:
    outcome = run(LEFT.format(0) + "heard(); time.sleep(1.5); print('uploaded')", grace=LONG)
    assert (outcome.end, outcome.rank) == (End.LOST, 1)
    assert capfd.readouterr().out == "uploaded\n"


def test_commands_that_are_no_workers_have_finished_with_exit_code_0() -> None:
    commands = tuple(
        Group((sys.executable, "-c", f"raise SystemExit({code})"), range(code, code + 1))
        for code in (0, 1)
    )
    assert (
        supervise(LaunchPlan(commands[:1], {}, reports=False), os.environ, 1.0).end is End.FINISHED
    )
    assert supervise(LaunchPlan(commands, {}, reports=False), os.environ, 1.0).code == 1


def test_the_death_of_a_worker_that_is_spared_is_noted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "rank = int(os.environ['PMI_RANK'])\nif rank: os.kill(os.getpid(), 9)\n"
    code += f"until(lambda: os.path.exists({str(tmp_path / 'lost' / '1')!r}))"
    group = Group((sys.executable, "-c", PRELUDE + code + FINISHED), range(2))
    variables = {OPTIONS_VARIABLE: Options(run_dir=str(tmp_path)).to_json()}
    outcome = supervise(LaunchPlan((group,), variables, spared=frozenset({1})), os.environ, LONG)
    assert outcome.end is End.FINISHED
    assert outcome.lost == {1: ProcessEnd(1, -9)}
    assert (
        "rank 1 was ended by SIGKILL (signal 9) before its script had come to its end"
        in capfd.readouterr().err
    )


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    run("pass")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_came_before_the_workers_is_answered() -> None:
    """It came between two generations, or while the first was prepared."""
    came = [int(signal.SIGTERM)]
    group = Group((sys.executable, "-c", PRELUDE + "time.sleep(600)"), range(1))
    outcome = supervise(LaunchPlan((group,), {}), os.environ, LONG, came=came)
    assert (outcome.end, outcome.code, came) == (End.STOPPED, 143, [])


def test_a_signal_that_a_shell_passes_on_too_counts_once() -> None:
    """As where Slurm signals all processes of a job, among them the shell of its script."""
    outcome = run(
        "on_term(lambda: seen.append('TERM')); signal_launcher(); until(lambda: seen)\n"
        "signal_launcher(); heard(); send(2, 'failed', 0, text='it has saved', code=1); drain(2, 60.0)",
        grace=LONG,
    )
    assert (outcome.end, outcome.code) == (End.STOPPED, 143)
    assert outcome.has_reported("it has saved")


def test_workers_that_a_scheduler_ends_before_its_signal_comes_here() -> None:
    code = """
read, write = os.pipe()
if os.fork() == 0:
    os.setsid(); os.write(write, b"x"); time.sleep(0.3); os.kill(int(os.environ["LAUNCHER"]), signal.SIGTERM); os._exit(0)
os.read(read, 1)
os.kill(os.getpid(), signal.SIGTERM)
"""
    outcome = run(code, ranks=1, LAUNCHER=str(os.getpid()))
    assert (outcome.end, outcome.code) == (End.STOPPED, 143)
