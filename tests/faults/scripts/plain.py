"""A script without Keras: `plain.py ROLE` does on rank 1 (or on all ranks) what the role says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

RANK = int(os.environ["PMI_RANK"])


def note(name: str) -> None:
    """Leaves a file for the test to see."""
    Path(f"{name}-{RANK}").touch()


def fail() -> None:
    """Only rank 1 fails; rank 0 would go on for long."""
    if RANK == 1:
        raise ValueError("the moon is full")
    time.sleep(60)


def leave_with_3() -> None:
    """Only rank 1 gives up."""
    if RANK == 1:
        sys.exit(3)
    time.sleep(60)


def leave_with_words() -> None:
    """Only rank 1 gives up, and says why."""
    if RANK == 1:
        sys.exit("no such data set")
    time.sleep(60)


def is_watched() -> bool:
    """Whether a process above this one holds a descriptor of it (proc(5), fdinfo): from then on the launcher sees in which order ranks end."""
    above, mine = os.getppid(), f"Pid:\t{os.getpid()}\n"
    while above > 1:
        for path in Path(f"/proc/{above}/fdinfo").iterdir():
            with contextlib.suppress(OSError):
                if mine in path.read_text():
                    return True
        above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def end_by(call: Callable[[], object]) -> Callable[[], None]:
    """Only rank 1 ends, once both are watched, and says nothing."""

    def role() -> None:
        while not is_watched():
            time.sleep(0.01)
        note("begun")
        while not all(Path(f"begun-{rank}").exists() for rank in range(2)):
            time.sleep(0.01)
        if RANK == 1:
            call()
        time.sleep(60)

    return role


def fork() -> None:
    """A child of rank 1 leaves the script while rank 1 goes on, and fails."""
    if RANK == 1 and os.fork() > 0:
        os.wait()
        note("waited")
        sys.exit(5)
    if RANK == 0:
        time.sleep(60)


def be_replaced() -> None:
    """Both replace themselves by another program; a child may."""
    if os.fork() == 0:
        os.execv("/bin/true", ["true"])
    os.wait()
    note("waited")
    os.execvp(sys.executable, [sys.executable, "-c", "pass"])


def compute_in_a_child() -> None:
    """Both let a child compute."""
    # by the processor's time: a count of steps takes less than is named where that is fast
    computing = "import time\nwhile time.process_time() < 1.5: sum(range(100_000))"
    subprocess.run([sys.executable, "-c", computing], check=True)


def make_folders() -> None:
    """Both make folders, rank 1 when rank 0 has made them, and rank 1 makes one of them a second time."""
    note("begun")
    for path in ("one", "deep/er", "third"):
        if RANK == 1:
            while not Path(path).exists():
                time.sleep(0.01)
        Path(path).mkdir() if path == "third" else os.makedirs(path)
    note("made")
    if RANK == 1:
        os.mkdir("one")
    time.sleep(60)


def make_folder_again() -> None:
    """Both make a folder that was there before the run."""
    note("begun")
    os.makedirs("old")


def stop_helper() -> None:
    """Once, rank 1 stops the process that both were forked from, and is killed."""
    first = not Path("begun-1").exists()
    note("begun")
    while not all(Path(f"begun-{rank}").exists() for rank in range(2)):
        time.sleep(0.01)
    if first and RANK == 1:
        Path("stopped").write_text(str(os.getppid()))
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    if first:
        time.sleep(60)


def sleep() -> None:
    """Both wait for what comes."""
    note("begun")
    time.sleep(60)


def obey() -> None:
    """Both end soon after a signal, and by their own will."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        note(f"signal-{number}")
        time.sleep(0.5)
        note("tidied")
        sys.exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    sleep()


def ignore() -> None:
    """Both see the signal and go on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: note(f"signal-{number}"))
    note("begun")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1)


def hang(how: Callable[[], object]) -> Callable[[], None]:
    """Rank 1 does not come to where rank 0 waits for it."""

    def role() -> None:
        import syrtos

        if RANK == 1:
            while True:
                how()
        syrtos.barrier()

    return role


def hold_the_gil() -> None:
    """As code of a library does that waits in C."""
    ctypes.PyDLL(None).sleep(600)


ROLES: dict[str, Callable[[], None]] = {
    role.__name__: role
    for role in (
        fail,
        leave_with_3,
        leave_with_words,
        make_folders,
        make_folder_again,
        fork,
        stop_helper,
        sleep,
        obey,
        ignore,
        be_replaced,
        compute_in_a_child,
    )
} | {
    "vanish": end_by(lambda: os._exit(3)),
    "vanish_with_0": end_by(lambda: os._exit(0)),
    "exit_in_a_library": end_by(lambda: ctypes.CDLL(None)._exit(0)),
    "abort": end_by(os.abort),
    "segfault": end_by(lambda: ctypes.string_at(0)),
    "terminate": end_by(lambda: os.kill(os.getpid(), signal.SIGTERM)),
    "interrupt": end_by(lambda: os.kill(os.getpid(), signal.SIGINT)),
    "stand_still": hang(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "hold_the_gil": hang(hold_the_gil),
    "wait_for_ever": hang(lambda: time.sleep(600)),
}

if __name__ == "__main__":
    ROLES[sys.argv[1]]()
