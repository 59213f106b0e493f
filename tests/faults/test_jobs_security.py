"""The service against those who mean no good: one test for each way in."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import datetime
import errno
import hashlib
import http.client
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from syrtos.errors import ConfigurationError
from syrtos_jobs.credentials import job_secret
from syrtos_jobs.http import bodies
from syrtos_jobs.http import server as server_module
from syrtos_jobs.http.page import token
from syrtos_jobs.http.server import Server
from syrtos_jobs.requests import states
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record
from syrtos_jobs.store.reserve import Reserve

Answer = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def serving(folder: Path, **facts: Any) -> Iterator[Server]:
    found = Server(Home(folder), capacity=1, **facts)
    found.start()
    try:
        yield found
    finally:
        for record in found.service.store.active():
            found.service.stop_training_job({"TrainingJobName": record.name})
        wait_until(lambda: not found.service.store.active())
        found.close()


def wait_until(true: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert true()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("service") / "home") as found:
        found.service.objects.make_bucket("bucket")
        yield found


def owner(server: Server) -> Credentials:
    return Credentials(*server.service.home.keys())


def host(server: Server) -> str:
    return urllib.parse.urlsplit(server.url).netloc


def signed(
    server: Server, service: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
    keys: Credentials | None = None,
) -> dict[str, str]:  # fmt: skip
    """Headers of a request as an SDK would send it."""
    request = AWSRequest(
        method=method,
        url=server.url + path,
        data=body,
        headers={"host": host(server), **(headers or {})},
    )
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    kind(keys or owner(server), service, "us-west-2").add_auth(request)
    return dict(request.headers.items())


def send(
    server: Server, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> Answer:
    connection = http.client.HTTPConnection(host(server), timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {
        "content-length": str(len(body)),
        "host": host(server),
        **lower(headers),
    }.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, lower(dict(answer.getheaders())), answer.read()
    connection.close()
    return found


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def operate(
    server: Server,
    name: str,
    request: Any,
    keys: Credentials | None = None,
    service: str = "sagemaker",
) -> Answer:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    prefix = {"sagemaker": "SageMaker", "logs": "Logs_20140328"}[service]
    facts = {"x-amz-target": f"{prefix}.{name}", "content-type": "application/x-amz-json-1.1"}
    return send(server, "POST", "/", signed(server, service, "POST", "/", body, facts, keys), body)


def s3(
    server: Server, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
    keys: Credentials | None = None,
) -> Answer:  # fmt: skip
    return send(server, method, path, signed(server, "s3", method, path, body, headers, keys), body)


def cookie_of(server: Server) -> dict[str, str]:
    """What a browser sends that has been let in."""
    text = send(server, "GET", f"/?token={token(server.service.home)}", {})[1]["set-cookie"]
    return {"cookie": text.partition(";")[0]}


def works(server: Server) -> bool:
    return operate(server, "ListTrainingJobs", {})[0] == 200


def job(name: str, script: str = "true", **facts: Any) -> dict[str, Any]:
    """CreateTrainingJob's parameters, for a command of the shell."""
    algorithm = {
        "TrainingInputMode": "File",
        "TrainingImage": "x",
        "ContainerEntrypoint": ["/bin/sh", "-c", script],
    }
    return {
        "TrainingJobName": name,
        "AlgorithmSpecification": algorithm,
        "RoleArn": "arn:aws:iam::000000000000:role/anyone",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **facts,
    }


def channel(uri: str, name: str = "data", kind: str = "S3Prefix") -> dict[str, Any]:
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": kind, "S3Uri": uri}}}


def run(server: Server, request: dict[str, Any]) -> Record:
    """A job, at its end."""
    status, _, text = operate(server, "CreateTrainingJob", request)
    assert status == 200, text
    return ended(server, request["TrainingJobName"])


def ended(server: Server, name: str) -> Record:
    def found() -> Record:
        record = server.service.store.get(name)
        assert record is not None
        return record

    wait_until(lambda: found().state.final)
    return found()


def printed(server: Server, name: str) -> str:
    folder = server.service.home.job(name) / "logs"
    return "\n".join(
        json.loads(line)["m"] for path in folder.glob("*.jsonl") for line in path.open()
    )


def waiting(server: Server, name: str, **facts: Any) -> tuple[Record, Credentials]:
    """A job that waits for more workers than there are, and what its script would sign with."""
    key = f"SYRJ{name.upper()}"
    request = job(name, **facts)
    record = Record(
        name=name, request=request, tags={}, state=states.initial_state(time.time()), created=time.time(), modified=time.time(),
        slots=99, spot=False, access_key=key,
    )  # fmt: skip
    assert server.service.store.add(record)
    return record, Credentials(key, job_secret(server.service.home, key))


def end(server: Server, name: str) -> None:
    server.service.store.change(
        name, lambda record: None if record.state.final else record.with_transition("Stopped")
    )


# -- signatures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/bucket"),
        ("GET", "/bucket/key"),
        ("PUT", "/bucket/key"),
        ("POST", "/x"),
        ("DELETE", "/bucket"),
        ("PUT", "/"),
    ],
)
def test_without_a_signature(server: Server, method: str, path: str) -> None:
    target = {"x-amz-target": "SageMaker.ListTrainingJobs"}
    assert send(server, method, path, {}, b"{}")[0] == 403
    assert send(server, method, path, target, b"{}")[0] == 403
    assert send(
        server,
        method,
        path,
        {"authorization": "AWS4-HMAC-SHA256 Credential=a/b/c/sagemaker/aws4_request"},
    )[0] in (400, 403)


def test_a_wrong_secret(server: Server) -> None:
    access, secret = server.service.home.keys()
    for keys in (
        Credentials(access, secret + "x"),
        Credentials(access, ""),
        Credentials("AKIASOMEBODY", secret),
    ):
        assert operate(server, "ListTrainingJobs", {}, keys)[0] == 403
        assert s3(server, "GET", "/bucket", keys=keys)[0] == 403
    assert works(server)


def test_a_body_that_was_changed(server: Server) -> None:
    body = b'{"MaxResults": 1}'
    headers = signed(
        server, "sagemaker", "POST", "/", body, {"x-amz-target": "SageMaker.ListTrainingJobs"}
    )
    assert send(server, "POST", "/", headers, b'{"MaxResults": 2}')[0] == 403
    assert send(server, "POST", "/", headers, body)[0] == 200
    headers = signed(server, "s3", "PUT", "/bucket/forged", b"what was signed")
    assert send(server, "PUT", "/bucket/forged", headers, b"something other")[0] == 400
    assert s3(server, "HEAD", "/bucket/forged")[0] == 404


