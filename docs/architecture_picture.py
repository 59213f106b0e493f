"""Draws docs/architecture.svg: the rooms, from the layers in pyproject.toml, and the way of a gradient. ``python docs/architecture_picture.py``"""

from __future__ import annotations

import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "architecture.svg"

ROOMS = {
    "syrtos_clusters": "Kubernetes, Ray",
    "syrtos_estimator": "tf.estimator",
    "syrtos_jobs": "SageMaker-shaped jobs",
    "syrtos_keras2": "tf_keras",
    "syrtos_migrate": "scripts to Keras 3",
    "syrtos_tune": "batch size, rate",
    "__main__": "python -m syrtos",
    "cli": "one file per command",
    "dialects": "old APIs over the core, one leaf each",
    "remote_calls": "functions on other machines",
    "testing": "run_world, faults: for users too",
    "doctor": "what will be wrong",
    "notebook": "functions of cells",
    "sagemaker": "on AWS's own hosts",
    "report": "what a run has left behind: where its time went, what to change",
    "engines": "what places the processes of a run: Slurm, or something that has started them",
    "launch": "plan, supervise, judge; the worker",
    "keras": "hooks into Keras and TensorFlow",
    "api": "rank, size, allreduce, ...",
    "data": "which record at which step; readers",
    "checkpoint": "snapshots of a run, in memory and in files",
    "comm": "tensors between workers: MPI, shared memory, hierarchical, in-process",
    "observe": "clock, ledger, samples: where the time goes",
    "settings": "the only reader of os.environ",
    "topology": "World and its detection",
    "given_seeds": "seeds that a script gives",
    "entry_points": "what other packages add",
    "records": "facts noted of others' objects",
    "run_dir": "files of a run",
    "scopes": "values of a thread inside of a context",
    "errors": "one tree of exceptions",
    "interrupts": "answers to Ctrl-C",
    "json_files": "JSON that may be damaged",
    "command": "the entry point",
    "worker": "the program of a worker",
    "_version": "0.1.0 ...",
    "own_packages": "names",
    "ray": "`import syrtos.ray`",
}
GRADIENT = [
    ("fit", "Keras's trainer", "keras/tensorflow/keras3.py"),
    ("step", "this worker's share", "keras/tensorflow/step.py"),
    ("optimizer", "reduce, then clip", "keras/tensorflow/gradients.py"),
    ("exchange", "buckets, one op", "keras/tensorflow/ops.py"),
    ("communicator", "agree, then sum", "comm/communicator.py"),
    ("wire", "windows, MPI", "comm/shared_memory.py"),
]
WIDTH, ROW, GAP, LEFT = 920, 46, 18, 20
STYLE = """
  .page { fill: #ffffff } .room { fill: #eef3fb; stroke: #3b6fb6 } .path { fill: #fdf3e4; stroke: #b8741a }
  .line { stroke: #555; fill: none } .tip { fill: #555 }
  text { font: 12px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle } .name { font-weight: 700; font-size: 14px }
  .left { text-anchor: start } .small { font-size: 10px }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .room { fill: #16243a; stroke: #6ea2ea } .path { fill: #33260f; stroke: #e0a044 }
    .line { stroke: #aab } .tip { fill: #aab } text { fill: #e6edf3 }
  }
"""


def picture() -> str:
    """The whole file."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    # the first names the packages beside the core, the second the rooms of the core
    layers = [contracts[0]["layers"][0], *contracts[1]["layers"]]
    rows = [[name.strip().removeprefix("syrtos.") for name in layer.split("|")] for layer in layers]
    parts = [
        _text(
            LEFT,
            28,
            "Packages, and the rooms of the core: each imports only what is below it, and nothing beside it",
            "name left",
        )
    ]
    y = 44
    for number, row in enumerate(rows):
        parts += _row(row, y)
        if number + 1 < len(rows):
            parts.append(_arrow(WIDTH / 2, y + ROW, WIDTH / 2, y + ROW + GAP))
        y += ROW + GAP
    y += 24
    parts += [_text(LEFT, y, "A gradient, from fit to the wire", "name left"), *_chain(y + 14)]
    height = y + 14 + 64 + 20
    page = f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"><title>Architecture of syrtos</title>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *parts, "</svg>"]) + "\n"


def _row(rooms: list[str], y: float) -> list[str]:
    width = (WIDTH - 2 * LEFT - (len(rooms) - 1) * GAP) / len(rooms)
    parts = []
    for k, room in enumerate(rooms):
        parts += _box(LEFT + k * (width + GAP), y, width, ROW, "room", [room, ROOMS[room]])
    return parts


def _chain(y: float) -> list[str]:
    width = (WIDTH - 2 * LEFT - (len(GRADIENT) - 1) * GAP) / len(GRADIENT)
    parts = []
    for k, lines in enumerate(GRADIENT):
        x = LEFT + k * (width + GAP)
        parts += _box(x, y, width, 64, "path", list(lines))
        if k:
            parts.append(_arrow(x - GAP, y + 32, x, y + 32))
    return parts


def _box(x: float, y: float, width: float, height: float, kind: str, lines: list[str]) -> list[str]:
    texts = [
        _text(x + width / 2, y + 19 + 18 * k, line, "name" if k == 0 else "small" if k > 1 else "")
        for k, line in enumerate(lines)
    ]
    return [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>',
        *texts,
    ]


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    down = x1 == x2
    tip = (
        f"{x2 - 4:g},{y2 - 7:g} {x2 + 4:g},{y2 - 7:g}"
        if down
        else f"{x2 - 7:g},{y2 - 4:g} {x2 - 7:g},{y2 + 4:g}"
    )
    return f'<path class="line" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/><polygon class="tip" points="{x2:g},{y2:g} {tip}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


if __name__ == "__main__":
    OUT.write_text(picture())
