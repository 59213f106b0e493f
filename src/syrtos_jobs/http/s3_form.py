"""The wire form of S3's requests and answers: headers, XML, ranges, conditions and errors."""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from email.utils import formatdate, mktime_tz, parsedate_tz
from pathlib import Path
from typing import NoReturn
from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from syrtos_jobs.http.model import iso
from syrtos_jobs.storage.objects import ObjectFacts, ObjectStore

_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
_KEPT = (
    "content-type",
    "content-encoding",
    "content-disposition",
    "cache-control",
    "content-language",
)


class S3Error(Exception):
    """An error that S3 would answer.

    Attributes:
        status: the status of HTTP.
        code: a code from S3's list of errors.
    """

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.status, self.code = status, code


def object_response(
    request: Request, entry: ObjectFacts, start: int, stop: int, body: Iterator[bytes]
) -> Response:
    """Returns the response to GET or HEAD of an object, with bytes ``start`` to before ``stop``."""
    # a range may be the whole object, and its answer is still one of a part
    partial = (start, stop) != (0, entry.size) or request.headers.get("range", "").startswith(
        f"bytes=0-{entry.size - 1}"
    )
    headers = {
        **entry.headers,
        "ETag": f'"{entry.etag}"',
        "Last-Modified": formatdate(entry.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Length": str(stop - start),
    }
    # a checksum of the whole object would not match a part
    if partial or request.headers.get("x-amz-checksum-mode", "").upper() != "ENABLED":
        headers = {
            name: value for name, value in headers.items() if not name.startswith("x-amz-checksum-")
        }
    headers.setdefault("content-type", "binary/octet-stream")
    # the page has the same origin: an object that a script has stored must not be able to act as
    # the page
    headers |= {
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    if partial:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
    for name in ("content-type", "content-disposition"):
        if f"response-{name}" in request.query_params:
            value = request.query_params[f"response-{name}"]
            if not value.isascii() or not value.isprintable():
                raise S3Error(
                    400, "InvalidArgument", f"response-{name} has letters that a header can't have."
                )
            headers[name] = value
    code = 206 if partial else 200
    if request.method == "HEAD":
        return Response(status_code=code, headers=headers)
    return StreamingResponse(body, code, headers)


LISTING = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "marker", "encoding-type",
     "fetch-owner"}
)  # fmt: skip
HARMLESS = frozenset({"x-id", "partNumber", "AWSAccessKeyId", "Signature", "Expires"})


def group_keys(
    store: ObjectStore, bucket: str, prefix: str, delimiter: str, after: str, limit: int
) -> Iterator[ObjectFacts | str]:
    """Yields objects, and each common prefix of keys with a delimiter after ``prefix`` once."""
    count, group = 0, ""
    while page := store.list(bucket, prefix, after, 1000):
        for entry in page:
            after = entry.key
            if group and entry.key.startswith(group):
                continue
            cut = entry.key.find(delimiter, len(prefix)) if delimiter else -1
            group = entry.key[: cut + len(delimiter)] if cut >= 0 else ""
            yield group or entry
            count += 1
            if count >= limit:
                return
        if group:
            # past all keys of the group at once, however many there are
            after = group + chr(0x10FFFF)


def contents_entry(entry: ObjectFacts, quote: Callable[[str], str]) -> str:
    """Returns an object's entry in a list, as XML."""
    return (
        f"<Contents><Key>{quote(entry.key)}</Key><LastModified>{iso(entry.modified)}</LastModified><ETag>&quot;{entry.etag}&quot;</ETag>"
        f"<Size>{entry.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def query_parameters(request: Request) -> set[str]:
    """Returns a query's parameters without those of the signature and of the answer's headers."""
    return {name for name in request.query_params if not name.startswith(("X-Amz-", "response-"))}


def replaced_etag(request: Request) -> str | None:
    """Returns the ETag of the object that a write is to replace.

    The ETag is empty if there must be no object, and None if there is no condition.
    """
    if request.headers.get("if-none-match") == "*":
        return ""
    wanted = request.headers.get("if-match")
    return wanted.strip('"') if wanted is not None else None


def xml_text(value: str) -> str:
    """Returns a text as XML; characters that XML can't hold are replaced."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "\ufffd", escape(value, {"\r": "&#13;"}))


def object_headers(request: Request) -> dict[str, str]:
    """Returns the headers that belong to an object."""
    # `aws-chunked` is how the body travels, and no property of the object
    found = {k: v for k, v in request.headers.items() if k in _KEPT or k.startswith("x-amz-meta-")}
    encoding = [
        part
        for part in found.pop("content-encoding", "").split(",")
        if part.strip() not in ("", "aws-chunked")
    ]
    return found | ({"content-encoding": ",".join(encoding)} if encoding else {})


def byte_range(header: str | None, size: int) -> tuple[int, int]:
    """Returns the bytes that a Range header asks for, as start and stop; all without one.

    Raises:
        S3Error: the object has no such bytes.
    """
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", header or "")
    if not found or found[0] == "bytes=-":
        return 0, size
    first, last = found[1], found[2]
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= size or start >= stop:
        raise S3Error(416, "InvalidRange", "The requested range is not satisfiable")
    return start, stop


def check_conditions(request: Request, entry: ObjectFacts) -> None:
    """Raises S3Error if the conditions of a request are not met by the object."""
    headers, etag = request.headers, f'"{entry.etag}"'
    if headers.get("if-match", etag) not in (etag, entry.etag, "*"):
        raise S3Error(
            412,
            "PreconditionFailed",
            "At least one of the pre-conditions you specified did not hold.",
        )
    if headers.get("if-none-match") in (etag, entry.etag, "*"):
        raise S3Error(304, "NotModified")
    since = parsedate_tz(headers.get("if-modified-since", ""))
    if since and "if-none-match" not in headers and int(entry.modified) <= mktime_tz(since):
        raise S3Error(304, "NotModified")


def parse_xml(body: bytes) -> ET.Element:
    """Returns the root of a request's body.

    Raises:
        S3Error: it is no XML, or declares a document type.
    """
    # no document types: their entities could grow without bound
    if b"<!" in body:
        raise S3Error(400, "MalformedXML", "The XML you provided was not well-formed.")
    try:
        return ET.fromstring(body)
    except ET.ParseError as error:
        raise S3Error(400, "MalformedXML", "The XML you provided was not well-formed.") from error


def md5_of(path: Path) -> str:
    """Returns the MD5 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def check_allowed(allowed: bool) -> None:
    """Raises S3Error unless the caller is allowed to do what was asked for."""
    if not allowed:
        raise S3Error(403, "AccessDenied", "Access Denied")


def raise_busy() -> NoReturn:
    """Raises S3Error, because the parts of an upload are being joined."""
    raise S3Error(503, "SlowDown", "The parts are being joined.")


def no_bucket() -> S3Error:
    """Returns the error about a bucket that does not exist."""
    return S3Error(404, "NoSuchBucket", "The specified bucket does not exist")


def xml_response(root: str, inside: str) -> Response:
    """Returns an answer in XML, with ``inside`` in an element ``root``."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{_XMLNS}">{inside}</{root}>'
    return Response(text, media_type="application/xml")


def error_response(error: S3Error, request: Request) -> Response:
    """Returns an error in S3's form; answers to HEAD have no body."""
    if request.method == "HEAD" or error.status == 304:
        return Response(status_code=error.status)
    path = xml_text(request.url.path)
    inside = f"<Code>{error.code}</Code><Message>{xml_text(str(error))}</Message><Resource>{path}</Resource>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inside}</Error>'
    return Response(text, error.status, media_type="application/xml")
