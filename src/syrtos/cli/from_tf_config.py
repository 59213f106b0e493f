"""`python -m syrtos train.py` with a TF_CONFIG that names several workers."""

from __future__ import annotations

import argparse

from syrtos import settings
from syrtos.cli import run
from syrtos.cli.execution import Met
from syrtos.launch.rendezvous import Cluster, Meeting, attend


def main(cluster: Cluster, script: list[str]) -> int:
    """Launches the run on all hosts from the first task; in other tasks, starts the workers there."""
    patience = settings.options_from(settings.environment()).timeout
    if cluster.rank:
        return attend(cluster, patience)
    meeting = Meeting(cluster, patience)
    code = 1
    hosts = ",".join(f"{host}:{count}" for host, count in cluster.slots.items())
    parser = argparse.ArgumentParser(prog="syrtos")
    run.add_to(parser.add_subparsers())
    try:
        meeting.wait()
        code = run.main(parser.parse_args(["run", "--hosts", hosts, *script]), Met(cluster.host, meeting.agents))
    finally:
        meeting.close(code)
    return code
