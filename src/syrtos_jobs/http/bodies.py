"""The reading of request bodies, with limits of size and time and with checks of their digests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

import google_crc32c
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from syrtos_jobs.http import signing
from syrtos_jobs.http.signing import Signed, UnsignedRequest

PATIENCE = 30.0  # seconds between two pieces of a body
_LARGEST_JSON = 2 << 20
_LARGEST_OBJECT = 5 << 30
_LONGEST_LINE = 1 << 12
_SHA256, _SIZE = re.compile("[0-9a-f]{64}"), re.compile(rb"[0-9a-fA-F]{1,16}")


_LARGEST_UNWANTED = 16 << 20
_LONGEST_PAUSE, _LONGEST_UNWANTED = 1.0, 5.0  # seconds


class BodyTooLargeError(Exception):
    """A body is longer than this service takes."""


class Incoming:
    """The body of a request on its way, which an answer may leave unread.

    Args:
        scope: the request, in ASGI's form.
        receive: ASGI's function that returns its next piece.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = dict(scope["headers"])
        self._announced = int(headers.get(b"content-length", b"0"))
        self._is_read = not self._announced and b"transfer-encoding" not in headers
        # such a client sends the body only when it is read
        self._waits = headers.get(b"expect", b"").lower() == b"100-continue"

    async def receive(self) -> Message:
        """Returns the next piece."""
        self._waits = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            self._is_read = True
        return message

    async def drain(self) -> bool:
        """Reads the rest of a body that the answer did not need, and drops it.

        Returns:
            Whether all was read. If not, the connection can't be used again: the next request
            would be taken for the rest of this one.
        """
        if not self._is_read and (self._waits or self._announced > _LARGEST_UNWANTED):
            return False
        size = 0
        # by both: a client that sends nothing must not wait for its answer
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_UNWANTED):
                while not self._is_read and size < _LARGEST_UNWANTED:
                    message = await asyncio.wait_for(self.receive(), _LONGEST_PAUSE)
                    size += len(message.get("body", b""))
        return self._is_read


