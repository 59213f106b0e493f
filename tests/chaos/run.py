"""Faults at random steps of runs with `--max-restarts`: what each costs, and whether the result is that of an undisturbed run.

``run.py --faults 20 --seed 0``: each kind of fault once in a run, on random ranks and at random steps. Weights, histories and the CSV
log of the run must be those of an undisturbed one, to the last bit, and nothing may be left behind. With ``--hosts`` (as root) the runs are on two
network namespaces, and agents, the link and a host end as well.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "faults"), str(TESTS / "e2e")]

import netns  # noqa: E402 - it is found by the line above
from running import SCRIPTS, Run  # noqa: E402 - it is found by the line above

SCRIPT = SCRIPTS / "recovering.py"
SYRTOS = str(Path(sys.executable).with_name("syrtos"))
KINDS = {
    "SIGKILL": "SIGKILL, as by the kernel when memory runs out",
    "SIGSEGV": "a crash (SIGSEGV)",
    "SIGABRT": "`abort()`, as by a failed CHECK",
    "exit": "`os._exit(0)` in the middle",
    "raise": "an exception of the script",
    "SIGSTOP": "a worker that hangs (SIGSTOP)",
    "helper": "SIGSTOP of the process that workers are forked from, then SIGKILL of a worker",
    "disk": "a full disk of the run directory, and SIGKILL (as root)",
    "reader": "the end of what reads standard output, and SIGKILL",
    "flip": "a flipped bit in a weight (`--on-divergence repair`)",
}
ON_HOSTS = {
    "worker": "SIGKILL of a worker",
    "agent": "SIGKILL of an agent",
    "pause": "the link down for 5 s",
    "host": "a host gone",
    "cut": "the link down for good",
}
DATA = ("arrays", "generator", "planned", "filtered")
LAST = 58  # batch of the script at which a fault still comes before its end
Files = tuple[bytes, ...]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one fault has cost.

    Attributes:
        kind: of `KINDS`.
        noticed: seconds until the launcher said so.
        again: seconds until the next step had ended.
        steps: that were computed again.
        equal: whether the run ended with the result of an undisturbed one.
    """

    kind: str
    noticed: float
    again: float
    steps: int
    equal: bool


def start(folder: Path, workers: int, data: str, ends: Sequence[str]) -> Run:
    """The script on workers, with these faults."""
    flags = (
        "-n",
        str(workers),
        "--oversubscribe",
        "--max-restarts",
        "99",
        "--on-divergence",
        "repair",
    )
    return Run(folder, *flags, SCRIPT, folder / "out", data, *ends, env={"OMP_NUM_THREADS": "1"})


def results(folder: Path) -> Files:
    """What a run has written."""
    return tuple(
        (folder / "out" / name).read_bytes() for name in ("weights.npz", "results.json", "log.csv")
    )


