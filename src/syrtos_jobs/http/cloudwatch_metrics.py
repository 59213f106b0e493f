"""The CloudWatch metrics of SageMaker: metrics of training jobs, and use of their instances."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from sqlalchemy import ColumnElement
from starlette.responses import Response

from syrtos_jobs.api.service import ApiError, Service
from syrtos_jobs.credentials import Caller
from syrtos_jobs.http import model, protocols, unserved
from syrtos_jobs.http.signing import UnsignedRequest
from syrtos_jobs.observation import logs, series
from syrtos_jobs.observation.series import STATISTICS, Sample
from syrtos_jobs.store.job_store import Record, columns

_JOB, _HOST = "TrainingJobName", "Host"
_MOST_STATISTICS, _MOST_DATA, _MOST_METRICS = 1440, 100_800, 500
_LISTED = 14 * 86400.0  # seconds: CloudWatch lists metrics that had values in the last two weeks
_JOBS = 50


# Returns the samples of all metrics of a job or an instance, given the name and the value of its
# dimension.
ReadSeries = Callable[[str, str], Mapping[str, Sequence[Sample]]]


class Dimension(TypedDict):
    """The thing that a metric is about: a job, or an instance of one."""

    Name: str
    Value: str


class MetricName(TypedDict):
    """A metric in an answer."""

    Namespace: str
    MetricName: str
    Dimensions: list[Dimension]


class MetricsService:
    """Answers requests from the folders of a service's jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = {
            "GetMetricData": self.get_metric_data,
            "GetMetricStatistics": self.get_metric_statistics,
            "ListMetrics": self.list_metrics,
        }

    def answer(
        self, path: str, headers: Mapping[str, str], body: bytes, caller: Caller
    ) -> Response:
        """Answers a request whose signature has been checked."""
        wire = protocols.wire_of(headers)
        name = wire.name(path, headers, body)
        if caller.job is not None:
            raise UnsignedRequest(
                "AccessDenied",
                f"User: {caller.arn} is not authorized to perform: cloudwatch:{name}",
            )
        if name not in self._operations:
            raise ApiError(unserved.CODE, unserved.explain_operation("cloudwatch", name))
        operation = model.service_model("cloudwatch").operation_model(name)
        result = self._operations[name](protocols.read(wire, operation, body))
        # only for its check: the answer itself is in the client's protocol
        model.answer(operation, result)
        return wire.answer(operation, result)

    def get_metric_statistics(self, request: dict[str, Any]) -> dict[str, object]:
        """Returns the statistics of one metric over periods."""
        start, end, period = request["StartTime"], request["EndTime"], request["Period"]
        if request.get("ExtendedStatistics"):
            raise ApiError(
                "InvalidParameterValue",
                f"ExtendedStatistics are not something that syrtos does. {_THERE_ARE}",
            )
        if not request.get("Statistics"):
            raise ApiError("MissingParameter", "The parameter Statistics is required.")
        _check_times(start, end, period, "InvalidParameterValue")
        _check_count((end - start) / period)
        points = [
            {"Timestamp": sample.time, "Unit": _unit(request)}
            | {name: STATISTICS[name](sample) for name in request["Statistics"]}
            for sample in series.over_periods(
                self._samples(request, request, self._series), start, end, period
            )
        ]
        return {"Label": request["MetricName"], "Datapoints": points}

    def get_metric_data(self, request: dict[str, Any]) -> dict[str, object]:
        """Returns a page of the points of several metrics, metric by metric."""
        queries, left = (
            request["MetricDataQueries"],
            min(request.get("MaxDatapoints", _MOST_DATA), _MOST_DATA),
        )
        _check_queries(queries, request)
        first, after = _parse_token(request.get("NextToken"))
        # several queries ask for metrics of one job, whose files are read once for all of them
        read = functools.cache(self._series)
        results: list[dict[str, object]] = []
        for number, query in enumerate(queries[first:], first):
            points = self._points(query, request, read)
            if number == first and after is not None:
                points = [
                    point
                    for point in points
                    if (point[0] > after if _ascends(request) else point[0] < after)
                ]
            page = points[:left]
            left -= len(page)
            results.append(_result(query, page, len(page) == len(points)))
            if len(page) < len(points):
                # a time, and not a number of points: a job that trains adds points in the meantime
                last = page[-1][0] if page else after if number == first else None
                return {
                    "MetricDataResults": results,
                    "NextToken": f"{number}:{'' if last is None else last}",
                }
        return {"MetricDataResults": results}

    def list_metrics(self, request: dict[str, Any]) -> dict[str, object]:
        """Returns a page of metrics of jobs changed in the last two weeks, newest jobs first."""
        found: list[MetricName] = []
        if request.get("Namespace", logs.GROUP) != logs.GROUP:
            return {"Metrics": found}
        wanted = {one["Name"]: one.get("Value") for one in request.get("Dimensions") or ()}
        for number, record in self._jobs(wanted, request, _number(request.get("NextToken"))):
            if len(found) >= _MOST_METRICS:
                return {"Metrics": found, "NextToken": str(number)}
            found += [
                metric
                for metric in self._metrics(record, wanted)
                if _is_wanted(metric, wanted, request)
            ]
        return {"Metrics": found}

    # -- values --------------------------------------------------------------------------------

    def _points(
        self, query: Mapping[str, Any], request: Mapping[str, Any], read: ReadSeries
    ) -> list[tuple[float, float]]:
        stat = query["MetricStat"]
        samples = self._samples(stat["Metric"], stat, read)
        found = series.over_periods(
            samples, request["StartTime"], request["EndTime"], stat["Period"]
        )
        return [
            (sample.time, STATISTICS[stat["Stat"]](sample))
            for sample in (found if _ascends(request) else found[::-1])
        ]

    def _samples(
        self, metric: Mapping[str, Any], asked: Mapping[str, Any], read: ReadSeries
    ) -> Sequence[Sample]:
        """Returns the samples of a metric.

        There are none if there is no such metric, or none with the unit that is asked for.
        """
        dimensions, unit = metric.get("Dimensions") or (), _unit(metric)
        if (
            metric.get("Namespace") != logs.GROUP
            or len(dimensions) != 1
            or asked.get("Unit", unit) != unit
        ):
            return []
        return read(dimensions[0]["Name"], dimensions[0]["Value"]).get(
            metric.get("MetricName", ""), []
        )

    def _series(self, dimension: str, value: str) -> Mapping[str, Sequence[Sample]]:
        """Returns the samples of all metrics of a job or an instance, by the metric's name."""
        job, _, host = value.partition("/algo-")
        record = self._service.store.get(job)
        if record is None or dimension not in (_JOB, _HOST) or (dimension == _HOST) != bool(host):
            return {}
        folder = self._service.home.job(record.name)
        if dimension == _HOST:
            return series.of_hosts(folder).get(
                int(host) if re.fullmatch(r"[1-9]\d{0,5}", host) else 0, {}
            )
        return series.of_job(folder, _has_definitions(record))

    # -- names ---------------------------------------------------------------------------------

    def _jobs(
        self, wanted: Mapping[str, str | None], request: Mapping[str, object], first: int
    ) -> Iterator[tuple[int, Record]]:
        """Yields jobs from number ``first`` on, with their numbers."""
        recent = 3 * 3600.0 if request.get("RecentlyActive") else _LISTED
        conditions: list[ColumnElement[bool]] = [columns.modified >= time.time() - recent]
        named = {str(value).partition("/")[0] for value in wanted.values() if value is not None}
        conditions += [columns.name == name for name in named]
        after: int | None = first
        while after is not None:
            begin = after
            page, after = self._service.store.find(
                conditions, [columns.created.desc(), columns.name], begin, _JOBS
            )
            yield from enumerate(page, begin)

    def _metrics(self, record: Record, wanted: Mapping[str, str | None]) -> Iterator[MetricName]:
        folder = self._service.home.job(record.name)
        if {*wanted} <= {_JOB}:
            names = record.metrics if _has_definitions(record) else series.of_job(folder, False)
            yield from (_metric(name, _JOB, record.name) for name in sorted(names))
        if {*wanted} <= {_HOST}:
            for host, samples in series.of_hosts(folder).items():
                yield from (_metric(name, _HOST, f"{record.name}/algo-{host}") for name in samples)