async def pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yields a body piece by piece.

    Raises:
        BodyTooLargeError: it is longer than ``limit`` bytes, or its header says so.
        UnsignedRequest: the next piece did not come in time.
    """
    # refused before the first byte is read; a client may also lie, or not say
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > limit:
        raise BodyTooLargeError
    size = 0
    stream = request.stream()
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream), PATIENCE)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise UnsignedRequest(
                "RequestTimeout", "The body did not go on for 30 seconds."
            ) from error
        size += len(piece)
        if size > limit:
            raise BodyTooLargeError
        yield piece


async def read_short(request: Request) -> bytes:
    """Returns a short body.

    Raises:
        BodyTooLargeError: it is longer than a document may be.
        UnsignedRequest: it did not come in time.
    """
    try:
        # in all: a body that comes byte by byte would never end
        async with asyncio.timeout(PATIENCE):
            return b"".join([piece async for piece in pieces(request, _LARGEST_JSON)])
    except TimeoutError as error:
        raise UnsignedRequest("RequestTimeout", "The body did not come in 30 seconds.") from error


async def read_checked(request: Request, signed: Signed) -> bytes:
    """Returns a short body of a request to S3, after a check that it is the one that was signed.

    Raises:
        UnsignedRequest: it is not.
    """
    body = await read_short(request)
    if signed.payload not in (signing.UNSIGNED, hashlib.sha256(body).hexdigest()):
        raise UnsignedRequest(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    _compare(dict(request.headers), "content-md5", hashlib.md5(body, usedforsecurity=False))
    return body


class _Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...
    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_CHECKSUMS = {
    "x-amz-checksum-crc32": _Crc32,
    "x-amz-checksum-crc32c": google_crc32c.Checksum,
    "x-amz-checksum-sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "x-amz-checksum-sha256": hashlib.sha256,
}


async def save(request: Request, signed: Signed, path: Path) -> tuple[str, dict[str, str]]:
    """Writes an object's bytes to a file.

    Returns:
        The MD5 of the bytes in hex, and the checksum headers that they were sent with.

    Raises:
        UnsignedRequest: they don't match the signature, a checksum or ``Content-MD5``.
        BodyTooLargeError: there are too many.
    """
    headers = dict(request.headers)
    trailers: dict[str, str] = {}
    plain = pieces(request, _LARGEST_OBJECT)
    streamed = signed.payload in signing.STREAMS
    if (
        not streamed
        and signed.payload != signing.UNSIGNED
        and not _SHA256.fullmatch(signed.payload)
    ):
        raise UnsignedRequest(
            "InvalidRequest",
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a stream's name or a SHA-256.",
        )
    announced = (
        [name.strip() for name in headers.get("x-amz-trailer", "").lower().split(",")]
        if streamed
        else []
    )
    checksums: dict[str, _Digest] = {
        name: _CHECKSUMS[name]() for name in _CHECKSUMS if name in announced or name in headers
    }
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("wb") as file:
        async for piece in _remove_chunks(plain, signed, trailers) if streamed else plain:
            md5.update(piece)
            if not streamed and signed.payload != signing.UNSIGNED:
                sha256.update(piece)
            for checksum in checksums.values():
                checksum.update(piece)
            file.write(piece)
    if not streamed and signed.payload not in (signing.UNSIGNED, sha256.hexdigest()):
        raise UnsignedRequest(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    sent = {**headers, **trailers}
    _compare(sent, "content-md5", md5)
    for name, checksum in checksums.items():
        if name not in sent:
            raise UnsignedRequest(
                "MalformedTrailerError", f"The trailer {name} was announced, and did not come."
            )
        _compare(sent, name, checksum)
    return md5.hexdigest(), {name: sent[name] for name in checksums}


def _compare(headers: Mapping[str, str], name: str, computed: _Digest) -> None:
    if name in headers and headers[name] != base64.b64encode(computed.digest()).decode():
        raise UnsignedRequest(
            "BadDigest", f"The {name} that was sent does not match what was received."
        )


async def _remove_chunks(
    source: AsyncIterator[bytes], signed: Signed, trailers: dict[str, str]
) -> AsyncIterator[bytes]:
    """Yields the bytes of an ``aws-chunked`` body, and fills in ``trailers``.

    The chunks may be signed.
    """
    reader = _BodyReader(source)
    checked = signed.payload in (signing.STREAMED, signing.STREAMED_WITH_TRAILER)
    while True:
        size, _, rest = (await reader.line()).partition(b";")
        if not _SIZE.fullmatch(size):
            raise UnsignedRequest("InvalidRequest", "The body is not in aws-chunked encoding.")
        length = int(size, 16)
        data = await reader.read_exactly(length)
        if checked:
            signed.chunks.check(rest.removeprefix(b"chunk-signature=").decode("latin1"), data)
        if not length:
            break
        yield data
        await reader.line()
    while line := await reader.line(last=True):
        # without a bound, trailers could fill the memory
        if len(trailers) >= 4:
            raise BodyTooLargeError
        name, _, value = line.decode("latin1").partition(":")
        trailers[name.strip().lower()] = value.strip()


class _BodyReader:
    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._held = bytearray()

    async def line(self, last: bool = False) -> bytes:
        while (end := self._held.find(b"\r\n")) < 0:
            if len(self._held) > _LONGEST_LINE or not await self._more():
                if last and not self._held:
                    return b""
                raise UnsignedRequest("IncompleteBody", "The body ended inside a chunk.")
        line = bytes(self._held[:end])
        del self._held[: end + 2]
        return line

    async def read_exactly(self, count: int) -> bytes:
        # a chunk is held in memory, since its signature covers all of it
        if count > 8 << 20:
            raise BodyTooLargeError
        while len(self._held) < count:
            if not await self._more():
                raise UnsignedRequest("IncompleteBody", "The body ended inside a chunk.")
        data = bytes(self._held[:count])
        del self._held[:count]
        return data

    async def _more(self) -> bool:
        piece = await anext(self._source, b"")
        self._held += piece
        return bool(piece)
