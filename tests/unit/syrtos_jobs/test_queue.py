"""The queues of two services, in processes of their own, on one database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stored_records import record

from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Store

JOBS = 30

# Schedules the jobs of a service until none waits; a runner that would be started is a line of output and a lock.
QUEUE = """
import subprocess, sys, time
from pathlib import Path
from syrtos_jobs import queue
from syrtos_jobs.runner import attempt
from syrtos_jobs.store.home import Home, try_lock
from syrtos_jobs.storage.storage_uris import store_of
from syrtos_jobs.storage.storage_uris import StorageURIs
from syrtos_jobs.api.service import Service
from syrtos_jobs.store.job_store import Store

home, locks = Home(Path(sys.argv[2])), []
service = Service(home, Store(sys.argv[1], home.place), StorageURIs(store_of(home)), capacity=1000)

class Runner:
    def __init__(self, command, **_):
        locks.append(try_lock(home.job(command[-1]) / attempt.LOCK))
        print(command[-1], flush=True)
    def poll(self):
        return None

queue.subprocess.Popen = Runner
jobs = queue.Queue(service)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    jobs.look()
"""


def test_two_services_on_one_database_start_each_job_once(url: str, tmp_path: Path) -> None:
    homes = [Home(tmp_path / name) for name in ("first", "second")]
    for home in homes:
        store = Store(url, home.place)
        for number in range(JOBS):
            name = f"{home.path.name}-{number}"
            home.job(name).mkdir(parents=True)
            assert store.add(record(name, float(number)))
    queues = [
        subprocess.Popen(
            [sys.executable, "-c", QUEUE, url, str(home.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for home in homes
    ]
    for queue in queues:
        assert queue.stdout is not None
        assert queue.stdout.readline() == "ready\n"  # they begin together
    for queue in queues:
        assert queue.stdin is not None
        queue.stdin.write("begin\n")
        queue.stdin.flush()
    started = [queue.communicate(timeout=120)[0].split() for queue in queues]
    assert [queue.returncode for queue in queues] == [0, 0]
    for home, names in zip(homes, started, strict=True):
        assert names == [f"{home.path.name}-{number}" for number in range(JOBS)]
        assert all(job is not None and job.attempts == 1 for job in map(Store(url).get, names))
