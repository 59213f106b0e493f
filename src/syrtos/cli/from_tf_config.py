"""`python -m syrtos train.py` with a TF_CONFIG that names several workers."""

from __future__ import annotations

from syrtos import settings
from syrtos.cli import main as command
from syrtos.launch.rendezvous import Cluster, Meeting, attend


def main(cluster: Cluster, script: list[str]) -> int:
    """The first task launches the run on all hosts; the others execute its requests."""
    patience = settings.options_from(settings.environment()).timeout
    if cluster.rank:
        return attend(cluster, patience)
    meeting = Meeting(cluster, patience)
    code = 1
    hosts = ",".join(f"{host}:{count}" for host, count in cluster.slots.items())
    try:
        meeting.wait()
        code = command(["run", "--hosts", hosts, "--ssh", meeting.command, *script])
    finally:
        meeting.close(code)
    return code