@functools.cache
def undisturbed(workers: int, data: str) -> Files:
    """The results of a run without faults."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        run = start(Path(folder), workers, data, ()).ends(within=600)
        if run.code:
            raise RuntimeError(run.stderr + run.logs)
        return results(Path(folder))


def disturbed(rng: random.Random, workers: int, data: str) -> list[Cost]:
    """One run with a fault of each kind."""
    kinds = [kind for kind in KINDS if kind != "disk" or os.geteuid() == 0]
    updates = sorted(rng.sample(range(2, LAST), len(kinds)))
    rng.shuffle(kinds)
    kinds.sort(
        key=lambda kind: kind == "flip"
    )  # the last: it is noticed at the next snapshot, before which another fault would undo it
    ends = [
        f"{kind}:{rng.randrange(workers)}:{update}"
        for kind, update in zip(kinds, updates, strict=True)
    ]
    print(f"{workers} workers, {data}: {' '.join(ends)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, losable(Path(name)):
        folder, said = Path(name), list[float]()
        run = start(folder, workers, data, ends)

        def ended() -> bool:
            announced = run.stderr.count(". Generation ")
            said.extend([time.time()] * (announced - len(said)))
            return run.ended()

        run.until(ended, within=900)
        equal = run.code == 0 and results(folder) == undisturbed(workers, data)
        if not equal:
            print(run.stderr + run.logs, file=sys.stderr)
        run.check_nothing_left()
        steps = [line.split() for line in (folder / "out" / "times.txt").read_text().splitlines()]
        return [
            _cost(folder / "out", end, at, steps, equal) for end, at in zip(ends, said, strict=True)
        ]


@contextlib.contextmanager
def losable(folder: Path) -> Iterator[None]:
    """A reader of standard output that the script can end, and for root a small disk of the run directory that it can fill."""
    (folder / "out").mkdir()
    os.mkfifo(folder / "stdout")
    reader = subprocess.Popen(["cat", folder / "stdout"], stdout=subprocess.DEVNULL, cwd="/")
    (folder / "out" / "reader").write_text(str(reader.pid))
    mounts = os.geteuid() == 0
    if mounts:
        (folder / "run").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder / "run")]
        subprocess.run(mount, check=True)
    try:
        yield
    finally:
        reader.kill()
        reader.wait()
        if mounts:
            subprocess.run(["umount", "-l", str(folder / "run")], check=True)


def _cost(out: Path, end: str, noticed: float, steps: Sequence[Sequence[str]], equal: bool) -> Cost:
    kind, _, update = end.split(":")
    struck = (out / end.replace(":", "-")).stat().st_mtime
    when, number = next((float(at), int(number)) for at, number in steps if float(at) > noticed)
    return Cost(kind, noticed - struck, when - struck, int(update) + 1 - number, equal)


class HostRun:
    """One run on two hosts, with what the launcher has said, and when."""

    def __init__(self, hosts: netns.Hosts, folder: Path) -> None:
        flags = ["run", "--max-restarts", "99", *hosts.flags(1), "--run-dir", str(folder / "run")]
        env = {"OMP_NUM_THREADS": "1", "PACE": "0.1"}
        self.folder, self.said = folder, list[tuple[float, str]]()
        self.process = hosts.start(
            [SYRTOS, *flags, str(SCRIPT), str(folder / "out"), "arrays"], env=env
        )
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.time(), line))

    def steps(self) -> list[tuple[float, int]]:
        """When each step ended, and its number, with those that were made again."""
        times = self.folder / "out" / "times.txt"
        lines = times.read_text().splitlines() if times.exists() else []
        return [(float(line.split()[0]), int(line.split()[1])) for line in lines]

    def until(self, done: Callable[[], bool]) -> None:
        """Waits, and fails if that takes too long."""
        deadline = time.monotonic() + 300
        while not done():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("".join(line for _, line in self.said))
            time.sleep(0.02)


def strike(hosts: netns.Hosts, kind: str) -> None:
    """Lets something end."""
    if kind == "worker":
        hosts.kill(1, "syrtos.worker")
    elif kind == "agent":
        hosts.kill(1, "syrtos.launch.remote.agent")
    elif kind == "host":
        os.kill(hosts.first_pids[1], signal.SIGKILL)
    else:
        hosts.cut_link()
    if kind == "pause":
        time.sleep(5)
        hosts.mend_link()


def disturbed_hosts(rng: random.Random, kinds: Sequence[str]) -> list[Cost]:
    """One run on two hosts with these faults, the last of which takes a host away."""
    print(f"two hosts: {' '.join(kinds)}", flush=True)
    found: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, netns.two_hosts("1gbit") as hosts:
        run = HostRun(hosts, Path(name))
        for kind in kinds:
            count = len(run.steps()) + rng.randrange(3, 9)
            run.until(lambda count=count: len(run.steps()) > count)
            struck, before = time.time(), run.steps()[-1][1]
            strike(hosts, kind)
            if kind != "pause":
                run.until(
                    lambda struck=struck: any(
                        ". Generation " in line for at, line in run.said if at > struck
                    )
                )
            noticed = next(
                (at for at, line in run.said if at > struck and ". Generation " in line), struck
            )
            after = max(noticed, struck + 5 if kind == "pause" else 0)
            run.until(lambda after=after: run.steps()[-1][0] > after)
            when, number = next(step for step in run.steps() if step[0] > after)
            found.append(
                Cost(kind, noticed - struck, when - struck, max(before + 1 - number, 0), False)
            )
        code = run.process.wait(timeout=300)
        equal = code == 0 and results(Path(name)) == undisturbed(2, "arrays")
        if not equal:
            print("".join(line for _, line in run.said), file=sys.stderr)
        if left := [line for line in hosts.processes(0) if "syrtos" in line]:
            raise RuntimeError(f"left behind: {left}")
    return [dataclasses.replace(cost, equal=equal) for cost in found]


def table(costs: Sequence[Cost], kinds: Mapping[str, str]) -> str:
    """The costs by kind, as Markdown: medians and worst cases."""
    lines = [
        "| fault | injected | result bitwise equal | noticed, s | steps computed again | next step after, s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, title in kinds.items():
        found = [cost for cost in costs if cost.kind == kind]
        if found:
            cells = [
                _both([getattr(cost, name) for cost in found])
                for name in ("noticed", "steps", "again")
            ]
            lines.append(
                f"| {title} | {len(found)} | {sum(cost.equal for cost in found)} | {' | '.join(cells)} |"
            )
    return "\n".join(lines) + "\n"


def _both(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} (≤ {max(values):.3g})"


def main() -> int:
    """Runs and prints; exit code 1 if a result differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--faults", type=int, default=14, help="at least so many (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hosts", action="store_true", help="on two network namespaces, as root")
    chosen = parser.parse_args()
    rng, costs = random.Random(chosen.seed), list[Cost]()
    kinds = ON_HOSTS if chosen.hosts else KINDS
    number = 0
    while len(costs) < chosen.faults:
        if chosen.hosts:
            first = rng.sample(("worker", "agent", "pause"), 3)
            costs += disturbed_hosts(rng, [*first, ("host", "cut")[number % 2]])
        else:
            costs += disturbed(rng, chosen.workers, DATA[number % len(DATA)])
        number += 1
    cores = len(os.sched_getaffinity(0))
    print(
        f"{chosen.workers} workers on {cores} cores, seed {chosen.seed}; median (worst)\n\n{table(costs, kinds)}"
    )
    return int(not all(cost.equal for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
