"""The parity table: case × number of workers → the largest relative difference from one process."""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import registry

from syrtos.doctor import machine_facts

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import forking  # noqa: E402 - it is found by the line above

# torch compiles for a minute what workers, where syrtos turns that off, must compute without.
NOT_COMPILED = {"TORCHDYNAMO_DISABLE": "1"}
ONE_THREAD = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
TOGETHER = ("--ps", "2", "--staleness", "0")  # servers that compute what workers alone do
Rows = dict[str, list[float]]


def _versions() -> str:
    """Of the frameworks that are installed, for a person."""
    names = ("Keras", "TensorFlow", "JAX", "torch", "tf_keras")
    return ", ".join(
        f"{name} {machine_facts.version(name.lower())}"
        for name in names
        if importlib.util.find_spec(name.lower())
    )


HEAD = f"""# Parity

Case by case: the largest relative difference (norm of the difference over norm of the reference) between one plain process and N
workers, of any final weight array and any logged series, after at least 50 steps. The cases are scripts in
[tests/parity](../tests/parity); half precision (`mixed_*`) rounds shares of a sum differently. JAX computes in float64 here, the others in
float32. Written by `make parity` ({_versions()}, {time.strftime("%Y-%m-%d")}).
"""


def run(
    names: Sequence[str],
    workers: int,
    out: Path,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Path:
    """Runs cases alone (``workers=0``: plain Python, no syrtos) or on workers; results land in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    runner = [HERE / "runner.py", out, *names]
    command = forking.syrtos_run(out / "run", workers, *runner, flags=flags) if workers else runner
    environment = {**ONE_THREAD, "SYRTOS_PARITY_FILES": str(out / "files"), **(env or {})}
    done = forking.run(command, environment, timeout=3000)
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    return out


@functools.cache
def _references(env: tuple[tuple[str, str], ...]) -> tuple[Path, set[str]]:
    """A folder for the results of one process, and the cases of which it has them, from an earlier run of the same cases with the same versions too."""
    texts = [path.read_bytes() for path in sorted(HERE.glob("*.py"))]
    made_by = hashlib.sha256(
        repr([texts, env, sorted(ONE_THREAD.items()), _versions(), sys.version]).encode()
    )
    folder = HERE.parents[1] / "build" / "references" / made_by.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder, {
        path.stem for path in folder.glob("*.npz") if "error" not in np.load(path).files
    }


def alone(names: Sequence[str], env: tuple[tuple[str, str], ...]) -> Path:
    """Where the results of one process are; it trains each case once for all that compare with it."""
    folder, known = _references(env)
    if missing := [name for name in dict.fromkeys(names) if name not in known]:
        with tempfile.TemporaryDirectory(
            dir=folder
        ) as made:  # another process of pytest may compute the same
            run(missing, 0, Path(made), env={**dict(env), **NOT_COMPILED})
            for name in missing:
                os.replace(Path(made, f"{name}.npz"), folder / f"{name}.npz")
        known.update(missing)
    return folder


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
    names: Sequence[str], worlds: Sequence[int], env: Mapping[str, str] | None = None, flags: Sequence[str] = (),
    references: Sequence[str] = (),
) -> Rows:  # fmt: skip
    """Rows of the table; ``flags`` are options of `syrtos run`, ``references`` cases of which others are measured as well."""
    one = alone([*references, *names], tuple((env or {}).items()))
    with tempfile.TemporaryDirectory() as folder:
        many = [run(names, size, Path(folder, str(size)), flags, env) for size in worlds]
        return {n: [difference(one / f"{n}.npz", out / f"{n}.npz") for out in many] for n in names}


def check(
    rows: Rows, name: str, framework: registry.Framework = registry.FRAMEWORKS["TensorFlow"]
) -> None:
    """Fails if a case is further from one process than its bound."""
    assert rows[name][0] <= framework.allows(name)


def main() -> int:
    """Prints the tables; exit code 1 if a bound is not kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", default="1,2,3", help="numbers of workers")
    parser.add_argument(
        "--framework", choices=list(registry.FRAMEWORKS), action="append", help="by default all"
    )
    parser.add_argument("--write", type=Path, help="also write the tables as Markdown")
    parser.add_argument("names", nargs="*", help="cases; by default all")
    chosen = parser.parse_args()
    worlds = [int(n) for n in chosen.worlds.split(",")]
    texts, kept = [HEAD], True
    for title in chosen.framework or registry.FRAMEWORKS:
        framework = registry.FRAMEWORKS[title]
        rows = measure(
            [n for n in framework.cases if n in (chosen.names or framework.cases)],
            worlds,
            framework.env,
        )
        kept = kept and all(v <= framework.allows(name) for name, row in rows.items() for v in row)
        texts.append(_as_markdown(title, framework, rows, worlds))
        print(texts[-1], flush=True)
    if chosen.write:
        chosen.write.write_text("\n".join(texts))
    return int(not kept)


def _as_markdown(
    title: str, framework: registry.Framework, rows: Rows, worlds: Sequence[int]
) -> str:
    head = ["case", "bound", *(f"{n} worker{'s' * (n > 1)}" for n in worlds)]
    found = [
        [name, f"{framework.allows(name):.0e}", *(f"{v:.1e}" for v in row)]
        for name, row in rows.items()
    ]
    lines = [" | ".join(cells) for cells in (head, ["---"] * len(head), *found)]
    return f"## {title}\n\n" + "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