def test_a_list_of_deletions_that_was_changed(server: Server) -> None:
    for key in ("keep", "gone"):
        assert s3(server, "PUT", f"/bucket/{key}", b"x")[0] == 200
    body = b"<Delete><Object><Key>gone</Key></Object></Delete>"
    headers = signed(server, "s3", "POST", "/bucket?delete=", body)
    status, _, _ = send(server, "POST", "/bucket?delete=", headers, body.replace(b"gone", b"keep"))
    assert status in (400, 403)
    assert s3(server, "HEAD", "/bucket/keep")[0] == 200
    assert send(server, "POST", "/bucket?delete=", headers, body)[0] == 200
    assert s3(server, "HEAD", "/bucket/gone")[0] == 404


def test_parts_that_were_changed(server: Server) -> None:
    answer = s3(server, "POST", "/bucket/parts?uploads=")[2].decode()
    upload = answer.partition("<UploadId>")[2].partition("<")[0]
    etags = [
        s3(server, "PUT", f"/bucket/parts?partNumber={k}&uploadId={upload}", b"%d" % k)[1]["etag"]
        for k in (1, 2)
    ]
    body = "".join(
        f"<Part><PartNumber>{k}</PartNumber><ETag>{etag}</ETag></Part>"
        for k, etag in enumerate(etags, 1)
    )
    whole = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode()
    path = f"/bucket/parts?uploadId={upload}"
    headers = signed(server, "s3", "POST", path, whole)
    shorter = f"<CompleteMultipartUpload>{body.partition('</Part>')[0]}</Part></CompleteMultipartUpload>".encode()
    assert send(server, "POST", path, headers, shorter)[0] in (400, 403)
    assert s3(server, "HEAD", "/bucket/parts")[0] == 404
    assert send(server, "POST", path, headers, whole)[0] == 200
    assert s3(server, "GET", "/bucket/parts")[2] == b"12"


@pytest.mark.parametrize("seed", range(3))
def test_an_upload_is_completed_or_aborted_and_never_both(server: Server, seed: int) -> None:
    key = f"/bucket/race-{seed}"
    answer = s3(server, "POST", f"{key}?uploads=")[2].decode()
    path = f"{key}?uploadId={answer.partition('<UploadId>')[2].partition('<')[0]}"
    etag = s3(server, "PUT", f"{path}&partNumber=1", b"x" * 500_000)[1]["etag"]
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    whole = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
    asked = [("POST", whole), ("DELETE", b""), ("POST", whole), ("DELETE", b""), ("POST", whole)]
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        found = [
            threads.submit(s3, server, *one)
            for one in [(method, path, body) for method, body in asked[seed:] + asked[:seed]]
        ]
        codes = [(each.result()[0]) for each in found]
    methods = [method for method, _ in asked[seed:] + asked[:seed]]
    assert set(codes) <= {200, 204, 404, 503}, codes
    is_there = s3(server, "HEAD", key)[0] == 200
    assert is_there == any(code == 200 for code in codes), list(zip(methods, codes, strict=True))
    assert not (is_there and 204 in codes), list(zip(methods, codes, strict=True))


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_request_of_another_time(
    server: Server, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    then = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(
        minutes=minutes
    )
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: then)
    status, _, text = operate(server, "ListTrainingJobs", {})
    assert (
        status,
        json.loads(text)["__type"] in ("RequestTimeTooSkewed", "InvalidSignatureException"),
    ) == (403, True)
    assert s3(server, "GET", "/bucket")[0] == 403


def test_a_request_sent_again_to_another_service(server: Server) -> None:
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    target = {"x-amz-target": "SageMaker.ListTrainingJobs"}
    headers = lower(signed(server, "sts", "POST", "/", body, target))
    assert send(server, "POST", "/", headers, body)[0] == 200
    for service in ("sagemaker", "logs", "monitoring", "s3", "iam", "ec2"):
        moved = {
            **headers,
            "authorization": headers["authorization"].replace("/sts/", f"/{service}/"),
        }
        assert send(server, "POST", "/", moved, body)[0] == 403
    assert operate(server, "DescribeLogGroups", {}, service="logs")[0] == 200
    status, _, _ = send(
        server, "POST", "/", signed(server, "logs", "POST", "/", b"{}", target), b"{}"
    )
    assert status == 400


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("with_header", [True, False])
def test_a_link_to_an_object_is_no_key_to_anything_else(
    server: Server, method: str, with_header: bool
) -> None:
    """What is signed for one service, in the query, can't be sent to another by a header that nobody has checked."""
    request = AWSRequest("GET", f"{server.url}/bucket/public")
    S3SigV4QueryAuth(owner(server), "s3", "us-west-2", expires=600).add_auth(request)
    path = str(request.url).removeprefix(server.url)
    headers = {
        "x-amz-target": "SageMaker.ListTrainingJobs",
        "content-type": "application/x-amz-json-1.1",
    }
    if with_header:
        headers["authorization"] = "x Credential=a/b/c/sagemaker/d"
    status, _, body = send(server, method, path, headers, b"{}")
    assert status in (400, 403)
    assert b"TrainingJobSummaries" not in body


def test_headers_that_nobody_has_signed(server: Server) -> None:
    """A link to write one object must not be one to read all others."""
    assert s3(server, "PUT", "/bucket/private", b"the owner's")[0] == 200
    request = AWSRequest(method="PUT", url=f"{server.url}/bucket/open-to-all")
    S3SigV4QueryAuth(owner(server), "s3", "us-west-2", expires=60).add_auth(request)
    path = str(request.url).removeprefix(server.url)
    assert send(server, "PUT", path, {}, b"mine")[0] == 200
    assert send(server, "PUT", path, {"x-amz-copy-source": "/bucket/private"})[0] in (400, 403)
    assert s3(server, "GET", "/bucket/open-to-all")[2] == b"mine"


def test_a_header_sent_twice(server: Server) -> None:
    """What was signed and what is used must be the same one."""
    assert s3(server, "PUT", "/bucket/public", b"public")[0] == 200
    assert s3(server, "PUT", "/bucket/private", b"the owner's")[0] == 200
    headers = signed(
        server, "s3", "PUT", "/bucket/twice", b"", {"x-amz-copy-source": "/bucket/public"}
    )
    for first in (True, False):
        connection = http.client.HTTPConnection(host(server), timeout=20)
        connection.putrequest("PUT", "/bucket/twice", skip_host=True, skip_accept_encoding=True)
        if first:
            connection.putheader("x-amz-copy-source", "/bucket/private")
        for name, value in {**lower(headers), "content-length": "0"}.items():
            connection.putheader(name, value)
        if not first:
            connection.putheader("x-amz-copy-source", "/bucket/private")
        connection.endheaders()
        connection.getresponse().read()
        connection.close()
        assert s3(server, "GET", "/bucket/twice")[2] != b"the owner's"


