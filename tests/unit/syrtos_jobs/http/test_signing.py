"""What botocore signs is accepted; what was changed afterwards is not."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import urllib.parse
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from syrtos_jobs.credentials import Caller
from syrtos_jobs.http import signing
from syrtos_jobs.http.signing import Signed, UnsignedRequest, check, service_of

ACCESS, SECRET = "SYRTAAAABBBBCCCC", "a secret of the owner"
_DATE = "%Y%m%dT%H%M%SZ"


@dataclasses.dataclass(frozen=True)
class Sent:
    """A request on its way."""

    method: str
    url: str
    headers: dict[str, str]
    payload: str

    def checked(self, secret: str = SECRET, now: datetime.datetime | None = None) -> Signed:
        def who(access_key: str) -> Caller | None:
            return Caller(secret, None) if access_key == ACCESS else None

        now = now or datetime.datetime.now(datetime.UTC)
        return check(self.method, self.url, self.headers, self.payload, who, now)

    def but(self, **changes: Any) -> Sent:
        return dataclasses.replace(self, **changes)

    def with_header(self, name: str, value: str) -> Sent:
        return self.but(headers={**self.headers, name: value})


def sent(service: str, method: str, url: str, headers: dict[str, str], body: bytes) -> Sent:
    request = AWSRequest(
        method=method, url="http://127.0.0.1:9470" + url, data=body, headers=headers
    )
    request.headers["host"] = "127.0.0.1:9470"
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    kind(Credentials(ACCESS, SECRET), service, "us-west-2").add_auth(request)
    found = {name.lower(): value for name, value in request.headers.items()}
    return Sent(method, url, found, hashlib.sha256(body).hexdigest())


def presigned(life: int = 60, url: str = "/bucket/key?versionId=1") -> Sent:
    request = AWSRequest(method="GET", url="http://127.0.0.1:9470" + url)
    S3SigV4QueryAuth(Credentials(ACCESS, SECRET), "s3", "us-west-2", expires=life).add_auth(request)
    return Sent(
        "GET",
        str(request.url).removeprefix("http://127.0.0.1:9470"),
        {"host": "127.0.0.1:9470"},
        signing.UNSIGNED,
    )


_NAMES = st.text("abcdefghij-", min_size=1, max_size=8).filter(
    lambda name: not name.startswith("-")
)
_VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)
_KEYS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    service = draw(st.sampled_from(["sagemaker", "logs", "sts", "s3"]))
    method = draw(st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD"]))
    path = "/" + "/".join(
        urllib.parse.quote(part, safe="~")
        for part in draw(st.lists(_KEYS.filter(bool), max_size=3))
    )
    if service != "s3":
        path = "/"
    pairs = draw(st.lists(st.tuples(_NAMES, _KEYS), max_size=3, unique_by=lambda pair: pair[0]))
    query = urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote, safe="~")
    headers = draw(
        st.dictionaries(_NAMES.map(lambda name: f"x-amz-meta-{name}"), _VALUES, max_size=3)
    )
    headers["x-amz-target"] = "SageMaker.ListTrainingJobs"
    return sent(
        service, method, f"{path}?{query}" if query else path, headers, draw(st.binary(max_size=20))
    )


@given(requests())
def test_what_was_signed_is_accepted(request: Sent) -> None:
    signed = request.checked()
    assert signed.caller == Caller(SECRET, None)
    assert signed.service == service_of(request.url, request.headers)
    assert signed.payload == request.payload


def refused(request: Sent, **how: Any) -> str:
    with pytest.raises(UnsignedRequest) as error:
        request.checked(**how)
    return error.value.code


@given(requests(), st.data())
def test_what_was_changed_is_refused(request: Sent, data: st.DataObject) -> None:
    path, mark, query = request.url.partition("?")
    credential = request.headers["authorization"]
    service = service_of(request.url, request.headers)
    other = "logs" if service == "sagemaker" else "sagemaker"
    signed = [
        name
        for name in request.headers
        if name.startswith("x-amz-meta-") or name in ("host", "x-amz-target")
    ]
    name = data.draw(st.sampled_from(signed))
    later = datetime.datetime.strptime(request.headers["x-amz-date"], _DATE) + datetime.timedelta(
        seconds=7
    )
    changed = {
        "method": request.but(method="PATCH"),
        "path": request.but(url=f"{path}x{mark}{query}"),
        "query": request.but(url=f"{request.url}{'&' if mark else '?'}added=1"),
        "header": request.with_header(name, request.headers[name] + "x"),
        "no header": request.but(
            headers={k: v for k, v in request.headers.items() if k != name} | {name: "\u00e9"}
        ),
        "payload": request.but(payload=hashlib.sha256(b"another").hexdigest()),
        "unsigned": request.but(payload=signing.UNSIGNED),
        "service": request.with_header(
            "authorization", credential.replace(f"/{service}/", f"/{other}/")
        ),
        "region": request.with_header(
            "authorization", credential.replace("/us-west-2/", "/us-east-1/")
        ),
        "date": request.with_header("x-amz-date", later.strftime(_DATE)),
    }
    for what, one in changed.items():
        assert refused(one) == "SignatureDoesNotMatch", what
    assert refused(request, secret=SECRET + "x") == "SignatureDoesNotMatch"
    flipped = credential[:-1] + ("0" if credential[-1] != "0" else "1")
    assert refused(request.with_header("authorization", flipped)) == "SignatureDoesNotMatch"


def test_an_x_amz_header_that_was_added_is_refused() -> None:
    """As S3 does ("There were headers present in the request which were not signed"): it could turn a PUT into a copy."""
    request = sent("s3", "PUT", "/bucket/key", {}, b"content")
    request.checked()
    refused(request.with_header("x-amz-copy-source", "/bucket/secret"))
    refused(presigned().with_header("x-amz-copy-source", "/bucket/secret"))


@pytest.mark.parametrize(
    ("minutes", "accepted"), [(-16, False), (-14, True), (14, True), (16, False), (60 * 24, False)]
)
def test_a_quarter_of_an_hour(minutes: int, accepted: bool) -> None:
    request = sent("sagemaker", "POST", "/", {}, b"{}")
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    if accepted:
        request.checked(now=now)
    else:
        assert refused(request, now=now) == "RequestTimeTooSkewed"


def test_nobody_and_nothing() -> None:
    request = sent("sagemaker", "POST", "/", {}, b"{}")
    assert refused(request.but(headers={"host": "x"})) == "MissingAuthenticationToken"
    given_by = request.headers["authorization"]
    assert (
        refused(request.with_header("authorization", given_by.replace(ACCESS, "SOMEBODY")))
        == "InvalidClientTokenId"
    )
    for wrong in (
        "Basic abc",
        "AWS4-HMAC-SHA256",
        given_by[:-1],
        given_by.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256"),
        " , ",
    ):
        assert refused(request.with_header("authorization", wrong)) == "IncompleteSignature"
    assert (
        refused(request.with_header("authorization", given_by.replace("aws4_request", "aws3")))
        == "IncompleteSignature"
    )
    assert (
        refused(request.with_header("authorization", given_by.replace("host;", "")))
        == "IncompleteSignature"
    )
    for wrong in ("", "yesterday", "2026-01-01T00:00:00Z", "20269901T000000Z"):
        assert refused(request.with_header("x-amz-date", wrong)) == "IncompleteSignature"


def test_presigned_urls() -> None:
    request = presigned(60)
    assert request.checked().payload == signing.UNSIGNED
    assert service_of(request.url, {}) == "s3"
    later = datetime.timedelta(seconds=62)
    assert refused(request, now=datetime.datetime.now(datetime.UTC) + later) == "AccessDenied"
    assert (
        refused(request, now=datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=16))
        == "AccessDenied"
    )
    assert (
        refused(request.but(url=request.url.replace("Expires=60", "Expires=600")))
        == "SignatureDoesNotMatch"
    )
    assert (
        refused(request.but(url=request.url.replace("/key", "/other"))) == "SignatureDoesNotMatch"
    )
    assert (
        refused(request.but(url=request.url.replace("versionId=1", "versionId=2")))
        == "SignatureDoesNotMatch"
    )
    assert refused(request.but(url=request.url + "&x=1")) == "SignatureDoesNotMatch"
    assert refused(request.but(method="PUT")) == "SignatureDoesNotMatch"
    assert refused(request.with_header("host", "other")) == "SignatureDoesNotMatch"
    assert refused(request, secret="x") == "SignatureDoesNotMatch"


@pytest.mark.parametrize("life", ["0", "-1", "604801", "x", "", "\u00b2", "9" * 5000, "1.5"])
def test_lives_that_no_url_has(life: str) -> None:
    request = presigned(60)
    url = request.url.replace("X-Amz-Expires=60", f"X-Amz-Expires={urllib.parse.quote(life)}")
    refused(
        request.but(url=url),
        now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1),
    )


def test_chunks_are_a_chain() -> None:
    request = sent("s3", "PUT", "/bucket/key", {}, b"")
    signatures = []
    for secret in (SECRET, SECRET):
        chunks = request.checked(secret).chunks
        with pytest.raises(UnsignedRequest):
            chunks.check("0" * 64, b"first")
        signatures.append(_signature_of(chunks, b"first"))
    assert signatures[0] == signatures[1]
    chunks = request.checked().chunks
    chunks.check(signatures[0], b"first")
    with pytest.raises(UnsignedRequest, match="part of the body"):
        chunks.check(signatures[0], b"first")  # each counts once
    fresh = request.checked().chunks
    with pytest.raises(UnsignedRequest):
        fresh.check(signatures[0], b"First")


def _signature_of(chunks: signing.Chunks, data: bytes) -> str:
    """By AWS's description of chunked uploads."""
    request = AWSRequest(method="PUT", url="http://x/")
    request.context["timestamp"] = chunks.timestamp
    empty = hashlib.sha256(b"").hexdigest()
    scope = chunks.signer.credential_scope(request)
    lines = [
        "AWS4-HMAC-SHA256-PAYLOAD",
        chunks.timestamp,
        scope,
        chunks.previous,
        empty,
        hashlib.sha256(data).hexdigest(),
    ]
    return str(chunks.signer.signature("\n".join(lines), request))
