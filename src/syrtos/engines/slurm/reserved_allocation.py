"""A Slurm allocation for a job of `syrtos serve`, kept by a process that is not inside of it.

`salloc` runs `cat` on this machine, which reads a pipe of this process. When this process ends, for
whatever reason, `cat` ends, and Slurm frees the nodes.
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
from pathlib import Path
from typing import IO

from syrtos.engines.reservation import EngineAwayError, Node, NodeRequest, Requester, Reservation
from syrtos.engines.slurm import allocation, batch, controller
from syrtos.errors import LaunchError
from syrtos.settings import environment
from syrtos.topology import address_of_default_route

# Says which allocation it is, and then waits for the end of its input.
_HOLD = 'echo "$SLURM_JOB_ID" "$SLURM_JOB_NODELIST"; exec cat > /dev/null'
# Values of --with that are refused here: batch jobs alone have them, or the job's request fixes
# them.
_OF_BATCH_JOBS = (
    "array",
    "nodes",
    "ntasks-per-node",
    "signal",
    "setup",
    "job-name",
    "mail-type",
    "mail-user",
)
SETTINGS = {name: text for name, text in batch.SETTINGS.items() if name not in _OF_BATCH_JOBS}
# States in which a job has its nodes no longer, or not for long (squeue(1), "JOB STATE CODES").
_TAKEN_BACK = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
))  # fmt: skip
# What `salloc` says when the controller is away.
_AWAY = re.compile(
    "contact slurm controller|Socket timed out|Connection refused|Zero Bytes", re.IGNORECASE
)
# Where the number of a request is kept, in the job's folder: one whose runner was killed is
# withdrawn by the next.
_NUMBER = "slurm.job"
_EVERY = 3.0  # seconds between two questions about a job that waits
_LONGEST_END = 15.0  # seconds


class _Allocation(Reservation):
    def __init__(self, job: str, nodes: tuple[Node, ...]) -> None:
        self.job, self._nodes = job, nodes
        # `srun` takes the allocation from an option, since this process is in none.
        self.command = allocation.SRUN.removesuffix(" -w") + f" --jobid={job} -w"
        self.variables = {
            name: value for name, value in environment().items() if name == "SLURM_CONF"
        }

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def why_taken_back(self) -> tuple[str, bool]:
        facts = controller.facts_of(self.job)
        # During the grace time of a preemption JobState is still RUNNING, although the steps were
        # ended.
        preempted = facts.get("PreemptTime", "None") not in ("None", "Unknown")
        state = "PREEMPTED" if preempted else facts.get("JobState", "")
        why = (
            f"Slurm has taken the nodes of its job {self.job} back ({state})"
            if state in _TAKEN_BACK
            else ""
        )
        return why, state != "CANCELLED"


@contextlib.contextmanager
def reserve_allocation(wanted: NodeRequest, requester: Requester) -> Iterator[Reservation]:
    """Context manager: waits for an allocation, yields its nodes, and releases it.

    Raises:
        ConfigurationError: this machine has no Slurm.
        LaunchError: Slurm refuses the job, or ``requester`` was over before it began.
        EngineAwayError: Slurm's controller does not answer.
    """
    number = wanted.folder / _NUMBER
    with contextlib.suppress(OSError):
        controller.run_command(["scancel", number.read_text()])
    try:
        process = subprocess.Popen(
            # By default `salloc` leaves its command running after the allocation is revoked.
            [
                "salloc",
                "--kill-command=TERM",
                "--wait-all-nodes=1",
                *_options(wanted),
                "sh",
                "-c",
                _HOLD,
            ],
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
    over, said = threading.Event(), _SallocOutput(process.stderr, number)
    with process, _ending(process, said, over):
        said.job, names = _await_grant(process, said, requester)
        said.is_granted = True
        held = _Allocation(said.job, tuple(_node(name, wanted) for name in names))
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
    # `--with exclusive=true` is what a person writes; Slurm has it without a value.
    return [
        f"--{name}={value}" if value not in ("", "true") else f"--{name}"
        for name, value in asked.items()
    ]


class _SallocOutput:
    """The output of `salloc`, which a thread reads.

    Attributes:
        job: the number of the job, once it is known.
        is_granted: whether it has its nodes.
    """

    def __init__(self, lines: IO[str] | None, number: Path) -> None:
        """Begins to read ``lines``, and keeps the number of the job in a file."""
        self.job, self.is_granted, self._errors, self._number = "", False, list[str](), number
        self._thread = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._thread.start()

    def _read(self, lines: IO[str] | None) -> None:
        for line in lines or ():
            if found := re.search(r"(?:Pending|Granted) job allocation (\d+)", line):
                self.job = found[1]
                # A full disk is no reason to end here.
                with contextlib.suppress(OSError):
                    self._number.write_text(self.job)
            if found := re.match(r"salloc: error: (.*)", line):
                self._errors.append(found[1].strip())

    def errors(self) -> str:
        """Returns the errors, after the end of the process."""
        self._thread.join(1.0)
        return " ".join(self._errors)


def _await_grant(
    process: subprocess.Popen[str], said: _SallocOutput, requester: Requester
) -> tuple[str, list[str]]:
    """Waits for the allocation, and returns its number and the names of its nodes."""
    assert process.stdout is not None
    asked, told = time.monotonic(), ""
    while not select.select([process.stdout], [], [], 0.2)[0]:
        if requester.is_over():
            raise LaunchError(
                "Gave up waiting for nodes of Slurm: the job was stopped, or has waited for too"
                " long."
            )
        if said.job and time.monotonic() - asked > _EVERY:
            asked = time.monotonic()
            why = controller.why_waiting(said.job, controller.facts_of(said.job).get("Reason", ""))
            if why and why != told:
                requester.tell(f"Slurm: {why}")
                told = why
    words = process.stdout.readline().split()
    if len(words) != 2:
        process.wait()
        errors = said.errors()
        if _AWAY.search(errors):
            raise EngineAwayError(f"Slurm does not answer: {errors}")
        raise LaunchError(f"Slurm refuses the job: {errors or 'salloc has ended without a word'}")
    return words[0], allocation.names_of(words[1])


def _node(name: str, wanted: NodeRequest) -> Node:
    done = controller.run_command(["scontrol", "show", "node", "--oneliner", name])
    facts = dict(re.findall(r"(\w+)=(\S*)", done.stdout))
    given = (
        facts.get("CPUTot", "")
        if "exclusive" in wanted.values
        else wanted.values.get("cpus-per-task", "")
    )
    address = _address(name, facts.get("NodeAddr", name))
    return Node(name, address, int(given) if given.isdigit() else wanted.workers)


def _address(name: str, address: str) -> str:
    """Returns the IP address of a node.

    Raises:
        LaunchError: this machine can't resolve it.
    """
    try:
        found = socket.gethostbyname(address)
    except OSError as error:
        raise LaunchError(
            f"The address of node {name} is {address}, which this machine can't resolve ({error}):"
            " write it into /etc/hosts."
        ) from error
    # A machine's own name often stands for loopback: to the other nodes it is the address of its
    # default route.
    return address_of_default_route() or found if found.startswith("127.") else found


@contextlib.contextmanager
def _ending(
    process: subprocess.Popen[str], said: _SallocOutput, over: threading.Event
) -> Iterator[None]:
    """Context manager: at its end the allocation is given back, or the request withdrawn."""
    try:
        yield
    finally:
        over.set()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        # A `salloc` that waits in the queue does not read its input: the signal withdraws its
        # request. One that has nodes ends with its command; a signal in that moment may make it
        # hang.
        if not said.is_granted:
            process.terminate()
        try:
            process.wait(_LONGEST_END)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.wait() < 0 and said.job:
            controller.run_command(["scancel", said.job])


def _watch(
    process: subprocess.Popen[str], over: threading.Event, requester: Requester, held: _Allocation
) -> None:
    process.wait()
    if not over.is_set():
        why, again = held.why_taken_back()
        # Where `salloc` was killed, the allocation has not ended with it.
        controller.run_command(["scancel", held.job])
        requester.note_loss(why or "salloc, which held the nodes, was killed", again)