# -- jobs' own keys ----------------------------------------------------------------------------------------


def test_keys_of_a_job_open_its_own_places_while_it_lasts(server: Server) -> None:
    for key in ("in/data", "other/data", "out/keyed/output/x", "out/another/x"):
        assert s3(server, "PUT", f"/bucket/{key}", b"x")[0] == 200
    _, keys = waiting(server, "keyed", InputDataConfig=[channel("s3://bucket/in/")])
    try:
        assert s3(server, "GET", "/bucket/in/data", keys=keys)[0] == 200
        assert s3(server, "GET", "/bucket?list-type=2&prefix=in%2F", keys=keys)[0] == 200
        assert s3(server, "PUT", "/bucket/out/keyed/new", b"x", keys=keys)[0] == 200
        assert operate(server, "DescribeTrainingJob", {"TrainingJobName": "keyed"}, keys)[0] == 200
        copy = {"x-amz-copy-source": "/bucket/other/data"}
        for method, path, headers in (
            ("GET", "/bucket/other/data", {}), ("HEAD", "/bucket/out/another/x", {}), ("GET", "/bucket?list-type=2", {}),
            ("GET", "/bucket?list-type=2&prefix=other", {}), ("PUT", "/bucket/in/data", {}), ("DELETE", "/bucket/in/data", {}),
            ("PUT", "/bucket/out/another/x", {}), ("PUT", "/bucket/out/keyed/copy", copy), ("PUT", "/new-bucket", {}),
            ("DELETE", "/bucket", {}), ("POST", "/bucket/other/data?uploads=", {}),
        ):  # fmt: skip
            assert s3(server, method, path, b"", headers, keys)[0] == 403, (method, path)
        many = b"<Delete><Object><Key>out/keyed/new</Key></Object><Object><Key>other/data</Key></Object></Delete>"
        assert s3(server, "POST", "/bucket?delete=", many, keys=keys)[0] == 403
        assert s3(server, "HEAD", "/bucket/out/keyed/new")[0] == 200
        for name, request in (
            ("CreateTrainingJob", job("by-a-job")), ("ListTrainingJobs", {}), ("StopTrainingJob", {"TrainingJobName": "keyed"}),
            ("DescribeTrainingJob", {"TrainingJobName": "other"}), ("DeleteTrainingJob", {"TrainingJobName": "keyed"}),
        ):  # fmt: skip
            status, _, text = operate(server, name, request, keys)
            assert (status, json.loads(text)["__type"]) == (400, "AccessDeniedException"), name
        assert operate(server, "DescribeLogGroups", {}, keys, "logs")[0] == 400
        assert server.service.store.get("by-a-job") is None
    finally:
        end(server, "keyed")
    assert s3(server, "GET", "/bucket/in/data", keys=keys)[0] == 403
    assert operate(server, "DescribeTrainingJob", {"TrainingJobName": "keyed"}, keys)[0] == 403


# -- paths -------------------------------------------------------------------------------------------------

_UP = [
    "..%2f..%2fup",
    "%2e%2e/%2e%2e/up",
    "../../up",
    "a/../../../../../up",
    "/etc/passwd",
    "..%5cup",
    "a%00b",
    "%ff",
    "%c0%ae",
]


@pytest.mark.parametrize("key", _UP)
def test_keys_that_lead_out(server: Server, key: str) -> None:
    home = server.service.home.path
    status, _, _ = s3(server, "PUT", f"/bucket/{key}", b"bad")
    assert status in (200, 400, 403, 404), status
    assert not [path for path in _files(home.parent) if path.name == "up" and path.is_file()]
    assert s3(server, "PUT", "/..%2f..%2fup/key", b"bad")[0] in (400, 403, 404)
    assert s3(server, "PUT", "/..", b"")[0] in (400, 403, 404)
    assert b"root:" not in s3(server, "GET", f"/bucket/{key}")[2]


def test_numbers_of_uploads_that_lead_out(server: Server) -> None:
    for number in ("..", "../..", "..%2f..%2fhome", "", "%00", "0" * 32):
        assert s3(server, "PUT", f"/bucket/k?partNumber=1&uploadId={number}", b"x")[0] == 404
        assert s3(server, "DELETE", f"/bucket/k?uploadId={number}")[0] == 404
    assert works(server)


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "../jobs/job",
        "job/../../credentials",
        "/etc/passwd",
        "*",
        "?",
        "job/*",
        "[a-z]*",
        "",
    ],
)
def test_streams_that_lead_out(server: Server, name: str) -> None:
    request = {"logGroupName": "/aws/sagemaker/TrainingJobs", "logStreamName": name}
    assert operate(server, "GetLogEvents", request, service="logs")[0] == 400
    request = {"logGroupName": "/aws/sagemaker/TrainingJobs", "logStreamNamePrefix": name}
    status, _, text = operate(server, "DescribeLogStreams", request, service="logs")
    assert status == 400 or json.loads(text)["logStreams"] == []


@pytest.mark.parametrize(
    "name", ["../../x", "..", "a/b", "a.b", "-a", "", "a" * 64, "a\0", "a\n", "ä", "%2e%2e"]
)
def test_names_of_jobs_that_lead_out(server: Server, name: str) -> None:
    before = {
        path.name for path in _files(server.service.home.path.parent) if "blobs" not in path.parts
    }
    status, _, text = operate(server, "CreateTrainingJob", job(name))
    assert (status, json.loads(text)["__type"]) == (400, "ValidationException")
    for operation in ("DescribeTrainingJob", "StopTrainingJob", "DeleteTrainingJob"):
        assert operate(server, operation, {"TrainingJobName": name})[0] == 400
    after = {
        path.name for path in _files(server.service.home.path.parent) if "blobs" not in path.parts
    }
    own = {"jobs.sqlite-wal", "jobs.sqlite-shm", "reserve", "backups"}
    assert {name for name in after - before if not name.endswith(".sqlite")} <= own


