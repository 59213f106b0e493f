"""S3 as boto3 shows it: whole and in parts, ranges, copies, checksums, links that are signed."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import urllib.error
import urllib.request
import zlib
from typing import Any

import boto3
import botocore.exceptions
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from client import answer

s3 = boto3.client("s3")
found: dict[str, Any] = {}


def error(call: Any, **facts: Any) -> list[str]:
    """Code and HTTP status of the error that a call ends with."""
    try:
        call(**facts)
    except botocore.exceptions.ClientError as raised:
        return [
            raised.response["Error"]["Code"],
            str(raised.response["ResponseMetadata"]["HTTPStatusCode"]),
        ]
    return []


def body(key: str, **facts: Any) -> bytes:
    """An object's bytes."""
    return s3.get_object(Bucket="things", Key=key, **facts)["Body"].read()


s3.create_bucket(Bucket="things", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
found["buckets"] = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
found["bucket again"] = error(
    s3.create_bucket, Bucket="things", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
)

small, key = b"some bytes", "a folder/what is ü & <this>+?.txt"
put = s3.put_object(
    Bucket="things", Key=key, Body=small, Metadata={"made": "today"}, ContentType="text/plain"
)
head = s3.head_object(Bucket="things", Key=key)
found["etag"] = put["ETag"] == head["ETag"] == f'"{hashlib.md5(small).hexdigest()}"'
found["head"] = [head["ContentLength"], head["ContentType"], head["Metadata"]]
found["ranges"] = [
    body(key, Range=text).decode() for text in ("bytes=0-3", "bytes=5-", "bytes=-5", "bytes=5-999")
]
found["range error"] = error(s3.get_object, Bucket="things", Key=key, Range="bytes=100-")
found["missing"] = error(s3.get_object, Bucket="things", Key="nothing")
found["missing head"] = error(s3.head_object, Bucket="things", Key="nothing")
found["missing bucket"] = error(s3.list_objects_v2, Bucket="nowhere")

for algorithm in ("CRC32", "CRC32C", "SHA1", "SHA256"):
    if algorithm == "CRC32C":
        continue  # boto3 computes it only with awscrt
    put = s3.put_object(
        Bucket="things", Key=f"sums/{algorithm}", Body=small, ChecksumAlgorithm=algorithm
    )
    got = s3.head_object(Bucket="things", Key=f"sums/{algorithm}", ChecksumMode="ENABLED")
    found[algorithm] = put[f"Checksum{algorithm}"] == got[f"Checksum{algorithm}"]
wrong = zlib.crc32(b"other bytes").to_bytes(4, "big")


found["wrong checksum"] = error(
    s3.put_object,
    Bucket="things",
    Key="wrong",
    Body=small,
    ChecksumCRC32=base64.b64encode(wrong).decode(),
)
md5 = base64.b64encode(hashlib.md5(b"other bytes").digest()).decode()
found["wrong md5"] = error(s3.put_object, Bucket="things", Key="wrong", Body=small, ContentMD5=md5)
found["nothing written"] = error(s3.head_object, Bucket="things", Key="wrong")

large = bytes(range(256)) * (13 << 12)  # 13 MiB
config = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
s3.upload_fileobj(
    io.BytesIO(large), "things", "large", Config=config, ExtraArgs={"Metadata": {"parts": "three"}}
)
head = s3.head_object(Bucket="things", Key="large")
found["parts"] = [
    head["ContentLength"] == len(large),
    head["ETag"].strip('"').partition("-")[2],
    head["Metadata"],
]
target = io.BytesIO()
s3.download_fileobj("things", "large", target, Config=config)
found["large"] = target.getvalue() == large

s3.copy_object(Bucket="things", Key="copies/one", CopySource={"Bucket": "things", "Key": key})
copy = s3.get_object(Bucket="things", Key="copies/one")
found["copy"] = [copy["Body"].read().decode(), copy["Metadata"]]
s3.copy({"Bucket": "things", "Key": "large"}, "things", "copies/large", Config=config)
found["large copy"] = body("copies/large") == large
upload = s3.create_multipart_upload(Bucket="things", Key="given up")["UploadId"]
s3.upload_part(Bucket="things", Key="given up", UploadId=upload, PartNumber=1, Body=small)
listed = s3.list_parts(Bucket="things", Key="given up", UploadId=upload)["Parts"]
found["listed parts"] = [(part["PartNumber"], part["Size"]) for part in listed]
s3.abort_multipart_upload(Bucket="things", Key="given up", UploadId=upload)
found["given up"] = error(s3.list_parts, Bucket="things", Key="given up", UploadId=upload)

for number in range(7):
    s3.put_object(Bucket="things", Key=f"many/{number % 2}/{number}", Body=b"")
pages = s3.get_paginator("list_objects_v2").paginate(
    Bucket="things", Prefix="many/", PaginationConfig={"PageSize": 3}
)
found["pages"] = [[entry["Key"] for entry in page["Contents"]] for page in pages]
listed = s3.list_objects_v2(Bucket="things", Delimiter="/")
found["folders"] = [group["Prefix"] for group in listed["CommonPrefixes"]]
found["files"] = [entry["Key"] for entry in listed["Contents"]]

# signed by version 2, which boto3 still does for links unless it is told otherwise, and by version 4
v4 = boto3.client("s3", config=Config(signature_version="s3v4"))
links = [
    client.generate_presigned_url(
        "get_object", Params={"Bucket": "things", "Key": key}, ExpiresIn=60
    )
    for client in (s3, v4)
]
assert ["X-Amz-Signature" in link for link in links] == [False, True]


def followed(url: str) -> str:
    """What a link leads to: text, or the HTTP status of an error."""
    try:
        with urllib.request.urlopen(url) as answered:
            return answered.read().decode()
    except urllib.error.HTTPError as raised:
        return str(raised.code)


found["links"] = [followed(link) for link in links]
found["other links"] = [followed(link.replace("things/a", "things/b")) for link in links]
found["other links"] += [followed(re.sub(r"Expires=\d+", "Expires=99", link)) for link in links]
found["unsigned link"] = followed(links[1].partition("?")[0])
s3.delete_objects(
    Bucket="things", Delete={"Objects": [{"Key": f"many/{n % 2}/{n}"} for n in range(7)]}
)
found["left"] = s3.list_objects_v2(Bucket="things", Prefix="many/")["KeyCount"]
found["not empty"] = error(s3.delete_bucket, Bucket="things")
found["never done"] = error(s3.get_bucket_policy, Bucket="things")
answer(**found)
