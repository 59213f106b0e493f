"""Reads TFRecords once in batches of 256, warm; prints a JSON line. ``data.py READER FOLDER``, as a worker of `syrtos run` or alone.

100,000 records of 1 KB, each an `Example` of 250 floats and a label; ``-raw`` readers leave them strings. Also ``remote`` (an S3 server on
this host, the first epoch and a later one) and ``resume`` (1,000,000 records).
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf

import syrtos
from syrtos.comm import world
from syrtos.data import cache, from_arrays, from_source
from syrtos.data.find import find
from syrtos.data.records import Records
from syrtos.data.tfrecord import TFRecord
from syrtos.keras.datasets.parsing import each
from syrtos.keras.datasets.planned import Stream
from syrtos.keras.tensorflow.planned_input import pipeline_of

BATCH, FILES, PER_FILE = 256, 8, 12_500
FEATURES = {"x": tf.io.FixedLenFeature([250], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}


def parse(record: Any) -> Any:
    """Of one record."""
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def write(folder: Path) -> list[str]:
    """The files, written once."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        path = folder / f"part-{number}.tfrecord"
        if not path.exists():
            path.with_suffix(".new").write_bytes(
                b"".join(framed(example(rng, k)) for k in range(PER_FILE))
            )
            path.with_suffix(".new").rename(path)
    return [str(path) for path in sorted(folder.glob("*.tfrecord"))]


def example(rng: np.random.Generator, label: int) -> bytes:
    x = tf.train.Feature(float_list=tf.train.FloatList(value=rng.normal(size=250)))
    y = tf.train.Feature(int64_list=tf.train.Int64List(value=[label % 10]))
    return tf.train.Example(
        features=tf.train.Features(feature={"x": x, "y": y})
    ).SerializeToString()


def framed(record: bytes) -> bytes:
    head = struct.pack("<Q", len(record))
    return head + struct.pack("<I", masked(head)) + record + struct.pack("<I", masked(record))


def masked(data: bytes) -> int:
    crc: Any = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class Counted(Records):
    """Counts the bytes that this worker reads."""

    read_bytes = 0

    def read(self, indices: Any) -> list[bytes]:
        found = super().read(indices)
        self.read_bytes += sum(map(len, found)) + 16 * len(found)
        return found


def planned(files: Iterable[str] | str, kept: cache.Cache, reader: str) -> tuple[Any, Counted]:
    source = Counted(find(files, kept), TFRecord(), kept)
    raw = "raw" in reader
    dataset: Any = from_source(
        source,
        objects if raw else each(parse),
        batch_size=BATCH,
        shuffle="shuffled" in reader,
        seed=1,
    )
    return pipeline_of(Stream(dataset, lambda batch: batch)), source


def objects(records: list[bytes]) -> Any:
    return np.asarray(records, object)


def native(files: list[str], reader: str) -> Any:
    """As TensorFlow's guide to input pipelines does it."""
    records = tf.data.TFRecordDataset(files)
    if "shuffled" in reader:
        records = records.shuffle(10_000, seed=1)
    if "raw" not in reader:
        records = records.map(parse, tf.data.AUTOTUNE)
    return records.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def grain(files: list[str]) -> Iterable[Any]:
    """The peer's reader, which is there after `make bench`."""
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    from grain_reader import Grain

    return Grain(files, BATCH)


def epoch(batches: Iterable[Any]) -> tuple[float, int]:
    """Milliseconds, and records that came."""
    started, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch[0] if isinstance(batch, tuple) else batch)
    return (time.perf_counter() - started) * 1e3, count


def read(reader: str, files: list[str]) -> dict[str, Any]:
    """One epoch after one that warms everything up."""
    source = None
    if reader.startswith("syrtos"):
        batches, source = planned(files, cache.default(), reader)
    else:
        batches = grain(files) if reader.startswith("grain") else native(files, reader)
    epoch(batches)
    before = source.read_bytes if source else 0
    took, count = epoch(batches)
    line = {"median_ms": round(took, 1), "records": count}
    return line | ({"read_mb": round((source.read_bytes - before) / 1e6, 1)} if source else {})


def remote(files: list[str]) -> dict[str, Any]:
    """Two epochs of one file of an S3 server on this host: the first fetches, the second reads the cache."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "faults"))
    import s3

    from syrtos.settings import set_environment

    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
    with s3.server() as port, tempfile.TemporaryDirectory() as folder:
        set_environment({**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
        for path in files[:2]:
            s3.put(port, "bucket", f"train/{Path(path).name}", Path(path).read_bytes())
        kept = cache.Cache(Path(folder))
        started = time.perf_counter()
        batches, _ = planned("s3://bucket/train/", kept, "")
        epoch(batches)
        first = (time.perf_counter() - started) * 1e3
        second = min(epoch(batches)[0] for _ in range(3))
    return {
        "median_ms": round(second, 1),
        "uncached_ms": round(first, 1),
        "ratio": round(first / second, 1),
    }


def resume() -> dict[str, Any]:
    """Time to the first batch at the beginning and near the end of an epoch of 1,000,000 records."""
    from syrtos.data.loader import Position

    times = []
    for place in (0, 900_000):
        dataset: Any = from_arrays(
            np.zeros((1_000_000, 8), np.float32), batch_size=BATCH, shuffle=True, seed=place
        )
        dataset.position = Position(3, place)
        started = time.perf_counter()
        next(iter(pipeline_of(Stream(dataset, lambda batch: batch))))
        times.append((time.perf_counter() - started) * 1e3)
    return {"median_ms": round(times[1], 1), "at_the_beginning_ms": round(times[0], 1)}


def main() -> None:
    """Measures what the first word names."""
    work, folder = sys.argv[1], Path(sys.argv[2])
    syrtos.init()
    if syrtos.rank() == 0:
        write(folder)
    syrtos.barrier()
    files = write(folder)
    special: dict[str, Callable[[], dict[str, Any]]] = {
        "remote": lambda: remote(files),
        "resume": resume,
    }
    line = special[work]() if work in special else read(work, files)
    everyone = world.current().comm.allgather_object(line)
    slowest = max(everyone, key=lambda each: each["median_ms"])
    if syrtos.rank() == 0:
        mb = {"read_mb": [each["read_mb"] for each in everyone]} if "read_mb" in line else {}
        print(json.dumps({"reader": work, "workers": syrtos.size(), **slowest, **mb}), flush=True)


if __name__ == "__main__":
    main()