@pytest.mark.parametrize(
    "path",
    ["/ui/../../etc/passwd", "/ui/%2e%2e/%2e%2e/credentials.json", "/ui/jobs/../..", "/ui/jobs/%2e%2e/logs/0", "/ui/page.css/../page.js",
     "/ui/jobs/a/logs/-1", "/ui/jobs/..%2f..", "/ui/static/page.html", "/ui//etc/passwd"],
)  # fmt: skip
def test_pages_that_lead_out(server: Server, path: str) -> None:
    cookie = cookie_of(server)
    status, _, text = send(server, "GET", path, cookie)
    assert status in (400, 404), (status, text)
    assert b"secret_key" not in text


@pytest.mark.parametrize("program", ["../../up.py", "/etc/passwd", "a/../../up.sh"])
def test_scripts_outside_of_their_source(server: Server, program: str) -> None:
    values = {
        "sagemaker_program": json.dumps(program),
        "sagemaker_submit_directory": '"s3://bucket/source.tar.gz"',
    }
    request = job("script-outside", HyperParameters=values)
    del request["AlgorithmSpecification"]["ContainerEntrypoint"]
    status, _, text = operate(server, "CreateTrainingJob", request)
    assert (status, json.loads(text)["__type"]) == (400, "ValidationException")


def source(*members: tuple[str, bytes, str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(None, "w:gz", buffer) as tar:
        for name, kind, link, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_a_source_and_objects_that_lead_out(server: Server, tmp_path: Path) -> None:
    (tmp_path / "flag").write_text("kept")
    packed = source(
        ("train.sh", tarfile.REGTYPE, "", b"echo started"),
        ("up", tarfile.SYMTYPE, str(tmp_path), b""),
        ("up/flag", tarfile.REGTYPE, "", b"bad"),
    )
    assert s3(server, "PUT", "/bucket/source.tar.gz", packed)[0] == 200
    values = {
        "sagemaker_program": '"train.sh"',
        "sagemaker_submit_directory": '"s3://bucket/source.tar.gz"',
    }
    request = job("bad-source", HyperParameters=values)
    del request["AlgorithmSpecification"]["ContainerEntrypoint"]
    record = run(server, request)
    assert record.state.status == "Failed"
    assert record.failure.startswith("ClientError: ")
    assert (tmp_path / "flag").read_text() == "kept"
    assert s3(server, "PUT", "/bucket/leads/..%2f..%2f..%2fup", b"bad")[0] in (200, 400)
    if s3(server, "HEAD", "/bucket/leads/..%2f..%2f..%2fup")[0] == 200:
        record = run(server, job("bad-key", InputDataConfig=[channel("s3://bucket/leads/")]))
        assert record.state.status == "Failed"
        assert record.failure.startswith("ClientError: ")


# -- bodies and clients ------------------------------------------------------------------------------------


def raw(server: Server, data: bytes = b"") -> socket.socket:
    parts = urllib.parse.urlsplit(server.url)
    found = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    found.sendall(data)
    return found


def read_all(sock: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            found += piece
    return found


def status_of(sock: socket.socket) -> int:
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        line = sock.recv(65536).split(b" ", 2)
        return int(line[1]) if len(line) > 1 else 0
    return 0


def head(headers: Mapping[str, str], method: str = "POST", path: str = "/") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\n".encode()
        + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items())
        + b"\r\n"
    )


def test_bodies_that_say_they_are_huge(server: Server) -> None:
    for service, most in (("sagemaker", 3 << 20), ("sts", 1 << 40)):
        headers = {**lower(signed(server, service, "POST", "/")), "content-length": str(most)}
        with raw(server, head(headers)) as sock:
            assert status_of(sock) == 413
    headers = {**lower(signed(server, "s3", "PUT", "/bucket/huge")), "content-length": str(6 << 30)}
    with raw(server, head(headers, "PUT", "/bucket/huge")) as sock:
        assert status_of(sock) == 413
    assert s3(server, "HEAD", "/bucket/huge")[0] == 404


def test_bodies_without_an_end(server: Server) -> None:
    headers = {**lower(signed(server, "sagemaker", "POST", "/")), "transfer-encoding": "chunked"}
    piece = b"10000\r\n" + b"[" * 65536 + b"\r\n"
    sent = 0
    with raw(server, head(headers)) as sock, contextlib.suppress(OSError):
        sock.settimeout(0.2)
        while sent < 200 << 20:
            sock.sendall(piece)
            sent += len(piece)
    assert sent < 50 << 20
    assert works(server)


def test_headers_without_an_end(server: Server) -> None:
    sent = 0
    with raw(server, b"GET / HTTP/1.1\r\nhost: x\r\n") as sock, contextlib.suppress(OSError):
        sock.settimeout(0.5)
        while sent < 100 << 20:
            sock.sendall(b"x-%d: " % sent + b"y" * 65536 + b"\r\n")
            sent += 65536
    assert sent < 50 << 20, "100 MiB of headers were read"
    assert works(server)


def test_an_address_without_an_end(server: Server) -> None:
    sent = 0
    with raw(server, b"GET /") as sock, contextlib.suppress(OSError):
        sock.settimeout(0.5)
        while sent < 100 << 20:
            sock.sendall(b"y" * 65536)
            sent += 65536
    assert sent < 50 << 20, "an address of 100 MiB was read"
    assert works(server)


@pytest.mark.timing
def test_clients_that_are_slow(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_HEADERS_IN", 0.5)
    monkeypatch.setattr(bodies, "PATIENCE", 0.5)
    stalled = {**lower(signed(server, "sagemaker", "POST", "/")), "content-length": "100"}
    putting = {
        **lower(signed(server, "s3", "PUT", "/bucket/stalled", b"x" * 100)),
        "content-length": "100",
    }
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(raw(server, b"GET / HTTP/1.1\r\nhost: ")) for _ in range(50)]
        silent = [stack.enter_context(raw(server)) for _ in range(50)]
        bodied = [stack.enter_context(raw(server, head(stalled) + b"{")) for _ in range(20)]
        bodied += [
            stack.enter_context(raw(server, head(putting, "PUT", "/bucket/stalled") + b"x"))
            for _ in range(20)
        ]
        began = time.monotonic()
        assert works(server)
        assert time.monotonic() - began < 2
        assert all(read_all(sock) == b"" for sock in slow + silent)
        assert all(status_of(sock) in (0, 400, 408) for sock in bodied)
        assert time.monotonic() - began < 8
    assert s3(server, "HEAD", "/bucket/stalled")[0] == 404
    assert not list(server.service.objects.folder.glob("incoming/*"))
    assert works(server)


@pytest.mark.timing
def test_thousands_of_silent_clients_keep_nobody_out(server: Server) -> None:
    """Each connection that comes closes the one that has been silent for longest."""
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(raw(server))
            stack.enter_context(raw(server, b"GET / HTTP/1.1\r\nhost: "))
        for _ in range(20):
            began = time.monotonic()
            assert works(server)
            assert time.monotonic() - began < 1.0


# -- what is in bodies -------------------------------------------------------------------------------------

_NESTED = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"TrainingJobName":' + b"[" * 900 + b"]" * 900 + b"}",
]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"[]",
        b"3",
        b"null",
        b"\xff\xfe",
        b'{"a": 1e99999}',
        b'{"TrainingJobName": NaN}',
        *_NESTED,
    ],
    ids=lambda body: body[:12].decode("latin1"),
)
def test_json_that_is_none(server: Server, body: bytes) -> None:
    status, _, text = operate(server, "DescribeTrainingJob", body)
    assert status == 400, text
    assert json.loads(text)["__type"] in ("SerializationException", "ValidationException")


