"""boto3 itself: what SageMaker's SDKs stand on, and what scripts of people's own use."""

from __future__ import annotations

import pytest
from sdks import Service, needs, steps

pytestmark = [needs("v2"), pytest.mark.slow]


def test_training_jobs_and_their_logs(service: Service) -> None:
    found = service.run(
        "v2", "boto_jobs.py", access_key=service.variables["AWS_ACCESS_KEY_ID"]
    ).answer
    assert found["arn"] == "arn:aws:sagemaker:us-west-2:000000000000:training-job/counts-1"
    assert found["me"] == "000000000000"
    assert found["statuses"] == {
        **{f"counts-{k}": "Completed" for k in (1, 2, 3, 4)},
        "sleeps": "Stopped",
    }
    assert steps(found["description"])[-1] == "Completed"
    assert found["running"] == ["sleeps"]

    assert found["in use"][:2] == ["ResourceInUse", "400"]
    assert found["too big"][:2] == ["ResourceLimitExceeded", "400"]
    assert "syrtos serve --capacity 3" in found["too big"][2]
    assert found["bad name"][:2] == ["ValidationException", "400"]
    assert "no_underscores" in found["bad name"][2]
    assert found["bad uri"][:2] == ["ValidationException", "400"]
    assert found["missing"] == ["ValidationException", "400", "Requested resource not found."]
    assert found["stop missing"] == found["deleted"] == found["missing"]
    assert found["stop ended"][0] == "ValidationException"
    assert found["not here"][0] == "UnknownOperationException"
    assert found["no group"][0] == found["no stream"][0] == "ResourceNotFoundException"
    # SageMaker, S3 and STS each have words of their own
    assert found["stranger"] == [
        "UnrecognizedClientException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
    ]
    assert found["forger"] == [
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "SignatureDoesNotMatch",
    ]

    assert found["pages"] == [["counts-1", "counts-2", "counts-3"], ["counts-4"]]
    assert found["newest"] == ["sleeps", "counts-4"]
    assert found["later"] == []
    tags = [{tag["Key"]: tag["Value"] for tag in found[name]} for name in ("tags", "new tags")]
    assert tags == [{"team": "digits", "aim": "0.99"}, {"team": "letters", "new": ""}]

    lines = [*(f"line {k}" for k in range(25)), " ", "loss=0.25"]
    assert found["stream"]["logStreamName"].startswith("counts-1/algo-1-")
    assert found["forward"] == [lines[:10], lines[10:20], lines[20:], []]
    assert (found["last"], found["before last"]) == (lines[-3:], lines[-6:-3])
    assert found["filtered"] == ["line 2", *(f"line {k}" for k in range(20, 25))]

    assert found["metrics"] == ["number"]
    assert (found["sum"], found["average"]) == ([300.0], [12.0, 25.0])
    assert found["math"][:2] == ["ValidationError", "400"]


def test_objects(service: Service) -> None:
    found = service.run("v2", "boto_objects.py").answer
    assert found["buckets"] == ["things"]
    assert found["bucket again"] == ["BucketAlreadyOwnedByYou", "409"]
    assert found["etag"]
    assert found["head"] == [10, "text/plain", {"made": "today"}]
    assert found["ranges"] == ["some", "bytes", "bytes", "bytes"]
    assert found["range error"] == ["InvalidRange", "416"]
    assert found["missing"] == ["NoSuchKey", "404"]
    assert found["missing head"] == found["nothing written"] == ["404", "404"]
    assert found["missing bucket"] == ["NoSuchBucket", "404"]
    assert all(found[algorithm] for algorithm in ("CRC32", "SHA1", "SHA256"))
    assert found["wrong checksum"] == ["BadDigest", "400"]
    assert found["wrong md5"] == ["BadDigest", "400"]

    assert found["parts"] == [True, "3", {"parts": "three"}]
    assert found["large"]
    assert found["large copy"]
    assert found["copy"] == ["some bytes", {"made": "today"}]
    assert found["listed parts"] == [[1, 10]]
    assert found["given up"] == ["NoSuchUpload", "404"]

    assert found["pages"] == [
        ["many/0/0", "many/0/2", "many/0/4"],
        ["many/0/6", "many/1/1", "many/1/3"],
        ["many/1/5"],
    ]
    assert found["folders"] == ["a folder/", "copies/", "many/", "sums/"]
    assert found["files"] == ["large"]
    assert found["links"] == ["some bytes", "some bytes"]
    assert found["other links"] == ["403"] * 4
    assert found["unsigned link"] == "403"
    assert found["left"] == 0
    assert found["not empty"] == ["BucketNotEmpty", "409"]
    assert found["never done"] == ["NotImplemented", "501"]
