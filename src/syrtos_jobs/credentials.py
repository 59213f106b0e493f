"""Keys and permissions: the owner's, and those of a job's script, which expire with the job."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from syrtos_jobs.requests.hyperparameters import source_of
from syrtos_jobs.storage.storage_uris import split
from syrtos_jobs.store.home import REGION, Home
from syrtos_jobs.store.job_store import Record, Store


@dataclasses.dataclass(frozen=True)
class Caller:
    """The signer of a request.

    Attributes:
        secret: the secret key that the request must be signed with.
        job: the job whose script signed it; None for the owner.
    """

    secret: str
    job: Record | None

    @property
    def arn(self) -> str:
        """The caller's ARN, as STS reports it."""
        return f"arn:aws:sts::000000000000:assumed-role/syrtos/{self.job.name if self.job else 'owner'}"

    def may_read(self, bucket: str, key: str) -> bool:
        """Returns whether the caller may read an object, or the objects under a prefix."""
        return (
            self.job is None
            or _covers(_read_prefixes(self.job.request), bucket, key)
            or self.may_write(bucket, key)
        )

    def may_write(self, bucket: str, key: str) -> bool:
        """Returns whether the caller may write or remove an object."""
        return self.job is None or _covers(_write_prefixes(self.job.request), bucket, key)


def new_access_key() -> str:
    """Returns a new access key for a job."""
    return "SYRJ" + secrets.token_hex(8).upper()


def variables(home: Home, access_key: str, secret: str) -> dict[str, str]:
    """Returns the environment variables with which a script's AWS clients reach the service."""
    found = {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        # else clients ask an address of EC2 for credentials, and wait until nobody answers
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_REGION": REGION,
    }
    url = home.endpoint()
    if url:
        found |= {"AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url}
        certificate = home.certificate()
        found |= {"AWS_CA_BUNDLE": certificate} if certificate else {}
    return found


def job_secret(home: Home, access_key: str) -> str:
    """Returns a job's secret key."""
    # derived from its access key and the owner's secret, and stored nowhere
    digest = hmac.digest(home.keys()[1].encode(), access_key.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode()[:40]


def caller_of(home: Home, store: Store, access_key: str) -> Caller | None:
    """Returns the present holder of an access key: the owner, a job that has not ended, or None."""
    owner, secret = home.keys()
    # in constant time, or the time of an answer would tell how much of a guess is right
    if hmac.compare_digest(access_key.encode(), owner.encode()):
        return Caller(secret, None)
    # the keys of a job that has ended open nothing any more
    job = store.by_key(access_key) if access_key.startswith("SYRJ") else None
    return Caller(job_secret(home, access_key), job) if job and not job.state.final else None


def _read_prefixes(request: Mapping[str, Any]) -> list[str]:
    sources = [
        channel["DataSource"].get("S3DataSource") or {}
        for channel in request.get("InputDataConfig") or ()
    ]
    code = source_of(request.get("HyperParameters") or {})
    return [*(source.get("S3Uri", "") for source in sources), code]


def _write_prefixes(request: Mapping[str, Any]) -> list[str]:
    # with a slash at the end, or the job `a` could write where the results of `ab` are
    output = (
        f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/"
    )
    checkpoints = (request.get("CheckpointConfig") or {}).get("S3Uri", "")
    return [output, checkpoints.rstrip("/") + "/" if checkpoints else ""]


def _covers(prefixes: list[str], bucket: str, key: str) -> bool:
    allowed = [split(prefix) for prefix in prefixes if prefix.startswith("s3://")]
    return any(bucket == ours and key.startswith(prefix) for ours, prefix in allowed)