@pytest.mark.parametrize(
    "changes",
    [
        {"TrainingJobName": 3}, {"TrainingJobName": ["a"]}, {"AlgorithmSpecification": "x"}, {"ResourceConfig": []},
        {"Unknown": 1}, {"HyperParameters": {"a": 1}}, {"HyperParameters": "x"}, {"InputDataConfig": {}},
        {"ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": "1", "VolumeSizeInGB": 1}},
        {"ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": -1, "VolumeSizeInGB": 1}},
        {"ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": 10**30, "VolumeSizeInGB": 1}},
        {"StoppingCondition": {"MaxRuntimeInSeconds": 0}}, {"Tags": [{"Key": "a"}]}, {"Environment": {"1 bad": "x"}},
        {"AlgorithmSpecification": {"TrainingInputMode": "File", "MetricDefinitions": [{"Name": "x", "Regex": "("}]}},
        {"InputDataConfig": [channel("s3://bucket/x", "sm_drivers", "ManifestFile")]},
        {"InputDataConfig": [{"ChannelName": "sm_drivers", "DataSource": {"FileSystemDataSource": {
            "DirectoryPath": "/x", "FileSystemId": "fs-12345678901", "FileSystemAccessMode": "ro", "FileSystemType": "EFS"}}}]},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_of_the_wrong_kind(server: Server, changes: dict[str, Any]) -> None:
    request = {**job("wrong-kind"), **changes}
    if "HyperParameters" in changes:
        del request["AlgorithmSpecification"]["ContainerEntrypoint"]
    status, _, text = operate(server, "CreateTrainingJob", request)
    assert status == 400, text
    assert json.loads(text)["__type"] == "ValidationException"
    assert server.service.store.get("wrong-kind") is None


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 30, "\u00b2", "-1", "x", "0x1", "1e3", ""])
def test_numbers_that_are_none(server: Server, number: str) -> None:
    """Never an error inside."""
    group = "/aws/sagemaker/TrainingJobs"
    assert operate(server, "ListTrainingJobs", {"NextToken": number})[0] in (200, 400)
    assert operate(
        server, "FilterLogEvents", {"logGroupName": group, "nextToken": number}, service="logs"
    )[0] in (
        200,
        400,
    )
    assert operate(
        server, "DescribeLogStreams", {"logGroupName": group, "nextToken": number}, service="logs"
    )[0] in (
        200,
        400,
    )
    text = urllib.parse.quote(number)
    assert s3(server, "GET", f"/bucket?list-type=2&max-keys={text}")[0] in (200, 400)
    assert s3(server, "PUT", f"/bucket/k?partNumber={text}&uploadId={'0' * 32}", b"x")[0] in (
        400,
        404,
    )
    assert s3(server, "PUT", "/bucket/numbered", b"0123456789")[0] == 200
    if number.isascii():
        assert s3(server, "GET", "/bucket/numbered", headers={"range": f"bytes=0-{number}"})[0] in (
            200,
            206,
            400,
            416,
        )
        assert s3(server, "GET", "/bucket/numbered", headers={"if-modified-since": number or "x"})[
            0
        ] in (200, 304, 400)
    cookie = cookie_of(server)
    assert send(server, "GET", f"/ui/jobs/none/logs/0?offset={text}", cookie)[0] in (200, 400, 404)
    expires = f"/bucket/numbered?X-Amz-Credential=a/20260101/r/s3/aws4_request&X-Amz-Signature=0&X-Amz-Expires={text}"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    assert send(server, "GET", f"{expires}&X-Amz-Date={now}", {})[0] in (400, 403)


def test_a_list_of_no_keys(server: Server) -> None:
    assert s3(server, "PUT", "/bucket/one", b"x")[0] == 200
    status, _, text = s3(server, "GET", "/bucket?list-type=2&max-keys=0")
    assert status == 200
    assert b"<IsTruncated>false</IsTruncated>" in text


def test_places_in_a_log_that_are_none(server: Server) -> None:
    """A token that this service has not given."""
    assert run(server, job("printing", "echo one; echo two")).state.status == "Completed"
    group = "/aws/sagemaker/TrainingJobs"
    _, _, text = operate(
        server,
        "DescribeLogStreams",
        {"logGroupName": group, "logStreamNamePrefix": "printing/"},
        service="logs",
    )
    request = {
        "logGroupName": group,
        "logStreamName": json.loads(text)["logStreams"][0]["logStreamName"],
    }
    for name in ("f/3", "b/3", "f/1", "f/999999999", "f/" + "9" * 5000, "x/0", "f/-1", "f/", "f"):
        status, _, text = operate(
            server, "GetLogEvents", {**request, "nextToken": name}, service="logs"
        )
        assert status in (200, 400), (name, text)
    cookie = cookie_of(server)
    assert send(server, "GET", "/ui/jobs/printing/logs/0?offset=3", cookie)[0] in (200, 400)


def test_xml_with_entities(server: Server) -> None:
    laughs = '<!ENTITY a "ha">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for inside in (laughs, '<!ENTITY i SYSTEM "file:///etc/passwd">'):
        body = f"<!DOCTYPE x [{inside}]><Delete><Object><Key>&i;</Key></Object></Delete>".encode()
        for encoded in (body, body.decode().encode("utf-16")):
            began = time.monotonic()
            status, _, text = s3(server, "POST", "/bucket?delete=", encoded)
            assert (status, b"root:" in text) == (400, False)
            assert time.monotonic() - began < 30
    for body in (b"", b"<", b"<a>" * 100_000, b"\x00", b"<Delete><Object/></Delete>"):
        assert s3(server, "POST", "/bucket?delete=", body)[0] in (200, 400)


