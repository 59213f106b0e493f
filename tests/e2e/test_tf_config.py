"""`python -m syrtos train.py` on each host, with nothing but TF_CONFIG."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import netns
import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "tf_config.py")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def tf_config(addresses: list[str], rank: int) -> str:
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    task = {"type": "chief", "index": 0} if rank == 0 else {"type": "worker", "index": rank - 1}
    return json.dumps({"cluster": cluster, "task": task})


def start(
    addresses: list[str], rank: int, folder: Path, *arguments: str, **env: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "syrtos", SCRIPT, str(folder), *arguments],
        env={**os.environ, "TF_CONFIG": tf_config(addresses, rank), "HOME": str(folder), **env},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]"))]


def check(folder: Path, size: int) -> None:
    roles = [
        {"type": "chief", "index": 0},
        *({"type": "worker", "index": k} for k in range(size - 1)),
    ]
    assert [worker["task"] for worker in seen(folder)] == roles
    assert all((worker["size"], worker["total"]) == (size, size) for worker in seen(folder))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", [pytest.param("0", marks=pytest.mark.long), "3"])
def test_three_tasks_of_one_host(tmp_path: Path, code: str) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    own = [
        {"CUDA_VISIBLE_DEVICES": str(5 + rank), "OF_THIS_TASK": f"= {rank}\nof 3"}
        for rank in range(3)
    ]
    tasks = [start(addresses, rank, tmp_path, code, **own[rank]) for rank in (2, 0, 1)]
    ended = [task.communicate(timeout=300) for task in tasks]
    assert [task.returncode for task in tasks] == [int(code)] * 3, ended
    check(tmp_path, 3)
    assert [(worker["gpus"], worker["own"]) for worker in seen(tmp_path)] == [
        (e["CUDA_VISIBLE_DEVICES"], e["OF_THIS_TASK"]) for e in own
    ]
    assert f"worker 0 at {addresses[1]} is rank 1 of 3" in ended[2][1]
    assert ("the run ended with exit code 3; chief 0" in ended[2][1]) == (code == "3")
    secret = tmp_path / ".config" / "syrtos" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", int(addresses[0].rpartition(":")[2]))) != 0, (
            "the port is still open"
        )


def test_a_task_that_never_starts_is_named(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    patience = {"SYRTOS_OPTIONS": '{"timeout": 4}'}
    first, second = (start(addresses, rank, tmp_path, **patience) for rank in (0, 1))
    (_, said), (_, said_by_second) = first.communicate(timeout=300), second.communicate(timeout=90)
    assert (first.returncode, second.returncode) == (2, 1), said
    assert f"Nobody has started worker 1 at {addresses[2]} of TF_CONFIG for 4 s" in said
    assert f"chief 0 at {addresses[0]} of TF_CONFIG" in said_by_second


@pytest.mark.timeout(600)
def test_a_task_that_goes_away_ends_the_run(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    first, second = (start(addresses, rank, tmp_path, "wait") for rank in (0, 1))
    while not (tmp_path / "1").exists() and first.poll() is None:
        time.sleep(0.1)
    second.kill()
    _, said = first.communicate(timeout=300)
    second.communicate(timeout=30)
    assert first.returncode == 143
    assert f"worker 0 at {addresses[1]} of TF_CONFIG is gone: the run ends" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_does_not_know_the_secret_is_refused(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    first = start(addresses, 0, tmp_path, SYRTOS_SECRET="one")
    stranger = start(addresses, 1, tmp_path, SYRTOS_SECRET="another")
    _, said = stranger.communicate(timeout=300)
    assert stranger.returncode == 2
    assert "knows another secret" in said
    first.terminate()
    first.communicate(timeout=30)


def test_a_task_that_is_not_in_its_cluster(tmp_path: Path) -> None:
    task = start(["127.0.0.1:1", "127.0.0.1:2"], 5, tmp_path)
    _, said = task.communicate(timeout=300)
    assert task.returncode == 2
    assert said.startswith("syrtos: TF_CONFIG names task worker 4")


def waits(hosts: netns.Hosts, rank: int) -> bool:
    """Whether the first task listens, or the second has asked for it: if in vain, the first host's kernel has refused (proc_net(5))."""
    net = Path(f"/proc/{hosts.first_pids[0]}/net")
    if rank == 0:
        return any(
            ":7AB7" in line and " 0A " in line for line in (net / "tcp").read_text().splitlines()
        )
    names, values = (
        line.split() for line in (net / "snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    facts = dict(zip(names, values, strict=True))
    return int(facts["OutRsts"]) + int(facts["PassiveOpens"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "order",
    [
        pytest.param((0, 1), id="first task first", marks=pytest.mark.long),
        pytest.param((1, 0), id="first task last"),
    ],
)
@pytest.mark.skipif(netns.missing() is not None, reason=str(netns.missing()))
def test_two_hosts(tmp_path: Path, order: tuple[int, int]) -> None:
    addresses = [f"{address}:31415" for address in netns.ADDRESSES]
    with netns.two_hosts("1gbit") as hosts:
        tasks = {}
        for rank in order:
            tasks[rank] = hosts.start(
                [sys.executable, "-m", "syrtos", SCRIPT, str(tmp_path)],
                on=rank,
                env={
                    "TF_CONFIG": tf_config(addresses, rank),
                    "SYRTOS_SECRET": "of this test",
                    "HOME": str(tmp_path),
                },
            )
            while not waits(hosts, rank) and tasks[rank].poll() is None:
                time.sleep(0.1)
        ended = [tasks[rank].communicate(timeout=150) for rank in (0, 1)]
    assert [tasks[rank].returncode for rank in (0, 1)] == [0, 0], ended
    check(tmp_path, 2)
    assert [worker["host"] for worker in seen(tmp_path)] == list(netns.NAMES)
