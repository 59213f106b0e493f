"""`make bench-memory`: the memory that a worker uses with and without `--shard-update`, for 1, 2 and 4 workers of this machine.

Prints a table and draws docs/memory.svg; the lines behind them go to benchmarks/results/memory-DATE-MACHINE.jsonl.
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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SYRTOS = Path(sys.executable).with_name("syrtos")
BACKENDS = ["tensorflow", "torch", "jax"]
WORKERS = [1, 2, 4]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
Line = dict[str, Any]


def measure(backend: str, workers: int, is_sharded: bool) -> Line:
    """The medians of all workers of one run."""
    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"-n {workers} --oversubscribe --max-restarts 0 {'--shard-update' * is_sharded}".split()
        )
        command = [str(SYRTOS), "run", *flags, "--run-dir", folder, str(HERE / "memory_fit.py")]
        env = {**os.environ, **ONE_THREAD, "KERAS_BACKEND": backend, "WORKERS": str(workers)}
        subprocess.run(command, env=env, check=True, capture_output=True)
        logs = [path.read_text() for path in Path(folder, "logs").glob("rank-*.log")]
    found = [
        json.loads(line) for log in logs for line in log.splitlines() if line.startswith('{"peak')
    ]
    assert len(found) == workers, found
    numbers = {name: round(statistics.median(one[name] for one in found), 1) for name in found[0]}
    return {"backend": backend, "workers": workers, "shard_update": is_sharded, **numbers}


def table(lines: list[Line]) -> Table:
    shown = Table(title="an MLP of 79M parameters with Adam: memory of a worker, at most")
    shown.add_column("backend")
    for workers in WORKERS:
        shown.add_column(f"{workers} workers" if workers > 1 else "1 worker", justify="right")
    for backend in dict.fromkeys(line["backend"] for line in lines):
        for is_sharded in (False, True):
            cells = [_cell(lines, backend, workers, is_sharded) for workers in WORKERS]
            shown.add_row(f"{backend}{', sharded' * is_sharded}", *cells)
    return shown


def _cell(lines: list[Line], backend: str, workers: int, is_sharded: bool) -> str:
    line = _line(lines, backend, workers, is_sharded)
    return f"{line['peak_mb']:,.0f} MB" if line else "-"


def _line(lines: list[Line], backend: str, workers: int, is_sharded: bool) -> Line | None:
    wanted = (backend, workers, is_sharded)
    return next(
        (one for one in lines if (one["backend"], one["workers"], one["shard_update"]) == wanted),
        None,
    )


# -- the picture -------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BASE = 720, 300, 240
_STYLE = """<style>text{font:12px system-ui,sans-serif;fill:#333}.whole{fill:#9aa5b1}.sharded{fill:#2f6fb2}.axis{stroke:#888}
@media (prefers-color-scheme:dark){text{fill:#ddd}.whole{fill:#6b7783}.sharded{fill:#6aa9e9}}</style>"""


def picture(lines: list[Line]) -> str:
    """Bars of the peak of memory of a worker, in MB, as SVG."""
    most = max(line["peak_mb"] for line in lines)
    backends = list(dict.fromkeys(line["backend"] for line in lines))
    drawn = [f'<line class="axis" x1="40" x2="{_WIDTH - 10}" y1="{_BASE}" y2="{_BASE}"/>']
    place = 50.0
    for backend in backends:
        begin = place
        for workers in WORKERS:
            for is_sharded in (False, True):
                if line := _line(lines, backend, workers, is_sharded):
                    drawn.append(
                        _bar(place, line["peak_mb"], most, "sharded" if is_sharded else "whole")
                    )
                    place += 32
            drawn.append(
                f'<text x="{place - (32 if workers > 1 else 16)}" y="{_BASE + 16}" text-anchor="middle">{workers}</text>'
            )
            place += 10
        drawn.append(
            f'<text x="{(begin + place) / 2 - 10}" y="{_BASE + 34}" text-anchor="middle">{backend}, workers</text>'
        )
        place += 20
    drawn += [
        '<rect class="whole" x="50" y="8" width="12" height="12"/><text x="68" y="18">MB of a worker at most</text>',
        '<rect class="sharded" x="230" y="8" width="12" height="12"/><text x="248" y="18">with --shard-update</text>',
    ]
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{_STYLE}{"".join(drawn)}</svg>\n'


def _bar(place: float, value: float, most: float, kind: str) -> str:
    height = 190 * value / most
    top = _BASE - height
    label = f'<text x="{place + 14}" y="{top - 4:.0f}" text-anchor="middle" font-size="10">{value:,.0f}</text>'
    return (
        f'<rect class="{kind}" x="{place}" y="{top:.1f}" width="28" height="{height:.1f}"/>{label}'
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    chosen = parser.parse_args()
    path = (
        HERE
        / "results"
        / f"memory-{time.strftime('%Y-%m-%d')}-{platform.machine()}-{os.cpu_count()}cores.jsonl"
    )
    lines: list[Line] = []
    with path.open("a", encoding="utf-8") as file:
        for backend in chosen.backends:
            for workers in WORKERS:
                for is_sharded in (False, True) if workers > 1 else (False,):
                    lines.append(measure(backend, workers, is_sharded))
                    print(lines[-1], file=sys.stderr, flush=True)
                    file.write(json.dumps(lines[-1]) + "\n")
                    file.flush()
    Console().print(table(lines))
    (HERE.parent / "docs" / "memory.svg").write_text(picture(lines))


if __name__ == "__main__":
    main()