def _has_definitions(record: Record) -> bool:
    return bool((record.request.get("AlgorithmSpecification") or {}).get("MetricDefinitions"))


def _metric(name: str, dimension: str, value: str) -> MetricName:
    return {
        "Namespace": logs.GROUP,
        "MetricName": name,
        "Dimensions": [{"Name": dimension, "Value": value}],
    }


def _is_wanted(
    metric: MetricName, wanted: Mapping[str, str | None], request: Mapping[str, object]
) -> bool:
    """Returns whether a metric has the name and the dimensions that a request asks for."""
    values = {one["Name"]: one["Value"] for one in metric["Dimensions"]}
    named = request.get("MetricName", metric["MetricName"]) == metric["MetricName"]
    return named and all(
        name in values and value in (None, values[name]) for name, value in wanted.items()
    )


def _unit(metric: Mapping[str, Any]) -> str:
    of_host = any(one["Name"] == _HOST for one in metric.get("Dimensions") or ())
    return "Percent" if of_host else "None"


# -- requests ----------------------------------------------------------------------------------

_THERE_ARE = f"There are {', '.join(STATISTICS)}."


def _check_times(start: float, end: float, period: int, code: str) -> None:
    if start >= end:
        raise ApiError(code, "The parameter StartTime must be less than the parameter EndTime.")
    if period not in (1, 5, 10, 20, 30) and (period < 60 or period % 60):
        raise ApiError(
            code,
            "The parameter Period must be 1, 5, 10, 20, 30 or a multiple of 60. Received:"
            f" {period}.",
        )


