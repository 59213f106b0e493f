"""The check of Signature Version 4 with botocore's own signer.

The signature proves the sender of a request, and that the request was not changed. The protocol is
that of AWS's reference "Authenticating Requests (AWS Signature Version 4)"; chunked bodies follow
"Signature calculations for the authorization header: transferring payload in multiple chunks".
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Callable, Mapping

from botocore.auth import HmacV1Auth, S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from syrtos_jobs.credentials import Caller
from syrtos_jobs.store.home import REGION

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256"
    r" Credential=(?P<credential>[^,\s]+),\s*SignedHeaders=(?P<headers>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_SKEW = 15 * 60
_LONGEST_LIFE = 7 * 24 * 3600
UNSIGNED = "UNSIGNED-PAYLOAD"
_VERSION_2 = frozenset({"AWSAccessKeyId", "Signature", "Expires"})
STREAMED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
STREAMED_WITH_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
STREAMS = (STREAMED, STREAMED_WITH_TRAILER, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")


class UnsignedRequest(Exception):
    """A request without a signature, or with a wrong one.

    Attributes:
        code: one of AWS's common errors.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Signed:
    """A request whose signature is right.

    Attributes:
        caller: the signer.
        service: the service that it was signed for.
        payload: its statement about the body: a SHA-256 in hex, or one of the constants of this
            module.
        chunks: checks the signatures of a body that comes in signed pieces.
    """

    caller: Caller
    service: str
    payload: str
    chunks: Chunks


@dataclasses.dataclass
class Chunks:
    """The chain of signatures of a chunked body."""

    signer: SigV4Auth
    timestamp: str
    previous: str

    def check(self, signature: str, data: bytes) -> None:
        """Checks the signature of the next piece.

        Raises:
            UnsignedRequest: the piece was not sent by the sender of the headers.
        """
        # botocore's signer wants a request, of which only the time counts here
        request = AWSRequest(method="PUT", url="http://chunk/")
        request.context["timestamp"] = self.timestamp
        text = "\n".join(
            ["AWS4-HMAC-SHA256-PAYLOAD", self.timestamp, self.signer.credential_scope(request), self.previous,
             hashlib.sha256(b"").hexdigest(), hashlib.sha256(data).hexdigest()]
        )  # fmt: skip
        expected = str(self.signer.signature(text, request))
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise UnsignedRequest(
                "SignatureDoesNotMatch", "The signature of a part of the body does not match."
            )
        self.previous = signature


def service_of(url: str, headers: Mapping[str, str]) -> str:
    """Returns the service that a request claims to be for; empty if it has no signature."""
    query = dict(urllib.parse.parse_qsl(url.partition("?")[2]))
    found = re.search(r"Credential=([^,\s]+)", headers.get("authorization", ""))
    if set(query) >= _VERSION_2:
        return "s3"
    parts = (found[1] if found else query.get("X-Amz-Credential", "")).split("/")
    return parts[3] if len(parts) == 5 else ""


