"""`make bench`: syrtos against its peers, on this machine and in one run, as ratios.

Everything is measured in turn, several times over, so that a machine that is busy for a while disturbs all alike. Prints a table; the lines
behind it go to benchmarks/results/DATE-MACHINE.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from syrtos.observe.ledger import Ledger

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "NPROC": "1",  # what XLA reads
}
LARGE, SMALL = 100_000_000, 4096

Line = dict[str, Any]


def call(*command: str, timeout: float = 600, backend: str = "tensorflow") -> list[Line]:
    """The JSON lines a command prints; one with an error if there are none."""
    done = subprocess.run(
        command,
        env={**os.environ, **ONE_THREAD, "KERAS_BACKEND": backend},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return lines or [{"error": (done.stderr or done.stdout).strip()[-300:]}]


def own(workers: int, *arguments: str, backend: str = "tensorflow") -> Line:
    run = [
        str(BIN / "syrtos"),
        "run",
        "-n",
        str(workers),
        "--oversubscribe",
        "--run-dir",
        "/tmp/syrtos-bench",
    ]
    return call(*run, str(HERE / "own.py"), *arguments, backend=backend)[0]


def peer(name: str, *arguments: str) -> Line:
    line = {
        "peer": name,
        **call(sys.executable, str(HERE / "peers" / f"{name}.py"), "--workers", "2", *arguments)[0],
    }
    if "median_step_ms" in line:
        line["median_ms"] = line.pop("median_step_ms")
    return line


def reduce_rounds(rounds: int) -> list[Line]:
    """Reductions of 4 KB and 100 MB by everyone, in turn."""
    lines = []
    for _ in range(rounds):
        for size, repeats in ((SMALL, 200), (LARGE, 15)):
            how = ("--bytes", str(size), "--repeats", str(repeats))
            also = ("floor", "copy") if size == LARGE else ("in_graph", "call")
            lines += [own(2, work, *how) for work in ("reduce", *also)]
            for name in ("mwms", "jax_gloo", "torch_gloo"):
                lines.append(peer(name, *how))
    return lines


STEP_PEERS = {"tensorflow": "tf_keras_mwms", "jax": "keras_jax", "torch": "torch_ddp"}


def step_rounds(rounds: int) -> list[Line]:
    """Training steps on each backend, and of its own way to train on several workers."""
    lines = []
    for _ in range(rounds):
        for backend, its_own_way in STEP_PEERS.items():
            for model in ("mlp", "transformer"):
                lines.append(own_step(backend, model))
                lines.append(peer(its_own_way, "--repeats", "8", "--model", model))
    return lines


def partition_rounds(rounds: int) -> list[Line]:
    """Steps of several kinds of models on TensorFlow, as partitioned programs, compiled or not."""
    models = ("mlp", "cnn", "lstm", "transformer")
    compiled = ("mlp", "transformer")
    return [
        *(own_step("tensorflow", model) for _ in range(rounds) for model in models),
        *(own_step("tensorflow", model, "--compiled") for _ in range(rounds) for model in compiled),
    ]


def own_step(backend: str, model: str, *options: str) -> Line:
    """A step that exchanges, against the same two workers not exchanging."""
    line = own(2, "step", "--repeats", "10", "--model", model, *options, backend=backend)
    without = two_apart(backend, model, *options)
    ratio = line.get("median_ms", 0) / without["median_ms"]
    who = {"peer": f"syrtos on {backend}"}
    return {
        **line,
        **who,
        "no_exchange_step_ms": without["median_ms"],
        "ratio_to_no_exchange": round(ratio, 3),
    }


def two_apart(backend: str, model: str, *options: str) -> Line:
    """Two plain processes at once, each on its own batch; the slower one counts, as it does when they wait for each other."""
    work = ["step", "--repeats", "10", "--model", model, *options]
    command = [sys.executable, str(HERE / "own.py"), *work]
    env = {**os.environ, **ONE_THREAD, "KERAS_BACKEND": backend}
    both = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=600)[0] for process in both]
    return max(
        (json.loads(text.splitlines()[-1]) for text in printed), key=lambda line: line["median_ms"]
    )


def dialect_rounds(rounds: int) -> list[Line]:
    """The same step by the native API and by old ones."""
    names = ("native", "horovod", "smddp", "mirrored", "estimator")
    return [
        own(2, "step", "--repeats", "10", "--dialect", name)
        for _ in range(rounds)
        for name in names
    ]


def data_rounds(rounds: int) -> list[Line]:
    """An epoch of TFRecords by each reader, alone and on two workers; S3, and going on in the middle of an epoch."""
    run = [
        str(BIN / "syrtos"),
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--run-dir",
        "/tmp/syrtos-bench",
    ]
    script, folder = str(HERE / "data.py"), "/tmp/syrtos-bench-data"
    call(sys.executable, script, "syrtos", folder)  # writes the files
    lines = []
    for _ in range(rounds):
        for reader in (
            "syrtos",
            "tf.data",
            "syrtos-shuffled",
            "tf.data-shuffled",
            "syrtos-raw",
            "tf.data-raw",
            "grain-raw",
        ):
            lines.append(call(sys.executable, script, reader, folder)[0])
        for reader in ("syrtos", "tf.data"):
            lines.append(call(*run, script, reader, folder)[0])
        for work in ("remote", "resume"):
            lines.append(call(sys.executable, script, work, folder)[0])
    return [_as_work(line) for line in lines]


def _as_work(line: Line) -> Line:
    """The reader is who, the rest what."""
    who, _, how = line.pop("reader", "?").partition("-")
    if who in ("remote", "resume"):
        who, how = "syrtos", who
    return {"work": f"data {how}".strip(), "peer": who, **line}


def growth(rounds: int) -> list[Line]:
    """Exchange time of 100 MB with the number of workers; beyond the cores they take turns."""
    return [
        own(n, "reduce", "--bytes", str(LARGE), "--repeats", "8")
        for _ in range(rounds)
        for n in (1, 2, 4, 8)
    ]


def start_up(rounds: int) -> list[Line]:
    """An empty script, plain and on two workers."""
    empty = Path("/tmp/syrtos-bench-empty.py")
    empty.write_text("")
    run = [
        str(BIN / "syrtos"),
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--run-dir",
        "/tmp/syrtos-bench",
        str(empty),
    ]
    lines = []
    for _ in range(rounds * 3):
        for name, command in (("python", [sys.executable, str(empty)]), ("syrtos", run)):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            lines.append(
                {
                    "peer": name,
                    "work": "start",
                    "median_ms": round((time.perf_counter() - started) * 1e3, 1),
                }
            )
    return lines


def ledger_cost(_rounds: int) -> list[Line]:
    """What writing down a step costs, in processor time; a step that takes a millisecond spends a hundredth of it at 10 microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, steps, started = Ledger(), 20_000, time.process_time()
        ledger.open(folder, 0)
        with ledger.part("fit", "build"):
            for step in range(steps):
                ledger.begin_step("train", "callbacks")
                ledger.become("compute")
                for kind in ("input", "wait", "exchange"):
                    ledger.spend(kind, 1e-6)
                ledger.count(32.0)
                ledger.become("callbacks")
                ledger.end_step(step)
        ledger.close()
        return [
            {
                "peer": "syrtos",
                "work": "ledger",
                "median_ms": (time.process_time() - started) / steps * 1e3,
            }
        ]


