"""Faults at random steps of runs with `--max-restarts`: what each costs, and whether the result is that of an undisturbed run.

``run.py --faults 12 --seed 0``: six kinds of fault, each once in a run, on random ranks and at random steps. Weights, histories and the CSV
log of the run must be those of an undisturbed one, to the last bit, and nothing may be left behind.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "faults")]

from running import SCRIPTS, Run  # noqa: E402 - it is found by the line above

SCRIPT = SCRIPTS / "recovering.py"
KINDS = {
    "SIGKILL": "SIGKILL, as by the kernel when memory runs out",
    "SIGSEGV": "a crash (SIGSEGV)",
    "SIGABRT": "`abort()`, as by a failed CHECK",
    "exit": "`os._exit(0)` in the middle",
    "raise": "an exception of the script",
    "SIGSTOP": "a worker that hangs (SIGSTOP)",
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
    flags = ("-n", str(workers), "--oversubscribe", "--max-restarts", "99")
    return Run(folder, *flags, SCRIPT, folder / "out", data, *ends, env={"OMP_NUM_THREADS": "1"})


def results(folder: Path) -> Files:
    """What a run has written."""
    return tuple((folder / "out" / name).read_bytes() for name in ("weights.npz", "results.json", "log.csv"))


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
    updates = sorted(rng.sample(range(2, LAST), len(KINDS)))
    kinds = rng.sample(list(KINDS), len(KINDS))
    ends = [f"{kind}:{rng.randrange(workers)}:{update}" for kind, update in zip(kinds, updates, strict=True)]
    print(f"{workers} workers, {data}: {' '.join(ends)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
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
        return [_cost(folder / "out", end, at, steps, equal) for end, at in zip(ends, said, strict=True)]


def _cost(out: Path, end: str, noticed: float, steps: Sequence[Sequence[str]], equal: bool) -> Cost:
    kind, _, update = end.split(":")
    struck = (out / end.replace(":", "-")).stat().st_mtime
    when, number = next((float(at), int(number)) for at, number in steps if float(at) > noticed)
    return Cost(kind, noticed - struck, when - struck, int(update) + 1 - number, equal)


def table(costs: Sequence[Cost]) -> str:
    """The costs by kind, as Markdown: medians and worst cases."""
    lines = [
        "| fault | injected | result bitwise equal | noticed, s | steps computed again | next step after, s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, title in KINDS.items():
        found = [cost for cost in costs if cost.kind == kind]
        cells = [_both([getattr(cost, name) for cost in found]) for name in ("noticed", "steps", "again")]
        lines.append(f"| {title} | {len(found)} | {sum(cost.equal for cost in found)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _both(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} (≤ {max(values):.3g})"


def main() -> int:
    """Runs and prints; exit code 1 if a result differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=12, help="at least so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    rng, costs = random.Random(chosen.seed), list[Cost]()
    for number in range(-(-chosen.faults // len(KINDS))):
        costs += disturbed(rng, chosen.workers, DATA[number % len(DATA)])
    cores = len(os.sched_getaffinity(0))
    print(f"{chosen.workers} workers on {cores} cores, seed {chosen.seed}; median (worst)\n\n{table(costs)}")
    return int(not all(cost.equal for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