def claimed_key(headers: Mapping[str, str]) -> str:
    """Returns the access key that the header of the signature names; empty without one."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", "").strip())
    return found["credential"].partition("/")[0] if found else ""


def check(
    method: str,
    url: str,
    headers: Mapping[str, str],
    payload: str,
    who: Callable[[str], Caller | None],
    now: datetime.datetime,
) -> Signed:
    """Checks a request's signature, which is in its header, or in its query (a presigned URL).

    Args:
        url: path and query exactly as they were sent.
        headers: by lower-case name.
        payload: the SHA-256 of the body in hex, computed or stated by a header.
        who: finds the owner of an access key.

    Raises:
        UnsignedRequest: the signature is missing, wrong or too old, or its key has no owner.
    """
    path, _, query = url.partition("?")
    asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    if headers.get("authorization") and ("X-Amz-Signature" in asked or set(asked) >= _VERSION_2):
        raise UnsignedRequest(
            "InvalidRequest", "Only one way of signing is allowed: by a header, or in the query."
        )
    if set(asked) >= _VERSION_2:
        return _check_version_2(method, path, asked, who, now)
    if "X-Amz-Signature" in asked:
        return _check_query(method, path, query, asked, headers, who, now)
    given = headers.get("authorization", "")
    if not given:
        raise UnsignedRequest(
            "MissingAuthenticationToken", "Request is missing Authentication Token."
        )
    found = _AUTHORIZATION.fullmatch(given.strip())
    if found is None:
        raise UnsignedRequest(
            "IncompleteSignature", "The Authorization header is not one of Signature Version 4."
        )
    timestamp = headers.get("x-amz-date", "")
    moment = _moment(timestamp)
    # a request that someone has recorded is of use for as long only
    if abs((now - moment).total_seconds()) > _SKEW:
        raise UnsignedRequest(
            "RequestTimeTooSkewed",
            f"Signature not yet current or expired: it is of {timestamp}, and now is"
            f" {now:%Y%m%dT%H%M%SZ}.",
        )
    return _verify(
        method,
        url,
        headers,
        who,
        found["credential"],
        found["headers"],
        found["signature"],
        timestamp,
        payload,
    )


def _check_version_2(
    method: str,
    path: str,
    asked: Mapping[str, str],
    who: Callable[[str], Caller | None],
    now: datetime.datetime,
) -> Signed:
    """Checks a link to read an object."""
    # boto3 signs links by version 2 unless it is told otherwise: an HMAC over verb, time and path
    life = asked["Expires"]
    left = int(life) - now.timestamp() if life.isdecimal() and len(life) < 12 else -1
    if method not in ("GET", "HEAD") or not 0 < left <= _LONGEST_LIFE or set(asked) != _VERSION_2:
        raise UnsignedRequest(
            "AccessDenied", "Request has expired, or is not one that a link may make."
        )
    caller = who(asked["AWSAccessKeyId"])
    if caller is None:
        raise UnsignedRequest(
            "InvalidClientTokenId",
            "The AWS Access Key Id you provided does not exist in our records.",
        )
    credentials = Credentials(asked["AWSAccessKeyId"], caller.secret)
    expected = HmacV1Auth(credentials).sign_string(f"{method}\n\n\n{life}\n{path}")
    if not hmac.compare_digest(expected.encode(), asked["Signature"].encode()):
        raise UnsignedRequest(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided.",
        )
    return Signed(caller, "s3", UNSIGNED, Chunks(S3SigV4Auth(credentials, "s3", REGION), "", ""))


def _check_query(
    method: str,
    path: str,
    query: str,
    asked: Mapping[str, str],
    headers: Mapping[str, str],
    who: Callable[[str], Caller | None],
    now: datetime.datetime,
) -> Signed:
    timestamp, life = asked.get("X-Amz-Date", ""), asked.get("X-Amz-Expires", "")
    age = (now - _moment(timestamp)).total_seconds()
    of_s3 = asked.get("X-Amz-Credential", "").split("/")[3:4] == ["s3"]
    lasts = int(life) if life.isdecimal() and len(life) < 8 else 0
    if not of_s3 or not 0 < lasts <= _LONGEST_LIFE or not -_SKEW < age <= lasts:
        raise UnsignedRequest("AccessDenied", "Request has expired.")
    # the signature covers the query as it was sent, without itself
    rest = "&".join(part for part in query.split("&") if not part.startswith("X-Amz-Signature="))
    needed = (
        asked.get("X-Amz-Credential", ""),
        asked.get("X-Amz-SignedHeaders", ""),
        asked["X-Amz-Signature"],
    )
    return _verify(method, f"{path}?{rest}", headers, who, *needed, timestamp, UNSIGNED)


def _verify(
    method: str,
    url: str,
    headers: Mapping[str, str],
    who: Callable[[str], Caller | None],
    credential: str,
    names: str,
    signature: str,
    timestamp: str,
    payload: str,
) -> Signed:
    loose = [
        n
        for n in headers
        if n.startswith("x-amz-") and n not in names.split(";") and n != "x-amz-content-sha256"
    ]
    # else the holder of a link could request other things with it, e.g. copy another object
    if loose:
        raise UnsignedRequest(
            "AccessDenied",
            f"There were headers present in the request which were not signed: {', '.join(loose)}.",
        )
    access_key, _, scope = credential.partition("/")
    parts = scope.split("/")
    if len(parts) != 4 or parts[3] != "aws4_request" or parts[0] != timestamp[:8]:
        raise UnsignedRequest(
            "IncompleteSignature", "The credential scope must be date/region/service/aws4_request."
        )
    caller = who(access_key)
    if caller is None:
        raise UnsignedRequest(
            "InvalidClientTokenId", "The security token included in the request is invalid."
        )
    _, region, service, _ = parts
    signed = names.split(";")
    if "host" not in signed:
        raise UnsignedRequest("IncompleteSignature", "The header host must be signed.")
    # S3 signs paths as they are, the other services normalize them
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    signer = kind(Credentials(access_key, caller.secret), service, region)
    request = AWSRequest(method=method, url="http://" + headers.get("host", "") + url)
    for name in signed:
        request.headers[name] = headers.get(name, "")
    request.context["timestamp"] = timestamp
    canonical = _canonical(signer, request, signed, payload)
    expected = str(signer.signature(signer.string_to_sign(request, canonical), request))
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise UnsignedRequest(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. Check"
            " your AWS Secret Access Key and signing method.",
        )
    return Signed(caller, service, payload, Chunks(signer, timestamp, signature))


def _canonical(signer: SigV4Auth, request: AWSRequest, signed: list[str], payload: str) -> str:
    """Returns the canonical request over exactly the headers that the sender has signed."""
    path = urllib.parse.urlsplit(request.url).path
    headers = request.headers
    return "\n".join(
        [str(request.method), str(signer._normalize_url_path(path)), signer.canonical_query_string(request),
         signer.canonical_headers(headers) + "\n", ";".join(signed), payload]
    )  # fmt: skip


def _moment(timestamp: str) -> datetime.datetime:
    try:
        return datetime.datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    except ValueError as error:
        raise UnsignedRequest(
            "IncompleteSignature", "The header X-Amz-Date must be a time such as 20260101T120000Z."
        ) from error
