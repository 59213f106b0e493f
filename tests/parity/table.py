"""The parity table: case × number of workers → the largest relative difference from one process."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

BOUND = 1e-5

HEAD = f"""# Parity

Case by case: the largest relative difference (norm of the difference over norm of the reference) between one plain process and N
workers, of any final weight array and any logged series, after at least 50 steps. Every case is a script in
[tests/parity/cases.py](../tests/parity/cases.py). Written by `make parity` (Keras {version("keras")}, TensorFlow
{version("tensorflow-cpu")}, {time.strftime("%Y-%m-%d")}).

"""


def run(
    names: list[str], workers: int, out: Path, flags: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> None:
    """Runs cases alone (``workers=0``: plain Python, no syrtos) or on workers; results land in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    runner = [str(HERE / "runner.py"), str(out), *names]
    syrtos = [str(Path(sys.executable).parent / "syrtos"), "run", "-n", str(workers), "--oversubscribe"]
    command = [*syrtos, "--run-dir", str(out / "run"), *flags, *runner] if workers else [sys.executable, *runner]
    environment = {
        **os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "SYRTOS_PARITY_ID": out.name,
        **(env or {}),
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")


def difference(one: Path, many: Path) -> float:
    """The largest relative difference of any weight array and any logged series, by norm; NaN if something is missing."""
    a, b = dict(np.load(one)), dict(np.load(many))
    if a.keys() != b.keys() or "error" in b or any(a[k].shape != b[k].shape for k in a):
        return float("nan")
    return max(_relative(a[k], b[k]) for k in a)


def _relative(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Norm of the difference over norm of the reference; equal infinities and NaN count as equal."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    return float(np.linalg.norm(a[finite] - b[finite]) / max(np.linalg.norm(a[finite]), 1e-12))


def measure(
    names: list[str], worlds: list[int], env: dict[str, str] | None = None, flags: tuple[str, ...] = ()
) -> dict[str, list[float]]:
    """Rows of the table; ``flags`` are options of `syrtos run`."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run(names, 0, root / "one", env=env)
        for size in worlds:
            run(names, size, root / str(size), flags, env)
        return {n: [difference(root / "one" / f"{n}.npz", root / str(s) / f"{n}.npz") for s in worlds] for n in names}


def main() -> int:
    """Prints the table; exit code 1 if a bound is not kept."""
    import cases

    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", default="1,2,3,4")
    parser.add_argument("--legacy", action="store_true", help="Keras 2 (tf_keras)")
    parser.add_argument("--write", type=Path, help="also write the table as Markdown")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    worlds = [int(n) for n in chosen.worlds.split(",")]
    names = chosen.names or [n for n in cases.CASES if not (chosen.legacy and n in cases.KERAS3_ONLY)]
    rows = measure(names, worlds, {"TF_USE_LEGACY_KERAS": "1"} if chosen.legacy else None)
    lines = [
        "| case | bound | " + " | ".join(f"{n} workers" for n in worlds) + " |",
        "|---|---|" + "---|" * len(worlds),
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {cases.TOLERANCE.get(name, BOUND):.0e} | " + " | ".join(f"{v:.1e}" for v in row) + " |"
        )
    print("\n".join(lines))
    if chosen.write:
        chosen.write.write_text(HEAD + "\n".join(lines) + "\n")
    return int(any(not v <= cases.TOLERANCE.get(name, BOUND) for name, row in rows.items() for v in row))


if __name__ == "__main__":
    sys.exit(main())
