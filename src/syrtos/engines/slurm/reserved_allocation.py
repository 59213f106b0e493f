"""A Slurm allocation for a job of `syrtos serve`, kept by a process that is not inside of the allocation.

`salloc` runs `cat` on this machine, which reads a pipe of this process. When this process ends, for whatever reason,
`cat` ends, and Slurm frees the nodes.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO

from syrtos.engines.reservation import Node, NodeRequest, Requester, Reservation
from syrtos.engines.slurm import allocation, batch, controller
from syrtos.errors import LaunchError
from syrtos.settings import environment

# Says which allocation it is, and then waits for the end of its input.
_HOLD = 'echo "$SLURM_JOB_ID" "$SLURM_JOB_NODELIST"; exec cat > /dev/null'
# Values of --with that are refused here: batch jobs alone have them, or the job's request fixes them.
_OF_BATCH_JOBS = ("array", "nodes", "ntasks-per-node", "signal", "setup", "job-name", "mail-type", "mail-user")
SETTINGS = {name: text for name, text in batch.SETTINGS.items() if name not in _OF_BATCH_JOBS}
_EVERY = 3.0  # seconds between two questions about a job that waits
_LONGEST_END = 15.0  # seconds


class _Allocation(Reservation):
    def __init__(self, job: str, nodes: tuple[Node, ...]) -> None:
        self._job, self._nodes = job, nodes
        # `srun` takes the allocation from an option, since this process is in none.
        self.command = allocation.SRUN.removesuffix(" -w") + f" --jobid={job} -w"
        self.variables = {name: value for name, value in environment().items() if name == "SLURM_CONF"}

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def why_taken_back(self) -> str:
        facts = controller.facts_of(self._job)
        # During the grace time of a preemption JobState is still RUNNING, although the steps were ended.
        preempted = facts.get("PreemptTime", "None") not in ("None", "Unknown")
        state = "PREEMPTED" if preempted else facts.get("JobState", "")
        # No state: Slurm does not answer for a moment.
        return "" if state in ("RUNNING", "") else f"Slurm has taken the nodes of its job {self._job} back ({state})"


@contextlib.contextmanager
def reserve_allocation(wanted: NodeRequest, requester: Requester) -> Iterator[Reservation]:
    """Context manager: waits for an allocation, yields its nodes, and releases it.

    Raises:
        ConfigurationError: this machine has no Slurm.
        LaunchError: Slurm refuses the job, or ``requester`` was over before it began.
    """
    try:
        process = subprocess.Popen(
            # By default `salloc` leaves its command running after the allocation is revoked.
            ["salloc", "--kill-command=TERM", *_options(wanted), "sh", "-c", _HOLD],
            env=controller.without_allocation(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C in a terminal is not for the job.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise controller.missing_command("salloc") from error
    over = threading.Event()
    with process, _ending(process, over):
        said = _Said(process.stderr)
        job, names = _await_grant(process, said, requester)
        held = _Allocation(job, tuple(_node(name, wanted) for name in names))
        threading.Thread(
            target=_watch, args=(process, over, requester, held), name="syrtos-salloc", daemon=True
        ).start()
        yield held


def _options(wanted: NodeRequest) -> list[str]:
    asked = {
        "job-name": wanted.job,
        "chdir": str(wanted.folder),
        "nodes": str(wanted.count),
        "ntasks": str(wanted.count),
        "ntasks-per-node": "1",
        "cpus-per-task": str(wanted.workers),
        **({"gpus-per-node": str(wanted.gpus)} if wanted.gpus else {}),
        **wanted.values,
    }
    return [f"--{name}={value}" if value else f"--{name}" for name, value in asked.items()]


class _Said:
    """What `salloc` says, which a thread reads.

    Attributes:
        job: the number of the job, once it is known.
    """

    def __init__(self, lines: IO[str] | None) -> None:
        self.job, self._errors = "", list[str]()
        self._thread = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._thread.start()

    def _read(self, lines: IO[str] | None) -> None:
        for line in lines or ():
            if found := re.search(r"Pending job allocation (\d+)", line):
                self.job = found[1]
            if found := re.match(r"salloc: error: (.*)", line):
                self._errors.append(found[1].strip())

    def errors(self) -> str:
        """Returns the errors, after the end of the process."""
        self._thread.join(1.0)
        return " ".join(self._errors)


def _await_grant(process: subprocess.Popen[str], said: _Said, requester: Requester) -> tuple[str, list[str]]:
    """Waits for the allocation, and returns its number and the names of its nodes."""
    assert process.stdout is not None
    asked, told = time.monotonic(), ""
    while not select.select([process.stdout], [], [], 0.2)[0]:
        if requester.is_over():
            raise LaunchError("Gave up waiting for nodes of Slurm: the job was stopped, or has waited for too long.")
        if said.job and time.monotonic() - asked > _EVERY:
            asked = time.monotonic()
            why = controller.why_waiting(said.job, controller.facts_of(said.job).get("Reason", ""))
            if why and why != told:
                requester.tell(f"Slurm: {why}")
                told = why
    words = process.stdout.readline().split()
    if len(words) != 2:
        process.wait()
        raise LaunchError(f"Slurm refuses the job: {said.errors() or 'salloc has ended without a word'}")
    return words[0], allocation.names_of(words[1])


def _node(name: str, wanted: NodeRequest) -> Node:
    done = controller.run_command(["scontrol", "show", "node", "--oneliner", name])
    facts = dict(re.findall(r"(\w+)=(\S*)", done.stdout))
    address = facts.get("NodeAddr", name)
    # If this machine can't resolve the name, the nodes may.
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(address)
    given = facts.get("CPUTot", "") if "exclusive" in wanted.values else wanted.values.get("cpus-per-task", "")
    return Node(name, address, int(given) if given.isdigit() else wanted.workers)


@contextlib.contextmanager
def _ending(process: subprocess.Popen[str], over: threading.Event) -> Iterator[None]:
    """Context manager: at its end the allocation is given back, or the request for one withdrawn."""
    try:
        yield
    finally:
        over.set()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        # A `salloc` that waits in the queue does not read its input: the signal withdraws its request.
        process.terminate()
        try:
            process.wait(_LONGEST_END)
        except subprocess.TimeoutExpired:
            process.kill()


def _watch(process: subprocess.Popen[str], over: threading.Event, requester: Requester, held: _Allocation) -> None:
    process.wait()
    if not over.is_set():
        requester.note_loss(held.why_taken_back() or "salloc, which held the nodes, has ended")