@pytest.mark.parametrize(
    "size", ["-5", "+3", "0x3", "3 ", "1_0", "", "zz", "fffffffffffffffff", "9" * 5000]
)
def test_chunks_that_are_none(server: Server, size: str) -> None:
    headers = {
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "3",
    }
    assert s3(server, "DELETE", "/bucket/chunked")[0] == 204
    body = f"{size}\r\nabc\r\n0\r\n\r\n".encode()
    request = AWSRequest(
        method="PUT", url=f"{server.url}/bucket/chunked", headers={"host": host(server), **headers}
    )
    signer = S3SigV4Auth(owner(server), "s3", "us-west-2")
    signer.payload = lambda _: headers["x-amz-content-sha256"]  # pyright: ignore[reportAttributeAccessIssue]
    signer.add_auth(request)
    sent = {**lower(dict(request.headers.items())), **headers}
    status, _, text = send(server, "PUT", "/bucket/chunked", sent, body)
    assert status in (400, 413), text
    assert s3(server, "HEAD", "/bucket/chunked")[0] == 404


@pytest.mark.parametrize(
    "name",
    ["x-amz-checksum-crc32", "x-amz-checksum-sha256", "x-amz-checksum-crc32c", "content-md5"],
)
def test_checksums_that_are_wrong(server: Server, name: str) -> None:
    wrong = {
        "content-md5": hashlib.md5(b"x").digest(),
        "x-amz-checksum-sha256": hashlib.sha256(b"x").digest(),
    }
    value = base64.b64encode(wrong.get(name, zlib.crc32(b"x").to_bytes(4, "big"))).decode()
    for given_value in (value, "nonsense", ""):
        status, _, text = s3(server, "PUT", "/bucket/summed", b"content", {name: given_value})
        assert status == 400, text
        assert s3(server, "HEAD", "/bucket/summed")[0] == 404
    assert not list(server.service.objects.folder.glob("incoming/*"))


def test_two_checksums_of_which_one_is_wrong(server: Server) -> None:
    right = base64.b64encode(zlib.crc32(b"content").to_bytes(4, "big")).decode()
    wrong = base64.b64encode(hashlib.sha256(b"x").digest()).decode()
    headers = {"x-amz-checksum-crc32": right, "x-amz-checksum-sha256": wrong}
    assert s3(server, "PUT", "/bucket/summed", b"content", headers)[0] == 400
    assert s3(server, "HEAD", "/bucket/summed")[0] == 404


def test_headers_of_an_answer_are_ours(server: Server) -> None:
    """Who has a link signed with a file name of his choice does not write headers with it."""
    assert s3(server, "PUT", "/bucket/named", b"x")[0] == 200
    for value in ("a\r\nx-evil: 1", "a\nx-evil: 1", "\u2028", "\0"):
        query = urllib.parse.quote(value)
        status, headers, _ = s3(
            server, "GET", f"/bucket/named?response-content-disposition={query}"
        )
        assert status in (200, 400)
        assert "x-evil" not in headers


def test_hosts_that_are_none(server: Server) -> None:
    for name in ("[", "a b", "x/ui", "x?y", "", "\x7f"):
        with raw(
            server, f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
        ) as sock:
            assert status_of(sock) in (400, 403), name
    assert works(server)


# -- where requests lead -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    ["http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/latest", "https://localhost/x", "ftp://x/y", "s3://",
     "s3:///etc/passwd", "file://169.254.169.254/x", "file://host/share", "gopher://x"],
)  # fmt: skip
def test_addresses_that_are_no_data(server: Server, uri: str) -> None:
    for request in (
        job("addressed", InputDataConfig=[channel(uri)]),
        job("addressed", OutputDataConfig={"S3OutputPath": uri}),
        job("addressed", CheckpointConfig={"S3Uri": uri}),
    ):
        status, _, text = operate(server, "CreateTrainingJob", request)
        assert (status, json.loads(text)["__type"]) == (400, "ValidationException"), text
    values = {"sagemaker_program": '"a.py"', "sagemaker_submit_directory": json.dumps(uri)}
    request = job("addressed", HyperParameters=values)
    del request["AlgorithmSpecification"]["ContainerEntrypoint"]
    assert operate(server, "CreateTrainingJob", request)[0] == 400


@pytest.mark.parametrize(
    "uri", ["s3://169.254.169.254/x", "s3://user@host:80/x", "s3://..%2f../x", "s3://../x"]
)
def test_buckets_that_look_like_hosts_are_buckets(server: Server, uri: str) -> None:
    status, _, _ = operate(
        server, "CreateTrainingJob", job("bucketed", InputDataConfig=[channel(uri)])
    )
    if status == 200:
        record = ended(server, "bucketed")
        assert record.failure.startswith("ClientError: There is nothing under")
        server.service.delete_training_job({"TrainingJobName": "bucketed"})
    else:
        assert status == 400


