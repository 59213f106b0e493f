"""boto3's clients of services that are not served: each shows the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from syrtos_jobs.http.server import Server
from syrtos_jobs.store.home import Home

# One operation of a service in each protocol of AWS's, and operations that are not here of services that are.
CALLS: dict[str, Callable[[Any], Any]] = {
    "ec2": lambda client: client.describe_instances(),
    "iam": lambda client: client.list_users(),
    "sts": lambda client: client.assume_role(
        RoleArn="arn:aws:iam::000000000000:role/a", RoleSessionName="ab"
    ),
    "sns": lambda client: client.list_topics(),
    "sqs": lambda client: client.list_queues(),
    "dynamodb": lambda client: client.list_tables(),
    "ecr": lambda client: client.describe_repositories(),
    "lambda": lambda client: client.list_functions(),
    "route53": lambda client: client.list_hosted_zones(),
    "arc-region-switch": lambda client: client.list_plans(),
    "cloudwatch": lambda client: client.describe_alarms(),
    "logs": lambda client: client.create_log_group(logGroupName="a"),
    "sagemaker": lambda client: client.list_models(),
    "sagemaker-runtime": lambda client: client.invoke_endpoint(EndpointName="a", Body=b"1"),
    "sagemaker-featurestore-runtime": lambda client: client.get_record(
        FeatureGroupName="a", RecordIdentifierValueAsString="1"
    ),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    server = Server(Home(tmp_path_factory.mktemp("home")), capacity=1)
    server.start()
    access_key, secret = server.service.home.keys()

    def make(name: str, secret: str = secret, **facts: Any) -> Any:
        config = Config(retries={"max_attempts": 0}, **facts)
        keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret}
        return boto3.client(
            name, endpoint_url=server.url, region_name="us-west-2", config=config, **keys
        )

    yield make
    server.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_client_shows_what_is_served(client: Callable[..., Any], name: str) -> None:
    with pytest.raises(
        ClientError, match=r"not served here: this is `syrtos serve`, which has SageMaker's"
    ) as error:
        CALLS[name](client(name))
    expected = "AccessDenied" if name in ("iam", "sts") else "UnknownOperationException"
    assert error.value.response["Error"]["Code"] == expected


@pytest.mark.parametrize("name", ["ec2", "lambda", "dynamodb"])
def test_one_with_wrong_keys_is_refused(client: Callable[..., Any], name: str) -> None:
    with pytest.raises(ClientError) as error:
        CALLS[name](client(name, secret="x" * 40))
    assert error.value.response["Error"]["Code"] == "SignatureDoesNotMatch"


def test_a_live_tail_is_refused_in_favour_of_others(client: Callable[..., Any]) -> None:
    group = "arn:aws:logs:us-west-2:000000000000:log-group:/aws/sagemaker/TrainingJobs"
    logs = client("logs", inject_host_prefix=False)
    with pytest.raises(ClientError, match="Use `aws logs tail --follow`, or filter_log_events"):
        logs.start_live_tail(logGroupIdentifiers=[group])
