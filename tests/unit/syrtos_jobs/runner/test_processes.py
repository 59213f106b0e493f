"""Processes that are found by their parents."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: this one must not adopt what other tests leave behind.
CODE = """
import subprocess, sys, time
from pathlib import Path
from syrtos_jobs.runner import processes
processes.adopt_orphans()
above = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
pid = int(above.stdout.readline())
while Path(f"/proc/{above.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
assert {above.pid, pid} <= {*processes._below()}
processes.end()
above.wait(10)
assert processes._below() == []
"""
# Its first thread ends, and the other is still there.
ABOVE = """
import ctypes, subprocess, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_what_is_below_a_process_that_is_about_to_end_is_ended() -> None:
    subprocess.run([sys.executable, "-c", CODE, ABOVE], check=True, timeout=60)
