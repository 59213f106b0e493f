"""CloudWatch's metrics as boto3 asks for them, in each protocol that a version of it speaks."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from hypothesis import example, given
from hypothesis import strategies as st

from syrtos.run_dir import RunDir
from syrtos_jobs.api.service import ApiError
from syrtos_jobs.credentials import job_secret
from syrtos_jobs.http import model, protocols
from syrtos_jobs.http.server import Server
from syrtos_jobs.requests import states
from syrtos_jobs.store.home import Home
from syrtos_jobs.store.job_store import Record

GROUP = "/aws/sagemaker/TrainingJobs"
BEGAN = (int(time.time()) - 7200) // 3600 * 3600  # an hour's beginning
DEFINITIONS = {"MetricDefinitions": [{"Name": "train:loss", "Regex": "loss=(.*)"}]}
ENDED = ("Downloading", "Training", "Uploading", "Completed")


def add(server: Server, name: str, algorithm: dict[str, Any], *path: str) -> Record:
    """A job that has gone through the statuses of ``path``."""
    request = {
        "TrainingJobName": name,
        "AlgorithmSpecification": algorithm,
        "ResourceConfig": {},
        "OutputDataConfig": {},
    }
    record = Record(
        name=name, request=request, tags={}, state=states.initial_state(BEGAN), created=BEGAN, modified=time.time(), slots=99, spot=False,
        access_key=f"SYRJ{name.upper()}", metrics={"train:loss": [1.0, BEGAN]} if algorithm else {},
    )  # fmt: skip
    for status in path:
        record = record.with_transition(status)
    assert server.service.store.add(record)
    return record


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with a job that has definitions of metrics, one of Keras's, and one that waits."""
    found = Server(Home(tmp_path_factory.mktemp("service") / "home"), capacity=1)
    home = found.service.home
    add(found, "defined", DEFINITIONS, *ENDED)
    values = [(0, 4.0), (10, 2.0), (70, 1.0), (130, 0.5)]
    lines = [
        {"name": "train:loss", "time": BEGAN + s, "count": 1, "sum": v, "min": v, "max": v}
        for s, v in values
    ]
    write(home.job("defined") / "metrics.jsonl", lines)
    add(found, "keras", {}, *ENDED)
    run_dir = home.job("keras") / "attempt-1"
    write(
        RunDir(run_dir).epochs,
        [{"time": BEGAN + 60.0 * k, "logs": {"loss": 3.0 - k, "val<&>": 1}} for k in range(3)],
    )
    machine = {"number": 0, "cpu": 50.0, "cores": 2, "memory": 1, "memory_total": 4}
    write(
        RunDir(run_dir).usage(0), [{"time": BEGAN + 1.0, "machine": machine}, {"time": BEGAN + 2.0}]
    )
    add(found, "waits", {})
    found.start()
    yield found
    found.service.store.change("waits", lambda record: record.with_transition("Stopped"))
    found.close()


@pytest.fixture(scope="module", params=["json", "query", "smithy-rpc-v2-cbor"])
def cloudwatch(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """A client of boto3's whose model of CloudWatch allows one protocol alone."""
    described: Any = Loader().load_service_model("cloudwatch", "service-2")
    described["metadata"] |= {"protocol": request.param, "protocols": [request.param]}
    folder = tmp_path_factory.mktemp("models")
    write(folder / "cloudwatch" / "2010-08-01" / "service-2.json", [described])
    session = botocore.session.Session()
    session.register_component("data_loader", Loader(extra_search_paths=[str(folder)]))
    found = client(server, *server.service.home.keys(), session=session)
    assert found.meta.service_model.resolved_protocol == request.param
    return found


def client(server: Server, key: str, secret: str, session: Any = None) -> Any:
    keys: Any = {
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "region_name": "us-west-2",
    }
    return boto3.Session(botocore_session=session).client(
        "cloudwatch", endpoint_url=server.url, **keys
    )


def moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BEGAN + seconds, datetime.UTC)


def of_job(name: str = "defined", metric: str = "train:loss") -> dict[str, Any]:
    dimension = "Host" if "/" in name else "TrainingJobName"
    return {
        "Namespace": GROUP,
        "MetricName": metric,
        "Dimensions": [{"Name": dimension, "Value": name}],
    }


def statistics(**facts: Any) -> dict[str, Any]:
    """GetMetricStatistics' parameters."""
    times = {"StartTime": moment(0), "EndTime": moment(600), "Period": 60}
    return {**of_job(), **times, "Statistics": ["Average"], **facts}


