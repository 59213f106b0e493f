"""Writes docs/dialects.md from the matrix that the tests read: ``python docs/dialects.py``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import syrtos.dialects

MATRIX = Path(syrtos.dialects.__file__).parent / "matrix.toml"
OUT = Path(__file__).parent / "dialects.md"

HEAD = """# Dialects

Scripts written for these APIs run unchanged under `syrtos run`, on today's Keras 3 and TensorFlow 2. Names marked *same* keep their
original semantics. Written by `python docs/dialects.py` from [matrix.toml](../src/syrtos/dialects/matrix.toml); tests check the verdict on
every name, and [tests/parity/dialects.py](../tests/parity/dialects.py) compares the results of each dialect with those of one process.

Spellings of Keras 2 are understood by Keras 3 in scripts that use Horovod, SMDDP, `multi_gpu_model` or a strategy of `tf.distribute`:
`optimizer.lr`, `optimizer.variables()`, `lr=` and `decay=`, `optimizers.legacy`, `optimizer.minimize`, `fit_generator`,
`metric.reset_states()`, `BatchNormalization(fused=True)`, `utils.experimental.DatasetCreator`, `experimental_run_tf_function`,
`K.get_value` and `K.set_value`.

Errors of exchanges are TensorFlow's errors too, in graphs as well: `syrtos.errors.OutOfStepError` is a `tf.errors.FailedPreconditionError`,
other `ExchangeError`s are `InvalidArgumentError`s, a stalled exchange is an `UnknownError`. Scripts of TensorFlow 1 (`tf.Session`,
`tf.layers`, `tf.train.AdamOptimizer`) get one sentence that says what to write.
"""


def page() -> str:
    """The whole page."""
    matrix = tomllib.loads(MATRIX.read_text())
    return "\n".join(
        [HEAD, *(section for dialect in matrix.values() for section in _dialect(dialect))]
    )


def _dialect(dialect: dict[str, Any]) -> list[str]:
    about = dialect["about"]
    start = " or ".join(f"`{command}`" for command in about["start"].split(", or "))
    lines = [f"## {about['original']}\n", f"{about['meaning']} Start: {start}.\n"]
    for module, names in dialect["names"].items():
        lines += [f"### `{module}`\n", "| name | |", "|---|---|"]
        same = [f"`{name}`" for name, verdict in names.items() if verdict == "same"]
        lines += [f"| {' '.join(same)} | same |"] if same else []
        lines += [
            f"| `{name}` | {verdict} |" for name, verdict in names.items() if verdict != "same"
        ]
        lines.append("")
    return lines


if __name__ == "__main__":
    OUT.write_text(page())
