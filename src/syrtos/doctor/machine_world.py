"""A world of two workers that sum numbers, which shows whether MPI works here, and how fast.

`python -m syrtos.doctor.machine_world` is one of the two workers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping

from syrtos.doctor.machine_check import Check, ok, wrong
from syrtos.launch.plan import Group
from syrtos.launch.processes import local

_SIZE = 2
_NUMBERS = 1 << 20
_PATIENCE = 20.0  # seconds
_LAST_LINES = 4


def check(env: Mapping[str, str]) -> Check:
    """Checks MPI by two workers, which are started with the environment ``env`` and ended."""
    began = time.monotonic()
    command = (sys.executable, "-P", "-m", "syrtos.doctor.machine_world")
    # MPI's data ports need not listen beyond loopback.
    engine = local.Local(
        [Group(command, range(_SIZE))], [0] * _SIZE, {"UCX_NET_DEVICES": "lo", **env}, local.start
    )
    codes: list[int | None] = []
    try:
        while engine.runs() and not any(codes) and time.monotonic() < began + _PATIENCE:
            codes += [ended.code for ended in engine.wait(0.05)]
        late = engine.runs() and not any(codes)
    finally:
        engine.kill()
    said = [
        engine.outputs[0].out.read(),
        *(engine.outputs[rank].err.read() for rank in range(_SIZE)),
    ]
    out, *errors = (text.decode(errors="replace") for text in said)
    return _judge(out, "".join(errors), late, time.monotonic() - began)


def _judge(out: str, errors: str, late: bool, seconds: float) -> Check:
    lines = [line for line in out.splitlines() if line.startswith('{"library"')]
    if lines and not late:
        facts = json.loads(lines[0])
        return ok(
            "MPI",
            f"{facts['library']}: {_SIZE} workers met and summed 4 MB in {facts['ms']:.1f} ms;"
            f" {seconds:.1f} s from start to end",
        )
    why = f"did not end within {_PATIENCE:.0f} s" if late else "failed"
    last = " | ".join(line for line in errors.strip().splitlines()[-_LAST_LINES:])
    return wrong(
        "MPI",
        f"a world of {_SIZE} workers {why}: {last or 'they said nothing'}",
        "`pip install --force-reinstall mpi4py mpich`, and look at the lines on /dev/shm and"
        " variables of MPI here.",
    )


def main() -> None:
    """Runs one of the two workers."""
    import numpy as np
    from mpi4py import MPI

    from syrtos import api
    from syrtos.comm import world
    from syrtos.launch.processes import leftovers

    api.init()
    leftovers.unlink_early(world.current())
    times = []
    for _ in range(5):
        values = np.full(_NUMBERS, api.rank() + 1, np.float32)
        began = time.perf_counter()
        total = np.asarray(api.allreduce(values))
        times.append(time.perf_counter() - began)
        if not (total == sum(range(1, _SIZE + 1))).all():
            sys.exit(f"the sum of {_SIZE} workers is wrong: {total[:3]} ...")
    if api.rank() == 0:
        library = (
            MPI.Get_library_version()
            .split("\n")[0]
            .replace("\t", " ")
            .replace(" Version:", "")
            .strip(" \0")
        )
        print(json.dumps({"library": " ".join(library.split()), "ms": min(times) * 1e3}))


if __name__ == "__main__":
    main()
