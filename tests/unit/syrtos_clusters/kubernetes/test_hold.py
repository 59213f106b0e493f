"""What holds a pod ends when its file is not touched any more, and passes on that the pod is to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# With less patience than for a machine that is far away.
HURRIED = "import sys; from syrtos_clusters.kubernetes import hold; hold._EVERY, hold._PATIENCE = 0.05, 1.5; sys.argv = ['hold', {file!r}]; hold.main()"


def hold(file: Path, *before: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*before, sys.executable, "-P", "-c", HURRIED.format(file=str(file))])


def test_it_lasts_as_long_as_the_file_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "lease"
    file.touch()
    with hold(file) as holder:
        for _ in range(20):
            file.touch()
            time.sleep(0.1)
        assert holder.poll() is None
        assert holder.wait(30) == 0


def test_a_signal_ends_it_alone_where_it_is_not_the_first_process(tmp_path: Path) -> None:
    with hold(tmp_path / "lease") as holder:
        time.sleep(1.0)
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(10) in (128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare"
)
def test_the_first_process_of_a_container_passes_the_signal_on_and_waits(tmp_path: Path) -> None:
    ended, began = tmp_path / "ended", tmp_path / "began"
    other = (
        f"trap 'sleep 0.3; touch {ended}; exit' TERM; touch {began}; while :; do sleep 0.1; done"
    )
    separate = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with hold(tmp_path / "lease", *separate) as outside:
        while not (
            found := subprocess.run(
                ["pgrep", "-P", str(outside.pid)], capture_output=True, text=True
            ).stdout
        ):
            time.sleep(0.05)
        first = found.split()[0]
        time.sleep(1.0)
        inside = ["nsenter", "--target", first, "--pid", "sh", "-c", other]
        with subprocess.Popen(inside):
            while not began.exists():
                time.sleep(0.05)
            os.kill(int(first), signal.SIGTERM)
            assert outside.wait(10) == 128 + signal.SIGTERM
        assert ended.exists()
