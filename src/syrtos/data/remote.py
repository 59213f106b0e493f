"""Objects of S3, Google Cloud Storage, Azure or a web server, read in pieces.

The host's cache keeps the pieces. The client is obstore (the Rust `object_store`): it signs, pools
connections and takes credentials and endpoints from the environment as each cloud's own tools do
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` ...).
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from syrtos import settings
from syrtos.data.cache import Cache
from syrtos.data.files import CachedFile, File, MissingFile
from syrtos.data.names import folder_of, is_data, is_pattern, matches
from syrtos.errors import ConfigurationError, DataError, OutOfReachError

if TYPE_CHECKING:
    from obstore import Bytes, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

Answer = TypeVar("Answer")
# Small enough for few bytes to be read in vain, large enough for the round trip not to matter.
_PIECE = 2 << 20
_PIECES_OPEN = 1024
_AT_ONCE = 32
_TRIES = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class RemoteFile(File):
    """An object whose pieces are fetched when they are needed, many at once."""

    def __init__(
        self, store: ObjectStore, path: str, name: str, meta: ObjectMeta, cache: Cache
    ) -> None:
        self._store, self._path, self._cache = store, path, cache
        self._open: dict[int, CachedFile] = {}
        self._forgotten: set[int] = set()
        self.name, self.size = name, int(meta["size"])
        # servers of the web may send no ETag
        self.version = f"{meta['size']} {meta.get('e_tag') or meta['last_modified']}"

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes of a range; see `File.read`."""
        if stop > self.size:
            raise DataError(
                f"{self.name} ends at byte {self.size}, and was asked for bytes {start} to {stop}:"
                " it is truncated."
            )
        pieces = range(start // _PIECE, -(-stop // _PIECE))
        if len(pieces) > 1:
            # at once: one after another, each would cost a round trip
            self._fetch_all([piece for piece in pieces if piece not in self._open])
        return b"".join(
            self._open_piece(piece).read(
                max(start - piece * _PIECE, 0), min(stop - piece * _PIECE, _PIECE)
            )
            for piece in pieces
        )

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetches the pieces of these ranges into the cache; see `File.prefetch`."""
        self._fetch_all(
            sorted(
                {
                    piece
                    for start, stop in ranges
                    for piece in range(start // _PIECE, -(-stop // _PIECE))
                }
            )
        )

    def forget(self, start: int, stop: int) -> bool:
        """Removes the pieces of a range from the cache, once; see `File.forget`."""
        pieces = {*range(start // _PIECE, -(-stop // _PIECE))}
        if pieces <= self._forgotten:  # fetched again already
            return False
        self._forgotten |= pieces
        # other workers may have the damaged copy open: it is removed, and not written over
        for piece in pieces:
            self._cache.drop("piece", self._key(piece))
            self._open.pop(piece, None)
        return True

    def _open_piece(self, piece: int) -> CachedFile:
        found = self._open.get(piece)
        if found is None:
            found = self._open[piece] = CachedFile(
                functools.partial(self._piece, piece), self.name, self.version
            )
            if len(self._open) > _PIECES_OPEN:
                self._open.pop(next(iter(self._open)), None)
        return found

    def _fetch_all(self, pieces: Sequence[int]) -> None:
        for done in [_pool().submit(self._piece, piece) for piece in pieces]:
            done.result()

    def _piece(self, piece: int) -> Path:
        return self._cache.file("piece", self._key(piece), functools.partial(self._download, piece))

    def _key(self, piece: int) -> str:
        return f"{self.name} {self.version} {_PIECE} {piece}"

    def _download(self, piece: int, to: Path) -> None:
        import obstore

        start, stop = piece * _PIECE, min((piece + 1) * _PIECE, self.size)
        got = ask_persistently(
            lambda: _check_length(
                obstore.get_range(self._store, self._path, start=start, end=stop), stop - start
            ),
            self.name,
        )
        to.write_bytes(got)


def _check_length(body: Bytes, size: int) -> Bytes:
    """Returns the bytes of a range, or raises ConnectionError if they are too few."""
    if len(body) != size:
        raise ConnectionError(f"{len(body)} bytes came instead of {size}")
    return body


def ask_persistently(ask: Callable[[], Answer], name: str) -> Answer:
    """Asks again, up to a number of times, after growing random pauses, until an answer comes.

    Raises:
        DataError: there is no such object.
        OutOfReachError: no answer came, or the store refuses.
    """
    from obstore import exceptions

    refused = (
        PermissionError,
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
        exceptions.NotSupportedError,
    )
    pause = _FIRST_PAUSE
    for left in reversed(range(_TRIES)):
        try:
            return ask()
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise DataError(f"{name} is missing: {_first_line(error)}.") from error
        except refused as error:
            raise OutOfReachError(
                f"{name} can't be read: {_first_line(error)}. Check the address and the"
                " credentials."
            ) from error
        except (exceptions.BaseError, OSError) as error:
            # threads outlive the main thread's end: the process would wait for their pauses
            if not left or not threading.main_thread().is_alive():  # the process is ending
                raise OutOfReachError(
                    f"{name} could not be read in {_TRIES} tries: {_first_line(error)}."
                ) from error
        # random, so that workers that were refused together do not come back together
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, _LONGEST_PAUSE)
    raise AssertionError("unreachable")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__


def find(pattern: str, cache: Cache) -> list[File]:
    """Returns the objects that a URL names.

    It names one object, all under a prefix with a final ``/``, or all that match a pattern.
    """
    base, path = _split(pattern)
    store = _store(base)
    # Only now: `_store` says what to install where it is missing.
    import obstore

    exact = not path.endswith("/") and path and not is_pattern(path)
    if exact:
        try:
            meta = ask_persistently(lambda: obstore.head(store, path), pattern)
        except DataError:
            # a folder may be named without its final slash, but a web server lists nothing
            is_folder = not base.startswith("http") and _any_under(store, path, pattern)
            return find(pattern + "/", cache) if is_folder else [MissingFile(pattern)]
        return [RemoteFile(store, path, pattern, meta, cache)]
    if base.startswith("http"):
        raise DataError(f"A web server does not list its files: name each file of {pattern!r}.")
    folder = folder_of(path)
    listed = ask_persistently(
        lambda: [m for page in obstore.list(store, prefix=folder or None) for m in page], pattern
    )
    by_path = {meta["path"]: meta for meta in listed if is_data(meta["path"].removeprefix(folder))}
    wanted = [name for name in sorted(by_path) if not is_pattern(path) or matches(name, path)]
    return [RemoteFile(store, name, f"{base}/{name}", by_path[name], cache) for name in wanted]


def _any_under(store: ObjectStore, path: str, name: str) -> bool:
    import obstore

    return bool(
        ask_persistently(
            lambda: next(iter(obstore.list(store, prefix=path, chunk_size=1)), []), name
        )
    )


def _split(url: str) -> tuple[str, str]:
    """Returns the URL of the store, and the path in it."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")


# a store keeps its connections open: one for all files of a bucket
@functools.cache
def _store(base: str) -> ObjectStore:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigurationError(
            "Files of an object store or of the web need obstore: `pip install obstore`."
        ) from error

    env = settings.environment()
    endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
    config: S3Config | None = None
    if base.startswith("s3://") and endpoint:
        # stores of one's own have no host name for each bucket
        config = {"endpoint": endpoint, "virtual_hosted_style_request": False}
    plain = base.startswith("http://") or endpoint.startswith("http://")
    client: ClientConfig = {"timeout": "60s", "connect_timeout": "5s", "allow_http": plain}
    # ours (`ask_persistently`) also cover bodies that end early
    retries: RetryConfig = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=2)}
    return from_url(base, config=config, client_options=client, retry_config=retries)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "syrtos-fetch")
