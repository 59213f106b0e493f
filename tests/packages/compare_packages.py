"""Trainings of packages that extend Keras, in one process and on two workers: `python tests/packages/compare_packages.py [NAME ...]`.

Prints, and with ``--write`` puts into docs/upstream.md, the largest difference between the two. 1 if one is beyond its bound.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "scripts"))
from trainings import TRAININGS  # noqa: E402 - found by the line above

ROOT = HERE.parent.parent
# From the Makefile, beside our environment and not in it.
SITE = ROOT / ".venv-packages"
PAGE = ROOT / "docs" / "upstream.md"
_BEGIN, _END = "<!-- packages -->", "<!-- end of packages -->"
_PACKAGES = {
    "scikeras": "scikeras",
    "keras_tcn": "keras-tcn",
    "hgq2": "hgq2",
    "keras_rs": "keras-rs",
    "keras_hub": "keras-hub",
    "bayesflow": "bayesflow",
    "keras_tuner": "keras-tuner",
    "torchmetrics": "torchmetrics",
    "flax": "flax",
    "datasets": "datasets",
    "grain": "grain",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a training on two workers compares with one process.

    Attributes:
        difference: the largest of any array, of the array's largest number (of weights, at least 0.01); inf if it can't be told.
        reason: why it can't be told; "" if it can.
    """

    difference: float
    reason: str = ""


def compare(name: str, backend: str, folder: Path) -> Outcome:
    """Runs a training plain and on two workers, with what both write in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder),
    }
    workers = [
        "-m",
        "syrtos",
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--run-dir",
        str(folder / "run"),
    ]
    for kind, launch in (("plain", []), ("workers", workers)):
        cwd = folder / kind
        cwd.mkdir()
        command = [
            sys.executable,
            *launch,
            str(HERE / "scripts" / "trainings.py"),
            name,
            str(cwd / "result"),
        ]
        with (folder / f"{kind}.log").open("w") as log:
            code = subprocess.run(
                command, env=env, cwd=cwd, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        if code:
            lines = (folder / f"{kind}.log").read_text().strip().splitlines()
            return Outcome(np.inf, f"{kind}: exit code {code}: {lines[-1] if lines else ''}")
    plain = np.load(folder / "plain" / "result-0.npz")
    return Outcome(
        max(
            _difference(plain, np.load(folder / "workers" / f"result-{rank}.npz"))
            for rank in range(2)
        )
    )


def _difference(plain: np.lib.npyio.NpzFile, other: np.lib.npyio.NpzFile) -> float:
    if set(plain.files) != set(other.files):
        return np.inf
    return max(
        _of_array(plain[name], other[name], 0.01 * name.startswith("weight")) for name in plain
    )


def _of_array(a: np.ndarray, b: np.ndarray, least: float) -> float:
    if a.shape != b.shape or not a.size:
        return 0.0 if a.shape == b.shape else np.inf
    a, b = a.astype("float64"), b.astype("float64")
    difference = float(np.abs(a - b).max() / max(np.abs(a).max(), least, 1e-30))
    return difference if np.isfinite(difference) else np.inf


def main() -> int:
    """Runs trainings and prints a table of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="trainings; all, without any")
    parser.add_argument("--backend", help="one of Keras's backends; all, without any")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {PAGE.name}")
    chosen = parser.parse_args()
    if chosen.write and (chosen.names or chosen.backend):
        parser.error("--write is for all trainings on all backends")
    sys.path.insert(0, str(SITE))
    rows: list[str] = []
    failed = 0
    for name in chosen.names or TRAININGS:
        cells: list[str] = []
        for backend in ("tensorflow", "jax", "torch"):
            if backend not in TRAININGS[name].backends or chosen.backend not in (None, backend):
                cells.append("")
                continue
            with tempfile.TemporaryDirectory() as folder:
                outcome = compare(name, backend, Path(folder) / "training")
            within = outcome.difference <= TRAININGS[name].tolerance
            failed += not within
            cells.append(f"{outcome.difference:.0e}" if not outcome.reason else "failed")
            print(
                f"{name} on {backend}: {'ok' if within else 'NOT EQUAL'}, {outcome.reason or cells[-1]}",
                flush=True,
            )
        package = next(p for prefix, p in _PACKAGES.items() if name.startswith(prefix))
        cells = [f"{package} {importlib.metadata.version(package)}", f"`{name}`", *cells]
        rows.append("| " + " | ".join(cells) + " |")
    table = (
        "| package | training | TensorFlow | JAX | torch |\n|---|---|---:|---:|---:|\n"
        + "\n".join(rows)
    )
    print(f"\n{table}")
    if chosen.write:
        before, _, rest = PAGE.read_text().partition(_BEGIN)
        after = rest.partition(_END)[2]
        day = datetime.date.today().isoformat()
        PAGE.write_text(f"{before}{_BEGIN}\nMeasured on {day}.\n\n{table}\n{_END}{after}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
