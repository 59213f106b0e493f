"""Objects of a real S3 in place of a folder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.storage.objects import ObjectChangedError, ObjectFacts, ObjectStore

Answer = TypeVar("Answer")
_READ = 1 << 20


class RemoteStore(ObjectStore):
    """Objects of a real S3, reached with this process's own AWS credentials.

    Args:
        folder: a folder for files on their way.
        endpoint: the address of the S3; empty for Amazon's.
    """

    def __init__(self, folder: Path, endpoint: str) -> None:
        super().__init__(folder)
        self._endpoint = endpoint

    def buckets(self) -> list[tuple[str, float]]:
        """Asks S3 for its buckets."""
        return [
            (bucket["Name"], bucket["CreationDate"].timestamp())
            for bucket in self._client.list_buckets()["Buckets"]
        ]

    def make_bucket(self, bucket: str) -> bool:
        """Makes a bucket in the client's region; False if it exists."""
        if self.has_bucket(bucket):
            return False
        # S3 refuses the default region where it is named
        region = self._client.meta.region_name
        where = (
            {}
            if region == "us-east-1"
            else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        )
        self._client.create_bucket(Bucket=bucket, **where)
        return True

    def remove_bucket(self, bucket: str) -> None:
        """Removes a bucket from S3."""
        self._client.delete_bucket(Bucket=bucket)

    def has_bucket(self, bucket: str) -> bool:
        """Asks S3 whether it has a bucket."""
        return self._if_found(lambda: self._client.head_bucket(Bucket=bucket)) is not None

    def head(self, bucket: str, key: str) -> ObjectFacts | None:
        """Asks S3 for the facts about an object."""
        found = self._if_found(lambda: self._client.head_object(Bucket=bucket, Key=key))
        if found is None:
            return None
        headers = {"content-type": found["ContentType"]} if "ContentType" in found else {}
        headers |= {f"x-amz-meta-{name}": value for name, value in found["Metadata"].items()}
        return ObjectFacts(
            key,
            found["ContentLength"],
            found["ETag"].strip('"'),
            found["LastModified"].timestamp(),
            headers,
        )

    def read(self, bucket: str, entry: ObjectFacts, start: int, stop: int) -> Iterator[bytes]:
        """Reads a part of an object from S3, provided that its ETag is still the same."""
        # S3 has no form for an empty range
        if start >= stop:
            return iter(())
        asked = {
            "Bucket": bucket,
            "Key": entry.key,
            "Range": f"bytes={start}-{stop - 1}",
            "IfMatch": f'"{entry.etag}"',
        }
        found = self._if_found(lambda: self._client.get_object(**asked))
        if found is None:
            raise DataError(f"s3://{bucket}/{entry.key} was replaced or removed while it was read.")
        return found["Body"].iter_chunks(_READ)

    def put(
        self,
        bucket: str,
        key: str,
        file: Path,
        etag: str,
        headers: dict[str, str],
        replaces: str | None = None,
    ) -> None:
        """Uploads ``file``, and removes it."""
        # the condition is checked before the upload, so that two uploads at once may both succeed
        found = self.head(bucket, key) if replaces is not None else None
        if replaces is not None and replaces != (found.etag if found else ""):
            file.unlink()
            raise ObjectChangedError
        extra: dict[str, object] = {
            "Metadata": {
                name.removeprefix("x-amz-meta-"): value
                for name, value in headers.items()
                if name.startswith("x-amz-meta-")
            }
        }
        if "content-type" in headers:
            extra["ContentType"] = headers["content-type"]
        try:
            self._client.upload_file(str(file), bucket, key, ExtraArgs=extra)
        finally:
            file.unlink()

    def list(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectFacts]:
        """Asks S3 for a page of objects; there are none if the bucket does not exist."""
        asked = {"Bucket": bucket, "Prefix": prefix, "StartAfter": after, "MaxKeys": limit}
        found = self._if_found(lambda: self._client.list_objects_v2(**asked)) or {}
        return [
            ObjectFacts(o["Key"], o["Size"], o["ETag"].strip('"'), o["LastModified"].timestamp())
            for o in found.get("Contents", ())
        ]

    def delete(self, bucket: str, key: str) -> None:
        """Removes an object from S3."""
        self._client.delete_object(Bucket=bucket, Key=key)

    @functools.cached_property
    def _client(self) -> Any:
        try:
            import boto3
        except ImportError as error:
            raise ConfigurationError(
                "An S3 of your own needs boto3: `pip install boto3`."
            ) from error
        return boto3.client("s3", endpoint_url=self._endpoint or None)

    def _if_found(self, ask: Callable[[], Answer]) -> Answer | None:
        from botocore.exceptions import ClientError

        try:
            return ask()
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (404, 412):
                return None
            raise
