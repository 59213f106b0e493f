"""A job's inputs on an instance: files in a folder (File, FastFile) or streams in a pipe (Pipe)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from syrtos.errors import DataError
from syrtos_jobs.requests.request import InputChannel
from syrtos_jobs.storage.storage_uris import JobFile, StorageURIs, manifest, safe_name

_RECORD_IO = 0xCED7230A


def sources(
    places: StorageURIs, channel: InputChannel, host: int, hosts: int, epoch: int = 0
) -> list[JobFile]:
    """Returns the objects of a channel that instance ``host`` of ``hosts`` reads, in its order.

    Raises:
        DataError: there are none.
    """
    found = _list_sources(places, channel)
    if channel.seed is not None:
        # before the objects are divided: all instances must shuffle alike
        random.Random(f"{channel.seed} {epoch}").shuffle(found)
    mine = found[host::hosts] if channel.sharded else found
    if not mine:
        raise DataError(
            f"Channel {channel.name} has {len(found)} objects, and is sharded over {hosts}"
            f" instances: algo-{host + 1} would get none. Write the data to more objects, or use"
            " FullyReplicated."
        )
    return mine


def _list_sources(places: StorageURIs, channel: InputChannel) -> list[JobFile]:
    if channel.kind != "ManifestFile":
        return places.under(channel.uri)
    prefix, names = manifest(places.text(channel.uri))
    found = []
    for name in names:
        one = places.one(prefix + name)
        found.append(JobFile(one.uri, safe_name(name), one.fetch, one.read, one.local))
    return found


def provide(places: StorageURIs, channel: InputChannel, host: int, hosts: int, folder: Path) -> int:
    """Fills a channel's folder; in FastFile mode with links to files that this machine has already.

    Returns:
        The number of files.
    """
    found = sources(places, channel, host, hosts)
    for source in found:
        path = folder / source.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if channel.mode == "FastFile" and source.local is not None:
                _link(source.local, path)
            else:
                source.fetch(path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise DataError(
                f"Channel {channel.name} has a file {source.name} and a folder of that name."
            ) from error
    return len(found)


def _link(file: Path, path: Path) -> None:
    """Makes a hard link, or a symbolic link if the file is on another file system."""
    # a hard link outlives the name of its target: an object may be replaced while a job reads it
    try:
        os.link(file.resolve(), path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM):
            raise
        path.symlink_to(file.resolve())


# -- pipes -----------------------------------------------------------------------------------------


class Pipe:
    """Streams a channel into ``<folder>/<channel>_<epoch>``, epoch after epoch.

    It streams as fast as the script reads.
    """

    def __init__(
        self, places: StorageURIs, channel: InputChannel, host: int, hosts: int, folder: Path
    ) -> None:
        self._places, self._channel, self._host, self._hosts = places, channel, host, hosts
        self._base = folder / channel.name
        self._over = threading.Event()
        self.error: Exception | None = None
        # the number of epochs that there are pipes for
        self._epochs = 0
        self._add_epoch()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the stream, and removes the pipes that scripts read it from."""
        self._over.set()
        self._thread.join(timeout=5)
        for epoch in range(self._epochs):
            Path(f"{self._base}_{epoch}").unlink(missing_ok=True)

    def _add_epoch(self) -> None:
        os.mkfifo(f"{self._base}_{self._epochs}")
        self._epochs += 1

    def _run(self) -> None:
        epoch = 0
        try:
            while not self._over.is_set():
                descriptor = self._open_pipe(f"{self._base}_{epoch}")
                if descriptor is None:
                    return
                # there before the script can ask for it, at the end of this epoch
                self._add_epoch()
                # a script need not read an epoch to its end
                with (
                    contextlib.suppress(BrokenPipeError),
                    os.fdopen(descriptor, "wb", buffering=1 << 20) as pipe,
                ):
                    self._write(pipe, epoch)
                epoch += 1
        except Exception as error:
            self.error = error
            # without a pipe, the script gets an error instead of waiting for ever. After `close`,
            # there may be another stream with these paths
            if not self._over.is_set():
                Path(f"{self._base}_{epoch + 1}").unlink(missing_ok=True)

    def _open_pipe(self, path: str) -> int | None:
        """Returns a pipe's descriptor once a process reads it; None if the job ends before."""
        while not self._over.wait(0.02):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                # ENXIO: nobody reads it yet
                if error.errno != errno.ENXIO:
                    raise
                continue
            # only the opening must not wait: a write waits until the script has read
            os.set_blocking(descriptor, True)
            return descriptor
        return None

    def _write(self, pipe: IO[bytes], epoch: int) -> None:
        for record in self._records(epoch):
            pipe.write(frame_record(record) if self._channel.record_io else record)

    def _records(self, epoch: int) -> Iterator[bytes]:
        if self._channel.kind == "AugmentedManifestFile":
            yield from _augmented_records(
                self._places, self._channel, self._host, self._hosts, epoch
            )
            return
        for source in sources(self._places, self._channel, self._host, self._hosts, epoch):
            # in RecordIO an object is one record, whose length comes first
            if self._channel.record_io:
                yield b"".join(self._read_unpacked(source))
            else:
                yield from self._read_unpacked(source)

    def _read_unpacked(self, source: JobFile) -> Iterator[bytes]:
        return _gunzip(source.read()) if self._channel.gzip else source.read()


def frame_record(record: bytes) -> bytes:
    """Returns a record in RecordIO's frame: magic number, length, bytes, padding.

    The length with padding is a multiple of 4 bytes.
    """
    # MXNet's format, which SageMaker's Pipe mode writes
    return struct.pack("<II", _RECORD_IO, len(record)) + record + b"\0" * (-len(record) % 4)


def _augmented_records(
    places: StorageURIs, channel: InputChannel, host: int, hosts: int, epoch: int
) -> Iterator[bytes]:
    """Yields the attributes of each line of an augmented manifest, one after the other.

    An attribute named ``*-ref`` is a URI: the contents of its object are yielded.
    """
    lines = [line for line in places.text(channel.uri).splitlines() if line]
    if channel.seed is not None:
        random.Random(f"{channel.seed} {epoch}").shuffle(lines)
    for line in lines[host::hosts] if channel.sharded else lines:
        facts = json.loads(line)
        for name in channel.attributes:
            value = facts[name]
            if name.endswith("-ref"):
                yield b"".join(places.one(value).read())
            else:
                yield (value if isinstance(value, str) else json.dumps(value)).encode()


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    unpack, fresh = zlib.decompressobj(16 + zlib.MAX_WBITS), True
    for piece in pieces:
        while piece:
            fresh = False
            yield unpack.decompress(piece)
            piece = unpack.unused_data
            # gzip files may be several, one after another
            if unpack.eof:
                unpack, fresh = zlib.decompressobj(16 + zlib.MAX_WBITS), True
            else:
                break
    if not unpack.eof and not fresh:
        raise DataError("A gzip file ends in the middle of a member: it is truncated.")


def clean(folder: Path) -> None:
    """Empties a folder, which an earlier attempt may have filled, or makes it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