def _check_count(points: float) -> None:
    if points > _MOST_STATISTICS:
        raise ApiError(
            "InvalidParameterCombination",
            f"You have requested up to {int(points):,} datapoints, which exceeds the limit of"
            f" {_MOST_STATISTICS:,}. You may reduce the datapoints requested by increasing Period,"
            " or decreasing the time range.",
        )


def _check_queries(queries: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> None:
    names = [query["Id"] for query in queries]
    if request.get("MaxDatapoints", 1) < 1:
        raise ApiError("ValidationError", "The parameter MaxDatapoints must be 1 or more.")
    if not names or len({*names}) < len(names):
        raise ApiError(
            "ValidationError",
            "The parameter MetricDataQueries needs queries, each with another Id.",
        )
    for query in queries:
        if "Expression" in query:
            text = (
                f"Metric math is not something that syrtos does: the query {query['Id']} has an"
                " Expression. Ask by MetricStat."
            )
            raise ApiError("ValidationError", text)
        if "MetricStat" not in query:
            raise ApiError("ValidationError", f"The query {query['Id']} needs a MetricStat.")
        stat = query["MetricStat"]
        _check_times(request["StartTime"], request["EndTime"], stat["Period"], "ValidationError")
        if stat["Stat"] not in STATISTICS:
            raise ApiError(
                "ValidationError",
                f"The Stat {stat['Stat']} is not something that syrtos does. {_THERE_ARE}",
            )


def _ascends(request: Mapping[str, object]) -> bool:
    return request.get("ScanBy") == "TimestampAscending"


def _result(
    query: Mapping[str, Any], points: Sequence[tuple[float, float]], complete: bool
) -> dict[str, object]:
    return {
        "Id": query["Id"],
        "Label": (
            query.get("Label") or query["MetricStat"]["Metric"].get("MetricName") or query["Id"]
        ),
        "Timestamps": [when for when, _ in points],
        "Values": [value for _, value in points],
        "StatusCode": "Complete" if complete else "PartialData",
    }


def _parse_token(token: str | None) -> tuple[int, float | None]:
    """Returns the place at which a page of GetMetricData begins.

    It is the number of a query, and the time of the last of this query's points that were given, or
    None.
    """
    found = re.fullmatch(r"(\d{1,4}):(-?\d{1,12}\.\d{1,9})?", token or "0:")
    if not found:
        raise _bad_token()
    return int(found[1]), float(found[2]) if found[2] else None


def _number(token: str | None) -> int:
    if token and not re.fullmatch(r"\d{1,12}", token):
        raise _bad_token()
    return int(token or 0)


def _bad_token() -> ApiError:
    return ApiError("InvalidNextToken", "The NextToken is not one that this service has given.")
