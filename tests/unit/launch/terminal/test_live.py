"""The line at the bottom of a terminal, on a real one (pty)."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import termios

PROGRAM = """
import sys, time
from syrtos.launch.terminal import live, streams

live._PATIENCE, live._BETWEEN = 0.2, 0.05
streams.make_unfailing()
texts = iter(["first", "second", "x" * 500])
with live.LiveLine(lambda: next(texts, "")):
    {body}
print("end", flush=True)
"""
ERASE = "\r\x1b[2K"


def on_terminal(body: str, term: str = "xterm", background: bool = False) -> str:
    """Returns what a terminal of 80 columns gets from a program, whose terminal it is, or a shell's."""
    number, main = pty.fork()
    if number == 0:
        termios.tcsetwinsize(1, (24, 80))
        if background:
            # this process is the shell, which keeps the terminal
            child = os.fork()
            if child:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os.setpgid(0, 0)
        env = {**os.environ, "TERM": term}
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM.format(body=body)], env)
    pieces = []
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(main, 1 << 16):
            pieces.append(piece)
    os.close(main)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0
    return b"".join(pieces).decode().replace("\r\n", "\n")


def test_the_line_is_shown_in_silence_and_erased_before_anything_else() -> None:
    got = on_terminal("print('before', flush=True); time.sleep(1); print('after', flush=True)")
    assert got.startswith(f"before\n{ERASE}first{ERASE}second{ERASE}")
    assert got.endswith(f"{ERASE}after\nend\n")


def test_the_line_is_erased_at_the_end() -> None:
    assert on_terminal("time.sleep(1)").endswith(f"{ERASE}end\n")


def test_a_line_that_is_not_finished_is_left_alone() -> None:
    assert on_terminal("sys.stdout.write('12%'); sys.stdout.flush(); time.sleep(1)") == "12%end\n"


def test_output_in_quick_succession_shows_no_line() -> None:
    got = on_terminal("[(print(i, file=sys.stderr), time.sleep(0.05)) for i in range(8)]")
    assert got == "".join(f"{i}\n" for i in range(8)) + "end\n"


def test_a_terminal_without_capabilities_shows_no_line() -> None:
    assert on_terminal("time.sleep(0.6)", term="dumb") == "end\n"


def test_the_line_is_no_longer_than_the_terminal_is_wide() -> None:
    got = on_terminal("time.sleep(1)")
    assert max(len(line) for line in got.replace(ERASE, "\n").split("\n")) == 79


def test_a_process_in_the_background_leaves_the_terminal_to_the_shell() -> None:
    assert on_terminal("time.sleep(0.6)", background=True) == "end\n"
