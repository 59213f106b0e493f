"""Commands in pods of an emulated API server (`kubernetes_api`), whose pods are processes of this machine."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from kubernetes_api import Emulated, emulated

REACH = [sys.executable, "-P", "-m", "syrtos_clusters.kubernetes.reach", "", ""]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    with emulated(tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kube_config))
        yield found


def reach(pod: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*REACH, pod, *words], input=given, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize("protocols", [["v5.channel.k8s.io"], ["v4.channel.k8s.io"]])
def test_input_output_errors_and_exit_code_are_those_of_the_command(
    server: Emulated, protocols: list[str]
) -> None:
    server.protocols = protocols
    done = reach(
        server.add_pod("job", 0), "head -c 5; echo bad >&2; exit 7", given=bytes(range(256))
    )
    assert (done.stdout, done.stderr, done.returncode) == (bytes(range(5)), b"bad\n", 7)


def test_many_bytes_go_through_in_both_directions(server: Emulated) -> None:
    given = bytes(range(256)) * 20_000
    done = reach(server.add_pod("job", 0), "cat", given=given)
    assert done.returncode == 0
    assert done.stdout == given


def test_many_small_pieces_of_two_channels_all_come(server: Emulated) -> None:
    program = "import os, time\nfor n in range(2000):\n  os.write(1 + n % 2, b'%07d\\n' % n)\n  time.sleep(0.0001 * (n % 3))"
    done = reach(server.add_pod("job", 0), sys.executable, "-c", shlex.quote(program))
    for rest, said in enumerate((done.stdout, done.stderr)):
        assert list(map(int, said.split())) == list(range(rest, 2000, 2))


def test_words_are_those_of_a_shell(server: Emulated) -> None:
    assert reach(server.add_pod("job", 0), "printf %s", "'a  b'").stdout == b"a  b"


def test_a_pod_that_is_not_there(server: Emulated) -> None:
    done = reach("gone", "true")
    assert done.returncode == 255
    assert b"Pod gone" in done.stderr


def test_the_command_ends_with_the_one_that_reaches_it(server: Emulated, tmp_path: Path) -> None:
    pod = server.add_pod("job", 0)
    words = ["echo begun; cat > /dev/null; touch", str(tmp_path / "ended")]
    with subprocess.Popen(
        [*REACH, pod, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.kill()
    for _ in range(100):
        if (tmp_path / "ended").exists():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError("it has not ended")
