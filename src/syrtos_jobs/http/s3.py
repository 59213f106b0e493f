"""The part of S3's protocol that SDKs, channels and scripts use, on top of an `ObjectStore`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.http import bodies
from syrtos_jobs.http.model import iso
from syrtos_jobs.http.s3_form import (
    HARMLESS,
    LISTING,
    S3Error,
    byte_range,
    check_allowed,
    check_conditions,
    contents_entry,
    group_keys,
    md5_of,
    no_bucket,
    object_headers,
    object_response,
    parse_xml,
    query_parameters,
    raise_busy,
    replaced_etag,
    xml_response,
    xml_text,
)
from syrtos_jobs.http.signing import Signed
from syrtos_jobs.storage.objects import ObjectFacts, ObjectStore
from syrtos_jobs.store.home import REGION, try_lock

_LONGEST_KEY = 1024
_TRIES = 5


class S3:
    """Answers requests whose signatures have been checked."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._uploads = store.folder / "uploads"

    async def answer(self, request: Request, signed: Signed) -> Response:
        """Answers a request.

        Raises:
            S3Error: it can't be done, or not by this caller.
        """
        path = urllib.parse.unquote(
            request.scope["raw_path"].decode("ascii").partition("?")[0], errors="strict"
        )
        bucket, _, key = path.lstrip("/").partition("/")
        if len(key.encode()) > _LONGEST_KEY or "\0" in path:
            raise S3Error(400, "KeyTooLongError", "Your key is too long.")
        if not bucket:
            check_allowed(signed.caller.job is None)
            return await self._buckets(request)
        if not key:
            return await self._on_bucket(request, signed, bucket)
        if not await run_in_threadpool(self._store.has_bucket, bucket):
            raise no_bucket()
        return await self._on_object(request, signed, bucket, key)

    # -- buckets -------------------------------------------------------------------------------

    async def _buckets(self, request: Request) -> Response:
        if request.method != "GET":
            raise S3Error(405, "MethodNotAllowed")
        found = await run_in_threadpool(self._store.buckets)
        entries = "".join(
            f"<Bucket><Name>{name}</Name><CreationDate>{iso(created)}</CreationDate></Bucket>"
            for name, created in found
        )
        return xml_response(
            "ListAllMyBucketsResult", f"<Owner><ID>syrtos</ID></Owner><Buckets>{entries}</Buckets>"
        )

    async def _on_bucket(self, request: Request, signed: Signed, bucket: str) -> Response:
        query, method, caller = request.query_params, request.method, signed.caller
        if method == "PUT" and not query_parameters(request):
            check_allowed(caller.job is None)
            await bodies.read_checked(request, signed)
            return await self._make_bucket(bucket)
        if not await run_in_threadpool(self._store.has_bucket, bucket):
            raise no_bucket()
        if method == "HEAD":
            return Response(headers={"x-amz-bucket-region": REGION})
        if method == "POST" and "delete" in query:
            return await self._delete_many(request, signed, bucket)
        if method == "DELETE" and not query_parameters(request):
            check_allowed(caller.job is None)
            return await self._remove_bucket(bucket)
        if method == "GET" and "location" in query:
            return xml_response("LocationConstraint", REGION)
        if method == "GET" and not query_parameters(request) - LISTING:
            check_allowed(caller.may_read(bucket, query.get("prefix", "")))
            return await run_in_threadpool(self._list, bucket, dict(query))
        raise S3Error(
            501, "NotImplemented", f"A bucket's {', '.join(query) or method} is not implemented."
        )

    async def _make_bucket(self, bucket: str) -> Response:
        try:
            made = await run_in_threadpool(self._store.make_bucket, bucket)
        except ConfigurationError as error:
            raise S3Error(400, "InvalidBucketName", str(error)) from error
        if not made:
            raise S3Error(
                409,
                "BucketAlreadyOwnedByYou",
                "Your previous request to create the named bucket succeeded.",
            )
        return Response(headers={"Location": f"/{bucket}"})

    async def _remove_bucket(self, bucket: str) -> Response:
        if await run_in_threadpool(self._store.list, bucket, "", "", 1):
            raise S3Error(409, "BucketNotEmpty", "The bucket you tried to delete is not empty.")
        await run_in_threadpool(self._store.remove_bucket, bucket)
        return Response(status_code=204)

    def _list(self, bucket: str, query: dict[str, str]) -> Response:
        second = query.get("list-type") == "2"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = query.get("max-keys", "1000")
        limit = min(int(most) if most.isdecimal() and len(most) < 10 else 1000, 1000)
        token = query.get("continuation-token")
        after = (
            urllib.parse.unquote(token)
            if token
            else query.get("start-after" if second else "marker", "")
        )
        quote: Callable[[str], str] = (
            urllib.parse.quote if query.get("encoding-type") == "url" else xml_text
        )
        if delimiter and after.endswith(delimiter) and (token or not second):
            # a page ended with this group: the next begins after all of its keys
            after += chr(0x10FFFF)
        found = (
            list(group_keys(self._store, bucket, prefix, delimiter, after, limit + 1))
            if limit
            else []
        )
        page, more = found[:limit], len(found) > limit
        contents = "".join(
            contents_entry(entry, quote) for entry in page if isinstance(entry, ObjectFacts)
        )
        groups = "".join(
            f"<CommonPrefixes><Prefix>{quote(name)}</Prefix></CommonPrefixes>"
            for name in page
            if isinstance(name, str)
        )
        parts = f"<Name>{bucket}</Name><Prefix>{quote(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>"
        parts += f"<Delimiter>{quote(delimiter)}</Delimiter>" if delimiter else ""
        parts += "<EncodingType>url</EncodingType>" if "encoding-type" in query else ""
        parts += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        parts += (
            f"<KeyCount>{len(page)}</KeyCount>" if second else f"<Marker>{quote(after)}</Marker>"
        )
        if more:
            last = page[-1] if isinstance(page[-1], str) else page[-1].key
            tag = "NextContinuationToken" if second else "NextMarker"
            parts += f"<{tag}>{escape(urllib.parse.quote(last)) if second else quote(last)}</{tag}>"
        return xml_response("ListBucketResult", parts + contents + groups)

    async def _delete_many(self, request: Request, signed: Signed, bucket: str) -> Response:
        asked = parse_xml(await bodies.read_checked(request, signed))
        keys = [key.text or "" for key in asked.iterfind("{*}Object/{*}Key")]
        # all or nothing: none is deleted if one of them may not be
        for key in keys:
            check_allowed(signed.caller.may_write(bucket, key))
        for key in keys:
            await run_in_threadpool(self._store.delete, bucket, key)
        quiet = (asked.findtext("{*}Quiet") or "").lower() == "true"
        return xml_response(
            "DeleteResult",
            "".join(f"<Deleted><Key>{xml_text(key)}</Key></Deleted>" for key in keys if not quiet),
        )

    # -- objects -------------------------------------------------------------------------------

    async def _on_object(self, request: Request, signed: Signed, bucket: str, key: str) -> Response:
        query, method, caller = request.query_params, request.method, signed.caller
        check_allowed(
            caller.may_read(bucket, key)
            if method in ("GET", "HEAD")
            else caller.may_write(bucket, key)
        )
        if "uploadId" in query or "uploads" in query:
            return await self._multipart(request, signed, bucket, key)
        unknown = query_parameters(request) - HARMLESS
        if unknown or ("partNumber" in query and method not in ("GET", "HEAD")):
            raise S3Error(
                501, "NotImplemented", f"An object's {', '.join(query)} is not implemented."
            )
        if method in ("GET", "HEAD"):
            return await self._get(request, bucket, key)
        if method == "PUT":
            return await self._put(request, signed, bucket, key)
        if method == "DELETE":
            await run_in_threadpool(self._store.delete, bucket, key)
            return Response(status_code=204)
        raise S3Error(
            405, "MethodNotAllowed", "The specified method is not allowed against this resource."
        )

    async def _get(self, request: Request, bucket: str, key: str) -> Response:
        for _ in range(_TRIES):
            entry = await run_in_threadpool(self._store.head, bucket, key)
            if entry is None:
                raise S3Error(404, "NoSuchKey", "The specified key does not exist.")
            check_conditions(request, entry)
            start, stop = byte_range(request.headers.get("range"), entry.size)
            try:
                body = (
                    iter(())
                    if request.method == "HEAD"
                    else self._store.read(bucket, entry, start, stop)
                )
            except DataError:
                # replaced between the two questions
                continue
            return object_response(request, entry, start, stop, body)
        raise S3Error(503, "SlowDown", "The object is being replaced faster than it can be read.")

    async def _put(self, request: Request, signed: Signed, bucket: str, key: str) -> Response:
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            return await self._copy(request, signed, source, bucket, key)
        path, replaces = self._store.incoming(), replaced_etag(request)
        try:
            etag, checksum = await bodies.save(request, signed, path)
            headers = {**object_headers(request), **checksum}
            await run_in_threadpool(self._store.put, bucket, key, path, etag, headers, replaces)
        finally:
            path.unlink(missing_ok=True)
        return Response(headers={"ETag": f'"{etag}"', **checksum})

    async def _copy(
        self, request: Request, signed: Signed, source: str, bucket: str, key: str
    ) -> Response:
        path, entry = await self._source(request, signed, source)
        replaced = request.headers.get("x-amz-metadata-directive") == "REPLACE"
        headers = object_headers(request) if replaced else entry.headers
        digest = await run_in_threadpool(md5_of, path)
        await run_in_threadpool(self._store.put, bucket, key, path, digest, headers)
        when = f"<LastModified>{iso(time.time())}</LastModified>"
        return xml_response("CopyObjectResult", f"{when}<ETag>&quot;{digest}&quot;</ETag>")

    async def _source(
        self, request: Request, signed: Signed, source: str
    ) -> tuple[Path, ObjectFacts]:
        """Copies the object or part that ``x-amz-copy-source`` names to a new file.

        The result is the file's path and the object.
        """
        name = urllib.parse.unquote(source.partition("?versionId=")[0]).lstrip("/")
        bucket, _, key = name.partition("/")
        check_allowed(signed.caller.may_read(bucket, key))
        entry = await run_in_threadpool(self._store.head, bucket, key)
        if entry is None:
            raise S3Error(404, "NoSuchKey", "The specified key does not exist.")
        start, stop = byte_range(request.headers.get("x-amz-copy-source-range"), entry.size)
        path = self._store.incoming()
        await run_in_threadpool(self._store.fetch, bucket, entry, path, start, stop)
        return path, entry

    # -- uploads in parts ----------------------------------------------------------------------

    async def _multipart(self, request: Request, signed: Signed, bucket: str, key: str) -> Response:
        if "uploads" in request.query_params:
            if request.method != "POST":
                raise S3Error(
                    405,
                    "MethodNotAllowed",
                    "The specified method is not allowed against this resource.",
                )
            return self._begin_upload(request, bucket, key)
        folder = self._upload(request.query_params["uploadId"], bucket, key)
        if request.method == "PUT":
            return await self._put_part(request, signed, folder)
        if request.method == "POST":
            asked = parse_xml(await bodies.read_checked(request, signed))
            return await run_in_threadpool(
                self._complete, folder, asked, bucket, key, replaced_etag(request)
            )
        if request.method == "DELETE":
            await run_in_threadpool(_abort, folder)
            return Response(status_code=204)
        return self._list_parts(folder, bucket, key)

    def _begin_upload(self, request: Request, bucket: str, key: str) -> Response:
        number = secrets.token_hex(16)
        folder = self._uploads / number
        folder.mkdir(parents=True, mode=0o700)
        (folder / "upload.json").write_text(
            json.dumps({"bucket": bucket, "key": key, "headers": object_headers(request)})
        )
        where = f"<Bucket>{bucket}</Bucket><Key>{xml_text(key)}</Key>"
        return xml_response(
            "InitiateMultipartUploadResult", f"{where}<UploadId>{number}</UploadId>"
        )

    def _upload(self, number: str, bucket: str, key: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{32}", number):
            raise _no_such_upload()
        folder = self._uploads / number
        facts = _facts_of(folder)
        if (facts["bucket"], facts["key"]) != (bucket, key):
            raise _no_such_upload()
        return folder

    async def _put_part(self, request: Request, signed: Signed, folder: Path) -> Response:
        number = request.query_params.get("partNumber", "")
        if not number.isdecimal() or len(number) > 5 or not 1 <= int(number) <= 10_000:
            raise S3Error(
                400,
                "InvalidArgument",
                "Part number must be an integer between 1 and 10000, inclusive",
            )
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            path, _ = await self._source(request, signed, source)
            etag = await run_in_threadpool(md5_of, path)
        else:
            path = self._store.incoming()
            try:
                etag, _ = await bodies.save(request, signed, path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        # a part may be sent again, also with other bytes: the last one counts
        for old in folder.glob(f"{int(number):05}-*"):
            old.unlink()
        try:
            path.rename(folder / f"{int(number):05}-{etag}")
        except FileNotFoundError as error:  # the upload was aborted meanwhile
            path.unlink(missing_ok=True)
            raise _no_such_upload() from error
        if source is not None:
            when = f"<LastModified>{iso(time.time())}</LastModified>"
            return xml_response("CopyPartResult", f"{when}<ETag>&quot;{etag}&quot;</ETag>")
        return Response(headers={"ETag": f'"{etag}"'})

    def _complete(
        self, folder: Path, asked: ET.Element, bucket: str, key: str, replaces: str | None
    ) -> Response:
        """Joins the parts."""
        with _joining(folder):
            # a client that has lost the answer may repeat the request, and gets the same answer
            done = folder / "done.json"
            if not done.exists():
                etag = self._join(folder, asked, bucket, key, replaces)
                done.write_text(json.dumps(etag))
                for part in folder.glob("?????-*"):
                    part.unlink()
            etag = json.loads(done.read_text())
        where = f"<Location>/{bucket}/{xml_text(key)}</Location><Bucket>{bucket}</Bucket><Key>{xml_text(key)}</Key>"
        return xml_response(
            "CompleteMultipartUploadResult", f"{where}<ETag>&quot;{etag}&quot;</ETag>"
        )

    def _join(
        self, folder: Path, asked: ET.Element, bucket: str, key: str, replaces: str | None
    ) -> str:
        wanted = []
        for part in asked.iterfind("{*}Part"):
            number, etag = (
                part.findtext("{*}PartNumber") or "",
                (part.findtext("{*}ETag") or "").strip('"'),
            )
            path = folder / f"{int(number) if number.isdecimal() else 0:05}-{etag}"
            if not re.fullmatch("[0-9a-f]{32}", etag) or not path.is_file():
                raise S3Error(
                    400, "InvalidPart", "One or more of the specified parts could not be found."
                )
            wanted.append(path)
        if not wanted or wanted != sorted(set(wanted)):
            raise S3Error(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        joined = self._store.incoming()
        with joined.open("wb") as file:
            for path in wanted:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
        digests = b"".join(bytes.fromhex(path.name[6:]) for path in wanted)
        etag = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(wanted)}"
        self._store.put(bucket, key, joined, etag, _facts_of(folder)["headers"], replaces)
        return etag

    def _list_parts(self, folder: Path, bucket: str, key: str) -> Response:
        parts = "".join(
            f"<Part><PartNumber>{int(path.name[:5])}</PartNumber><ETag>&quot;{path.name[6:]}&quot;</ETag><Size>{path.stat().st_size}</Size></Part>"
            for path in sorted(folder.glob("?????-*"))
        )
        where = (
            f"<Bucket>{bucket}</Bucket><Key>{xml_text(key)}</Key><UploadId>{folder.name}</UploadId>"
        )
        return xml_response("ListPartsResult", f"{where}<IsTruncated>false</IsTruncated>{parts}")


def _no_such_upload() -> S3Error:
    return S3Error(404, "NoSuchUpload", "The specified multipart upload does not exist.")


def _facts_of(folder: Path) -> dict[str, Any]:
    """Returns what an upload in parts was begun with.

    Raises:
        S3Error: there is none.
    """
    try:
        return json.loads((folder / "upload.json").read_text())
    except FileNotFoundError as error:
        raise _no_such_upload() from error


@contextlib.contextmanager
def _joining(folder: Path) -> Iterator[None]:
    """Context manager: nobody else completes or aborts an upload meanwhile.

    Raises:
        S3Error: it was aborted, or another request does so now.
    """
    try:
        lock = try_lock(folder / "joining") or raise_busy()
    except FileNotFoundError as error:
        raise _no_such_upload() from error
    with contextlib.closing(lock):
        _facts_of(folder)
        yield


def _abort(folder: Path) -> None:
    """Removes the parts of an upload that was not completed.

    Raises:
        S3Error: it was, or another request completes or aborts it now.
    """
    with _joining(folder):
        if (folder / "done.json").exists():
            raise _no_such_upload()
        # at once, so that no request finds a part of it
        gone = folder.rename(folder.with_name(f"{folder.name}.aborted"))
    shutil.rmtree(gone, ignore_errors=True)
