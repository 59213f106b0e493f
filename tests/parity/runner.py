"""Runs parity cases in one process or as one of N workers, and writes what came out: ``runner.py OUT CASE [CASE ...]``.

OUT gets one ``CASE.npz`` for each: the final weights in order, and every logged number. Workers also compare their results with
each other, so that rank 0's stand for all.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import cases


def compile_by_xla() -> None:
    """Makes ``jit_compile=True`` the default of `Model.compile`."""
    compile_ = cases.keras.Model.compile

    @functools.wraps(compile_)
    def compiled(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("run_eagerly"):
            kwargs.setdefault("jit_compile", True)
        compile_(self, *args, **kwargs)

    cases.keras.Model.compile = compiled


def main(out: Path, names: list[str]) -> None:
    """Runs the cases one after the other; one that fails leaves its traceback instead of numbers."""
    if "SYRTOS_PARITY_COMPILED" in os.environ:
        compile_by_xla()
    if "tensorflow" in sys.modules:
        # A fifth of the time of graphs this small is their rewriting by Grappler.
        tf: Any = sys.modules["tensorflow"]
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name in names:
        gc.freeze()  # `clear_session` collects: it need not look through all that the cases before have left
        cases.keras.backend.clear_session()
        try:
            model, logs = cases.CASES[name]()
            result = {f"weight {i}": np.asarray(w) for i, w in enumerate(model.get_weights())}
            result |= {f"log {k}": np.asarray(v, np.float64) for k, v in logs.items()}
        except Exception:
            traceback.print_exc()
            result = {"error": np.asarray(traceback.format_exc()[-2000:])}
        _write(out / f"{name}.npz", result)


def _write(path: Path, result: dict[str, Any]) -> None:
    from syrtos.comm import world

    if world.is_initialized() and world.current().world.size > 1:
        comm = world.current().comm
        everyone = comm.allgather_object(
            {k: v.tolist() for k, v in result.items() if k.startswith("log")}
        )
        if any(other != everyone[0] for other in everyone):
            result = {"error": np.asarray(f"workers logged different numbers: {everyone}"[:2000])}
        if world.current().world.rank:
            return
    np.savez(path, **result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