def job_rounds(rounds: int) -> list[Line]:
    """The service of training jobs under load."""
    return [line for _ in range(rounds) for line in call(sys.executable, str(HERE / "jobs.py"))]


def whole_rounds(rounds: int) -> list[Line]:
    """Whole runs of scripts, from the command to the prompt."""
    return call(sys.executable, str(HERE / "whole.py"), str(rounds), timeout=7200)


WORKS: dict[str, Callable[[int], list[Line]]] = {
    "reduce": reduce_rounds,
    "step": step_rounds,
    "partition": partition_rounds,
    "dialects": dialect_rounds,
    "data": data_rounds,
    "jobs": job_rounds,
    "growth": growth,
    "start": start_up,
    "whole": whole_rounds,
    "ledger": ledger_cost,
}


def medians(lines: list[Line], key: str = "median_ms") -> dict[tuple[str, str, int, int], float]:
    """(work, peer, bytes, workers) → the median over the rounds."""
    groups: dict[tuple[str, str, int, int], list[float]] = {}
    for line in lines:
        if key in line:
            groups.setdefault(
                (line["work"], line["peer"], line.get("bytes", 0), line.get("workers", 0)), []
            ).append(line[key])
    return {group: statistics.median(values) for group, values in groups.items()}


def show(lines: list[Line]) -> None:
    """One table: milliseconds, and how many times longer than syrtos (for steps: than not exchanging)."""
    table = Table(
        "work",
        "who",
        "workers",
        "ms",
        "ratio",
        title=f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
    )
    by_time, by_ratio = medians(lines), medians(lines, "ratio_to_no_exchange")
    for (work, who, size, workers), value in sorted(by_time.items()):
        ratio = by_ratio.get((work, who, size, workers))
        base = by_time.get((work, "syrtos", size, workers))
        text = (
            f"{ratio:.2f} x not exchanging"
            if ratio
            else f"{value / base:.2f} x syrtos"
            if base
            else ""
        )
        if work.startswith("whole"):
            text = _against_python(lines, (work, who, size, workers))
        table.add_row(
            f"{work} {size:,} B" if size else work, who, str(workers or ""), f"{value:,.3f}", text
        )
    Console().print(table)
    for line in lines:
        if "error" in line:
            print(f"not measured: {line.get('peer', '?')}: {line['error']}", file=sys.stderr)


def _against_python(lines: list[Line], group: tuple[str, str, int, int]) -> str:
    """A whole run's wall and processor time over plain Python's, and its memory."""
    plain = (group[0], "python", *group[2:])
    wall, processor, memory = (
        medians(lines, key) for key in ("median_ms", "cpu_seconds", "pss_mb")
    )
    ratios = f"{wall[group] / wall[plain]:.2f} x python, processor {processor[group] / processor[plain]:.2f} x"
    return f"{ratios}, {memory[group]:,.0f} MB"


def main() -> None:
    """Runs what was asked for, everything by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("works", nargs="*", choices=[*WORKS, []])
    chosen = parser.parse_args()
    lines = [line for work in chosen.works or WORKS for line in WORKS[work](chosen.rounds)]
    day = time.strftime("%Y-%m-%d")
    out = HERE / "results" / f"{day}-{platform.machine()}-{os.cpu_count()}cores.jsonl"
    out.parent.mkdir(exist_ok=True)
    facts = {
        "date": day,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }
    with out.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in [facts, *lines])
    show(lines)
    print(f"lines: {out}")


if __name__ == "__main__":
    main()