def data(*queries: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """GetMetricData's parameters."""
    return {
        "MetricDataQueries": [*queries],
        "StartTime": moment(0),
        "EndTime": moment(600),
        **facts,
    }


def query(
    name: str = "q", stat: str = "Average", period: int = 60, metric: Any = None, **facts: Any
) -> dict[str, Any]:
    return {
        "Id": name,
        "MetricStat": {"Metric": metric or of_job(), "Period": period, "Stat": stat},
        **facts,
    }


def refused(call: Callable[..., Any], **facts: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**facts)
    response: Any = error.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return response["Error"]["Code"], response["Error"]["Message"]


def test_statistics(cloudwatch: Any) -> None:
    every = ["SampleCount", "Average", "Sum", "Minimum", "Maximum"]
    found = cloudwatch.get_metric_statistics(**statistics(Statistics=every))
    assert found["Label"] == "train:loss"
    first, second, third = found["Datapoints"]
    counted = {"SampleCount": 2.0, "Average": 3.0, "Sum": 6.0, "Minimum": 2.0, "Maximum": 4.0}
    assert first == {"Timestamp": moment(0), "Unit": "None", **counted}
    assert (second["Timestamp"], second["Average"], third["Average"]) == (moment(60), 1.0, 0.5)
    (whole,) = cloudwatch.get_metric_statistics(**statistics(Period=3600))["Datapoints"]
    assert whole["Average"] == 7.5 / 4
    texts = statistics(
        StartTime=moment(65).isoformat(), EndTime=BEGAN + 100, Statistics=["Maximum"]
    )
    assert cloudwatch.get_metric_statistics(**texts)["Datapoints"] == [
        {"Timestamp": moment(60), "Maximum": 1.0, "Unit": "None"}
    ]


def test_metrics_of_keras_and_of_its_instance(cloudwatch: Any) -> None:
    found = cloudwatch.get_metric_statistics(**statistics(**of_job("keras", "loss")))
    assert [point["Average"] for point in found["Datapoints"]] == [3.0, 2.0, 1.0]
    (cpu,) = cloudwatch.get_metric_statistics(
        **statistics(**of_job("keras/algo-1", "CPUUtilization"))
    )["Datapoints"]
    assert cpu == {"Timestamp": moment(0), "Average": 100.0, "Unit": "Percent"}
    wanted = query(metric=of_job("keras/algo-1", "MemoryUtilization"))
    assert cloudwatch.get_metric_data(**data(wanted))["MetricDataResults"][0]["Values"] == [25.0]


@pytest.mark.parametrize(
    "other",
    [
        of_job("nobody"),
        of_job("../../x"),
        of_job("defined", "other"),
        of_job("defined/algo-1"),
        of_job("keras/algo-2", "CPUUtilization"),
        of_job("keras/algo-x", "CPUUtilization"),
        {
            **of_job("keras/algo-1", "CPUUtilization"),
            "Dimensions": [{"Name": "TrainingJobName", "Value": "keras/algo-1"}],
        },
        {**of_job(), "Namespace": "AWS/EC2"},
        {**of_job(), "Dimensions": []},
        {**of_job(), "Unit": "Percent"},
    ],
)
def test_what_is_not_there_has_no_points(cloudwatch: Any, other: dict[str, Any]) -> None:
    assert cloudwatch.get_metric_statistics(**statistics(**other))["Datapoints"] == []


def test_data(cloudwatch: Any) -> None:
    queries = [
        query("a"),
        query("b", "Sum", 300, Label="sums"),
        query("c", metric=of_job("nobody")),
    ]
    a, b, c = cloudwatch.get_metric_data(**data(*queries))["MetricDataResults"]
    assert (a["Id"], a["Label"], a["StatusCode"]) == ("a", "train:loss", "Complete")
    assert (a["Timestamps"], a["Values"]) == ([moment(120), moment(60), moment(0)], [0.5, 1.0, 3.0])
    assert (b["Label"], b["Timestamps"], b["Values"]) == ("sums", [moment(0)], [7.5])
    assert (c["Id"], c["Values"]) == ("c", [])
    (first,) = cloudwatch.get_metric_data(**data(queries[0], ScanBy="TimestampAscending"))[
        "MetricDataResults"
    ]
    assert first["Values"] == [3.0, 1.0, 0.5]


@pytest.mark.parametrize("order", ["TimestampAscending", "TimestampDescending"])
def test_pages_of_data(cloudwatch: Any, order: str) -> None:
    asked = data(query("a"), query("b", "Sum", 300), query("c", "Maximum"), ScanBy=order)
    whole = {
        one["Id"]: one["Values"] for one in cloudwatch.get_metric_data(**asked)["MetricDataResults"]
    }
    for most in (1, 2, 3, 4, 7):
        pages = [*cloudwatch.get_paginator("get_metric_data").paginate(**asked, MaxDatapoints=most)]
        values: dict[str, list[float]] = {}
        for one in (one for page in pages for one in page["MetricDataResults"]):
            values.setdefault(one["Id"], []).extend(one["Values"])
        assert values == whole
        assert len(pages) == -(-7 // most)


def test_lists(cloudwatch: Any) -> None:
    found = cloudwatch.list_metrics(Namespace=GROUP)["Metrics"]
    names = [("defined", "train:loss"), ("keras", "loss"), ("keras", "val<&>")]
    of_host = [("keras/algo-1", "CPUUtilization"), ("keras/algo-1", "MemoryUtilization")]
    assert found == [of_job(*pair) for pair in (*names, *of_host)]
    assert cloudwatch.list_metrics()["Metrics"] == found
    assert cloudwatch.list_metrics(RecentlyActive="PT3H")["Metrics"] == found
    assert cloudwatch.list_metrics(MetricName="loss")["Metrics"] == [of_job("keras", "loss")]
    keras = [{"Name": "TrainingJobName", "Value": "keras"}]
    assert cloudwatch.list_metrics(Dimensions=keras)["Metrics"] == found[1:3]
    hosts = cloudwatch.list_metrics(Dimensions=[{"Name": "Host"}])["Metrics"]
    assert hosts == found[3:]
    assert (
        cloudwatch.list_metrics(Dimensions=[{"Name": "Host", "Value": "keras/algo-2"}])["Metrics"]
        == []
    )
    assert cloudwatch.list_metrics(Dimensions=[{"Name": "Other"}])["Metrics"] == []
    assert cloudwatch.list_metrics(Namespace="AWS/EC2")["Metrics"] == []


def test_pages_of_lists(cloudwatch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syrtos_jobs.http.cloudwatch_metrics._MOST_METRICS", 1)
    pages = [page["Metrics"] for page in cloudwatch.get_paginator("list_metrics").paginate()]
    assert [len(page) for page in pages] == [1, 4, 0]  # the last of three jobs has none
    assert refused(cloudwatch.list_metrics, NextToken="x")[0] == "InvalidNextToken"


def test_mistakes_in_statistics(cloudwatch: Any) -> None:
    ask = cloudwatch.get_metric_statistics
    code, text = refused(ask, **statistics(StartTime=moment(600)))
    assert (code, text) == (
        "InvalidParameterValue",
        "The parameter StartTime must be less than the parameter EndTime.",
    )
    code, text = refused(ask, **statistics(Period=61))
    assert (code, "61" in text) == ("InvalidParameterValue", True)
    code, text = refused(ask, **statistics(Period=5, EndTime=moment(86400)))
    assert (code, "17,280" in text) == ("InvalidParameterCombination", True)
    code, text = refused(ask, **statistics(ExtendedStatistics=["p90"]))
    assert (code, "Maximum" in text) == ("InvalidParameterValue", True)
    assert (
        refused(
            ask, **{name: value for name, value in statistics().items() if name != "Statistics"}
        )[0]
        == "MissingParameter"
    )
    assert refused(ask, **statistics(Statistics=["Median"]))[0] == "ValidationError"
    with pytest.raises(cloudwatch.exceptions.InvalidParameterValueException):
        ask(**statistics(Period=61))


def test_mistakes_in_data(cloudwatch: Any) -> None:
    ask = cloudwatch.get_metric_data
    code, text = refused(ask, **data(query(), {"Id": "e", "Expression": "q * 100"}))
    assert (code, "Metric math" in text) == ("ValidationError", True)
    for wrong in (query(stat="p90"), query(period=90), {"Id": "q"}):
        assert refused(ask, **data(wrong))[0] == "ValidationError"
    assert refused(ask, **data(query(), query()))[0] == "ValidationError"
    assert refused(ask, **data(query(), EndTime=moment(0)))[0] == "ValidationError"
    assert refused(ask, **data(query(), MaxDatapoints=-1))[0] == "ValidationError"
    for token in ("x", "1:x", "0:1e999.0"):
        assert refused(ask, **data(query(), NextToken=token))[0] == "InvalidNextToken"
    code, text = refused(cloudwatch.describe_alarms)
    assert (code, "DescribeAlarms" in text) == ("UnknownOperationException", True)


def test_strangers(server: Server) -> None:
    key = "SYRJWAITS"
    for keys, code in (
        ((key, job_secret(server.service.home, key)), "AccessDenied"),
        (("SYRTNOBODY", "x" * 40), "InvalidClientTokenId"),
        ((server.service.home.keys()[0], "x" * 40), "SignatureDoesNotMatch"),
    ):
        with pytest.raises(ClientError) as error:
            client(server, *keys).list_metrics()
        response: Any = error.value.response
        assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (
            code,
            403,
        )


_HEADERS = {"json": {"x-amz-target": "x"}, "cbor": {"smithy-protocol": "rpc-v2-cbor"}, "query": {}}


@pytest.mark.parametrize("headers", _HEADERS.values(), ids=_HEADERS)
@given(body=st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b"\x81" * 100_000)
@example(b"\xbb" + b"\xff" * 8)
@example(b"\x5b" + b"\x7f" + b"\xff" * 7)
@example(b"StartTime=1&StartTime.member=2")
@example(b"Dimensions.member.x.Name=a&Dimensions.member.y.Name=b")
@example(b'{"StartTime": 1e400, "Period": "x"}')
@example(b"Statistics.member.1=Sum&StartTime=x&Period=y")
def test_nonsense(headers: dict[str, str], body: bytes) -> None:
    wire = protocols.wire_of(headers)
    wire.name("/", headers, body)
    with contextlib.suppress(ApiError):
        protocols.read(
            wire, model.service_model("cloudwatch").operation_model("GetMetricStatistics"), body
        )
