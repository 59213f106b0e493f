"""`syrtos doctor --hosts` on two hosts with a network, sshd and shared memory of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import netns
import pytest


@pytest.fixture
def hosts() -> Iterator[netns.Hosts]:
    with netns.two_hosts_or_skip("1gbit") as pair:
        yield pair


def checks(hosts: netns.Hosts) -> dict[str, dict[str, str]]:
    """What node-a finds, by the name of the check."""
    command = [
        "doctor",
        "--hosts",
        ",".join(hosts.names),
        "--ssh",
        str(hosts.ssh_wrapper),
        "--json",
    ]
    done = hosts.run([sys.executable, "-m", "syrtos", *command], timeout=60)
    assert done.stdout, done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)}


@pytest.mark.root
@pytest.mark.slow
def test_hosts_are_checked_over_ssh(hosts: netns.Hosts) -> None:
    found = checks(hosts)
    assert [name for name, check in found.items() if check["status"] == "wrong"] == []
    assert found["node-b"]["found"].startswith("reached without a password")
    assert found["node-b versions"]["status"] == "ok"
    assert found["node-b folder"]["found"] == f"{Path.cwd()} is there"
    assert found["node-a network"]["found"] == "connects to free ports of node-b"
    assert found["node-b network"]["found"] == "connects to free ports of node-a"
    assert found["node-b clock"]["status"] == "ok"

    hosts.run(["sh", "-c", "mount -o remount,size=100M /dev/shm"], on=1)
    only_ssh = "ip rule add pref 10 ipproto tcp sport 22 lookup main && ip rule add pref 20 to 10.77.0.1 blackhole"
    assert hosts.run(["sh", "-c", only_ssh], on=1).returncode == 0
    found = checks(hosts)
    assert found["node-b /dev/shm"]["status"] == "warning"
    assert "can't connect to a free port of node-a" in found["node-b network"]["found"]
    assert (
        "can't connect to a free port of node-b: 10.77.0.2: timed out"
        in found["node-a network"]["found"]
    )

    hosts.stop_sshd(1)
    found = checks(hosts)
    assert "refused" in found["node-b"]["found"]
    assert found["node-b"]["fix"] == "Start sshd there, or name its port in ~/.ssh/config."
    assert found["node-a"]["status"] == "ok"
    hosts.cut_link()
    assert checks(hosts)["node-b"]["status"] == "wrong"
    assert [line for line in hosts.processes(0) if "machine_probe" in line] == []
