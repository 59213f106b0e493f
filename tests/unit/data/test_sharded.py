"""Workers that see different files, as on the hosts of a sharded channel."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from framing import framed
from syrtos.comm import world
from syrtos.data.bad import Policy
from syrtos.data.cache import Cache
from syrtos.data.find import find
from syrtos.data.loader import Loader
from syrtos.data.records import Records
from syrtos.data.tfrecord import TFRecord
from syrtos.testing import run_world


def read(folder: str) -> list[str]:
    """What a worker reads in an epoch, after the fingerprint."""
    comm, place = world.current().comm, Path(folder)
    cache = Cache(place / f"cache-{comm.rank}")
    source = Records(find([place / name for name in ("ab", "bc")[comm.rank]], cache), TFRecord(), cache, comm)
    loader = Loader(source, lambda records: np.asarray(records), 4, 5, Policy("fail", 0, len(source)))
    rows = [row for chunk in loader.chunks(loader.plan(), comm.rank, comm.size) for row in chunk.data.tolist()]
    return [source.fingerprint, *(row.decode() for row in rows)]


def test_they_read_them_all_together(tmp_path: Path) -> None:
    """Rank 0 sees a and b, rank 1 b and c."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"".join(framed(f"{name}{k}".encode()) for k in range(7)))
    (one, *first), (other, *second) = run_world(2, read, str(tmp_path))
    assert one == other
    assert sorted(first + second) == sorted(f"{name}{k}" for name in "abc" for k in range(7))
    assert {row[0] for row in first} == {"a", "b"}
    assert {row[0] for row in second} == {"b", "c"}


def misses(folder: str) -> list[int]:
    """How many records there are, and how many are bad: rank 0 names one file that is there, and one that no worker sees."""
    comm, place = world.current().comm, Path(folder)
    cache = Cache(place / f"cache-{comm.rank}")
    names = (["a", "nowhere", "b"], ["b", "nowhere", "c"])[comm.rank]
    source = Records(find([place / name for name in names], cache), TFRecord(), cache, comm)
    return [len(source), source.damaged]


def test_a_file_that_no_worker_sees_is_a_bad_record(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(framed(b"x") * 2)
    assert run_world(2, misses, str(tmp_path)) == [[7, 1], [7, 1]]