def test_files_beyond_the_folders_that_are_allowed(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for folder in (allowed, other):
        folder.mkdir()
        (folder / "file").write_text("what is secret")
    with serving(tmp_path / "home", files=[allowed]) as server:
        server.service.objects.make_bucket("bucket")
        uris = [
            other.as_uri(),
            f"{allowed.as_uri()}/../other/file",
            "file:///etc/passwd",
            f"{allowed.as_uri()}/%2e%2e/other",
        ]
        for uri in uris:
            assert (
                operate(server, "CreateTrainingJob", job("a", InputDataConfig=[channel(uri)]))[0]
                == 400
            )
        (other / "source.tar.gz").write_bytes(
            source(("train.sh", tarfile.REGTYPE, "", b"echo ran what is secret"))
        )
        program = other.as_uri() + "/source.tar.gz"
        for text in (
            json.dumps(program),
            program,
            json.dumps(program).replace("/", "\\/"),
            json.dumps(program).replace("f", "\\u0066", 1),
        ):
            values = {"sagemaker_program": '"train.sh"', "sagemaker_submit_directory": text}
            request = job("b", HyperParameters=values)
            del request["AlgorithmSpecification"]["ContainerEntrypoint"]
            assert operate(server, "CreateTrainingJob", request)[0] == 400, text
        listed = json.dumps([{"prefix": f"{other.as_uri()}/"}, "file"]).encode()
        assert s3(server, "PUT", "/bucket/list", listed)[0] == 200
        request = job(
            "c",
            "cat /opt/ml/input/data/data/* ./input/data/data/*",
            InputDataConfig=[channel("s3://bucket/list", kind="ManifestFile")],
        )
        record = run(server, request)
        assert record.state.status == "Failed"
        assert "what is secret" not in printed(server, "c")
        record = run(
            server,
            job(
                "d",
                "cat /opt/ml/input/data/data/* ./input/data/data/*; true",
                InputDataConfig=[channel(allowed.as_uri())],
            ),
        )
        assert record.state.status == "Completed", record.failure


# -- secrets -----------------------------------------------------------------------------------------------

_SECRETS = {
    "DB_PASSWORD": "pass-word-123",
    "HF_TOKEN": "hf_abcdefghijkl",
    "API_KEY": "key'with\"quotes\\1",
    "WANDB_API_KEY": "wandb-secret",
}


def _files(folder: Path) -> list[Path]:
    """All below a folder, while runners of jobs remove theirs (``Path.rglob`` fails then)."""
    return [
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]


def _bytes(path: Path) -> bytes:
    """Of a regular file; nothing of one that a job's runner has just removed."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""


def readable_by_others(folder: Path) -> list[Path]:
    """Files that another user could read: each folder above them, from ``folder`` on, lets him pass."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # the job's runner removes its folders meanwhile
        for path in folder.iterdir() if folder.stat().st_mode & 0o001 else ():
            if path.is_symlink():
                continue
            if path.is_dir():
                found += readable_by_others(path)
            elif path.exists() and path.stat().st_mode & 0o004:
                found.append(path)
    return found


def test_secrets_stay_secret(tmp_path: Path) -> None:
    """In a folder, too, that others may look into."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    secrets = {**_SECRETS, "PLAIN": "plain-value-1"}
    with serving(home) as server:
        server.service.objects.make_bucket("bucket")
        script = f"{sys.executable} -c 'import os; print(os.environ)'; env; echo $DB_PASSWORD >&2; exit 3"
        request = job(
            "secretive",
            script,
            Environment=secrets,
            HyperParameters={"auth_token": "hyper-token-1", "x": "1"},
        )
        record = run(server, request)
        assert record.state.status == "Failed"
        text = printed(server, "secretive")
        assert "plain-value-1" in text
        described = operate(server, "DescribeTrainingJob", {"TrainingJobName": "secretive"})[
            2
        ].decode()
        assert "plain-value-1" in described
        cookie = cookie_of(server)
        page = send(server, "GET", "/ui/jobs/secretive", cookie)[2].decode()
        assert "secretive" in page
        own = job_secret(server.service.home, record.access_key)
        for secret in (*_SECRETS.values(), "hyper-token-1", own, server.service.home.keys()[1]):
            forms = (
                secret,
                repr(secret)[1:-1],
                json.dumps(secret)[1:-1],
                secret.replace("\\", "\\\\").replace("'", "\\'"),
            )
            for where, seen in (
                ("logs", text),
                ("Describe", described),
                ("page", page),
                ("failure", record.failure),
            ):
                assert not [form for form in forms if form in seen], where
            for path in readable_by_others(home):
                assert secret.encode() not in _bytes(path), path
        assert server.service.home.keys()[1].encode() not in b"".join(
            _bytes(path) for path in _files(home / "jobs")
        )


def test_others_can_not_read_the_folder(tmp_path: Path) -> None:
    with serving(tmp_path / "new" / "home") as server:
        home = server.service.home
        assert home.path.stat().st_mode & 0o077 == 0
        assert (home.path / "credentials.json").stat().st_mode & 0o077 == 0
        assert readable_by_others(home.path) == []


def test_a_scripts_environment_has_none_of_the_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the service")
    monkeypatch.setenv("SOME_PASSWORD", "of the service")
    monkeypatch.setenv("SYRTOS_SECRET", "of the service")
    with serving(tmp_path / "home") as server:
        assert run(server, job("looking", "env")).state.status == "Completed"
        text = printed(server, "looking")
        assert "SM_MODEL_DIR=" in text
        assert "of the service" not in text
        assert "SYRTOS_HOME=" not in text


# -- networks and browsers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "192.0.2.1", "127.0.0.1.example.com"])
def test_no_other_machine_without_tls(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigurationError, match="--tls-cert"):
        Server(Home(tmp_path), 1, host=address)


def test_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from botocore.exceptions import SSLError

    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    with serving(tmp_path / "home", tls=(certificate, key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        access, secret = server.service.home.keys()
        facts = {
            "aws_access_key_id": access,
            "aws_secret_access_key": secret,
            "region_name": "us-west-2",
            "endpoint_url": server.url,
        }
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        client: Any = boto3.client("s3", **facts)
        client.create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        client.put_object(Bucket="bucket", Key="k", Body=b"over TLS")
        assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"over TLS"
        assert boto3.client("sagemaker", **facts).list_training_jobs()["TrainingJobSummaries"] == []
        assert server.service.home.certificate() == str(certificate)
        monkeypatch.delenv("AWS_CA_BUNDLE")
        with pytest.raises(SSLError):
            boto3.client("s3", **facts).list_buckets()
        with raw(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as sock:
            assert b"200" not in read_all(sock)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(ValueError, ssl.SSLError):
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)), raw(server) as sock:
                old.wrap_socket(sock)


def test_the_page_is_for_who_has_its_key(server: Server) -> None:
    home = server.service.home
    name = cookie_of(server)["cookie"].partition("=")[0]
    paths = [
        "/",
        "/ui",
        "/ui/jobs",
        "/ui/jobs/x",
        "/ui/page.js",
        "/?token=",
        "/?token=x",
        "/ui/jobs?token=%ff",
        "/ui/nothing",
    ]
    for path in paths:
        for cookie in (
            {},
            {"cookie": f"{name}="},
            {"cookie": f"{name}={'0' * 64}"},
            {"cookie": f"other={token(home)}"},
        ):
            status, headers, _ = send(server, "GET", path, cookie)
            assert status == 403, (path, cookie)
            assert "set-cookie" not in headers
    status, headers, _ = send(server, "GET", f"/?token={token(home)}", {})
    assert (status, headers["location"]) == (303, "/")
    assert {"httponly", "samesite=strict"} <= {
        part.strip().lower() for part in headers["set-cookie"].split(";")
    }
    status, headers, _ = send(server, "GET", "/", cookie_of(server))
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert home.keys()[1] not in token(home)


def test_another_site_stops_no_job(server: Server) -> None:
    waiting(server, "standing")
    cookie = {**cookie_of(server), "origin": "https://evil.example"}
    try:
        for headers in (
            cookie,
            {**cookie, "content-type": "application/x-www-form-urlencoded"},
            {**cookie, "x-syrtos": "x"},
        ):
            assert send(server, "POST", "/ui/jobs/standing/stop", headers)[0] in (403, 404)
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
            assert send(server, method, "/ui/jobs/standing/stop", cookie)[0] in (403, 404, 405)
        assert send(server, "GET", "/ui/jobs/standing/stop", cookie)[0] == 404
        assert send(server, "POST", "/ui/jobs/standing/stop", {"x-syrtos": "page"})[0] == 403
        found = server.service.store.get("standing")
        assert found is not None
        assert found.state.status == "InProgress"
        own = {**cookie, "x-syrtos": "page", "origin": server.url}
        assert send(server, "POST", "/ui/jobs/standing/stop", own)[0] == 200
    finally:
        end(server, "standing")


def test_the_page_is_json_whatever_was_printed(server: Server) -> None:
    """Numbers that only Python reads, and markup."""
    request = job("printing-nan", "echo loss: nan; echo '<script>alert(1)</script>'")
    request["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "loss", "Regex": "loss: (\\w+)"}
    ]
    assert run(server, request).state.status == "Completed"

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    cookie = cookie_of(server)
    for path in ("/ui/jobs", "/ui/jobs/printing-nan", "/ui/jobs/printing-nan/logs/0"):
        status, headers, text = send(server, "GET", path, cookie)
        assert (status, headers["content-type"]) == (200, "application/json")
        json.loads(text, parse_constant=refuse)
    text = operate(server, "DescribeTrainingJob", {"TrainingJobName": "printing-nan"})[2]
    json.loads(text, parse_constant=refuse)


def test_many_at_once(server: Server) -> None:
    """A crowd that is refused does not keep the owner out."""
    wrong = Credentials("SYRTWRONG", "x")
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(operate(server, "ListTrainingJobs", {}, wrong)[0])
        )
        for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    assert works(server)
    for thread in threads:
        thread.join()
    assert answers == [403] * 40


def test_processes_of_a_job_end_with_it(server: Server) -> None:
    """Also those of a session of their own, and where the request gives them another mark."""
    script = f"setsid {sys.executable} -c 'import time; time.sleep(300)' & echo $! ; sleep 0.3"
    before = _sleeping()
    assert (
        run(server, job("leaving", script, Environment={"SYRTOS_JOB": "another"})).state.status
        == "Completed"
    )
    wait_until(lambda: _sleeping() <= before, 5)


def _sleeping() -> set[int]:
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (
                folder.name.isdigit()
                and b"time.sleep(300)" in (folder / "cmdline").read_bytes()
                and int(folder.name) != os.getpid()
            ):
                found.add(int(folder.name))
    return found


REFUSED = {
    "a bucket that is not there": {"Bucket": "nope-nope", "Key": "a", "Body": b"v" * 10},
    "a key too long": {"Bucket": "bucket", "Key": "k" * 1025, "Body": b"v" * 10},
    "a wrong digest": {"Bucket": "bucket", "Key": "a", "Body": b"v" * 10, "ContentMD5": "A" * 22 + "=="},
    "a wrong checksum": {"Bucket": "bucket", "Key": "a", "Body": b"v" * 10, "ChecksumCRC32": "AAAAAA=="},
    "an object that is there": {"Bucket": "bucket", "Key": "a", "Body": b"v" * 10, "IfNoneMatch": "*"},
    "a wrong bucket, and much": {"Bucket": "nope-nope", "Key": "a", "Body": b"v" * (3 << 20)},
}  # fmt: skip


@pytest.mark.parametrize("expects", [True, False], ids=["waits", "sends at once"])
def test_a_request_after_a_refused_one_is_answered(server: Server, expects: bool) -> None:
    """One connection of an unmodified boto3 for all of them, and no second try."""
    boto3, config = pytest.importorskip("boto3"), pytest.importorskip("botocore.config")
    key, secret = server.service.home.keys()

    def client(secret: str) -> Any:
        made = boto3.client(
            "s3", endpoint_url=server.url, aws_access_key_id=key, aws_secret_access_key=secret,
            region_name="us-west-2",
            config=config.Config(
                retries={"max_attempts": 0}, max_pool_connections=1, s3={"addressing_style": "path"}
            ),
        )  # fmt: skip
        if not expects:
            made.meta.events.register("before-send.s3", _without_expect)
        return made

    good, bad = client(secret), client(secret[::-1])
    good.put_object(Bucket="bucket", Key="a", Body=b"A")
    for what, asked in REFUSED.items():
        with pytest.raises(Exception, match=r"An error occurred \("):
            good.put_object(**asked)
        assert good.get_object(Bucket="bucket", Key="a")["Body"].read() == b"A", what
    for _ in range(2):
        with pytest.raises(Exception, match="SignatureDoesNotMatch"):
            bad.put_object(Bucket="bucket", Key="a", Body=b"v" * 10)


def _without_expect(request: Any, **_: Any) -> None:
    if "Expect" in request.headers:
        del request.headers["Expect"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_says_what_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = threading.Event()

    def die(self: object) -> None:
        looks.set()
        raise SystemExit

    with serving(tmp_path / "home") as server:
        assert health(server) == (200, "ok", 0)
        with monkeypatch.context() as patched:
            patched.setattr(type(server.queue), "look", die)
            assert looks.wait(30)
            wait_until(lambda: server.queue.deaths > 0)
            wait_until(lambda: health(server)[0] == 503)
        wait_until(lambda: health(server)[0] == 200)


def test_a_full_disk_is_said_to_who_asks_and_who_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/a/name")

    with serving(tmp_path / "home") as server:
        assert s3(server, "PUT", "/bucket")[0] == 200
        monkeypatch.setattr(server.service.objects, "put", full)
        monkeypatch.setattr(server.service.store, "get", full)
        for answer in (
            s3(server, "PUT", "/bucket/k", b"1"),
            operate(server, "DescribeTrainingJob", {"TrainingJobName": "a"}),
        ):
            assert answer[0] == 503
            assert b"The disk of the service is full" in answer[2]
            assert b"/a/name" not in answer[2]
        assert health(server)[0] == 200
        monkeypatch.setattr(Reserve, "is_needed", lambda self: True)
        assert health(server)[:2] == (503, "failing")
    assert "Traceback" not in capfd.readouterr().err


def health(server: Server) -> tuple[int, str, int]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    facts = json.loads(answer.read())
    return answer.status, facts["status"], facts["restarts"]["queue"]
