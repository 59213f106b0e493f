"""Requests, answers and errors by AWS's own service models, as botocore sends and expects them."""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Mapping
from typing import Any, cast

import botocore.session
from botocore import validate
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator

from syrtos_jobs.api.service import ApiError

# The one extension of the API: folders of this machine.
_ALSO_FILES = frozenset({"S3Uri"})


@functools.cache
def service_model(name: str) -> ServiceModel:
    """Returns botocore's model of a service."""
    return botocore.session.get_session().get_service_model(name)


def operation(model: ServiceModel, target: str) -> OperationModel:
    """Returns the operation that a header ``X-Amz-Target: Prefix.Name`` names.

    Raises:
        ApiError: there is none.
    """
    prefix, _, name = target.rpartition(".")
    # botocore has no types, and its lazy properties look like objects of another class
    names, facts = (
        cast("list[str]", model.operation_names),
        cast("Mapping[str, str]", model.metadata),
    )
    if prefix != facts.get("targetPrefix") or name not in names:
        raise ApiError("UnknownOperationException", f"Unknown operation {target!r}.")
    return model.operation_model(name)


def input_of(operation: OperationModel) -> Shape | None:
    """Returns the shape of an operation's parameters; None if it has none."""
    return cast("Shape | None", operation.input_shape)


def parse_request(shape: Shape | None, body: bytes) -> dict[str, object]:
    """Returns a request's parameters from its body.

    Raises:
        ApiError: it is no JSON object, or the service's model does not allow it.
    """
    try:
        params = json.loads(body or b"{}", parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ApiError("SerializationException", f"The body is no JSON: {error}.") from error
    if not isinstance(params, dict):
        raise ApiError("SerializationException", "The body is no JSON object.")
    if shape is None:
        return {}
    return check_params({name: value for name, value in params.items() if value is not None}, shape)


def check_params(
    params: dict[str, Any], shape: Shape, code: str = "ValidationException"
) -> dict[str, object]:
    """Returns a request's parameters after a check by the service's model.

    Args:
        code: the code of the error.

    Raises:
        ApiError: the service's model does not allow them.
    """
    report = _Strict().validate(params, shape)
    if report.has_errors():
        raise ApiError(code, report.generate_report())
    return params


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def answer(operation: OperationModel, result: Mapping[str, object]) -> bytes:
    """Returns an answer's body, checked against the model as a client would."""
    shape = operation.output_shape
    if shape is None:
        return b"{}"
    report = _Answers().validate(result, shape)
    # a mistake of this service, which a client would report as its own
    if report.has_errors():
        raise AssertionError(
            f"{operation.name} would answer what its model does not allow:"
            f" {report.generate_report()}"
        )
    return json.dumps(result).encode()


class _Answers(ParamValidator):
    """Checks answers, whose times are seconds, as in JSON 1.1."""

    def _validate_timestamp(
        self, param: object, shape: Shape, errors: validate.ValidationErrors, name: str
    ) -> None:
        if isinstance(param, bool) or not isinstance(param, (int, float)):
            errors.report(name, "invalid type", param=param, valid_types=["seconds since 1970"])


class _Errors(validate.ValidationErrors):
    def _format_error(self, error: tuple[str, str, Mapping[str, object]]) -> str:
        reason, name, additional = error
        if reason == "constraint":
            return (
                f"1 validation error detected: Value '{additional['param']}' at"
                f" '{self._get_name(name)}' failed to satisfy constraint: Member must"
                f" {additional['constraint']}"
            )
        return str(super()._format_error(error))


class _Strict(_Answers):
    """Checks all that the model says.

    Botocore's clients leave lengths, patterns and enumerations to the service.
    """

    def validate(self, params: object, shape: Shape) -> _Errors:
        errors = _Errors()
        self._validate(params, shape, errors, name="")
        return errors

    def _shape_has_constraints(self, shape: Shape) -> bool:
        """Returns True, so that botocore checks texts and numbers in a list beyond their types."""
        return True

    def _validate(
        self, params: object, shape: Shape, errors: validate.ValidationErrors, name: str
    ) -> None:
        # for Python True is a number too
        if isinstance(params, bool) and shape.type_name != "boolean":
            errors.report(name, "invalid type", param=params, valid_types=[shape.type_name])
            return
        super()._validate(params, shape, errors, name)
        if isinstance(params, str) and shape.type_name == "string":
            self._check_string(params, shape, errors, name)
        most = _metadata(shape).get("max")
        if most is not None and _measure(params) > most:
            errors.report(
                name,
                "constraint",
                param=_short(params),
                constraint=f"have length or value less than or equal to {most}",
            )

    def _check_string(
        self, text: str, shape: Shape, errors: validate.ValidationErrors, name: str
    ) -> None:
        facts = _metadata(shape)
        allowed, pattern = facts.get("enum"), facts.get("pattern")
        # jobs run here whatever their instances are called, also on types that are younger than
        # this botocore
        if allowed and text not in allowed and shape.name != "TrainingInstanceType":
            errors.report(
                name,
                "constraint",
                param=_short(text),
                constraint=f"satisfy enum value set: {allowed}",
            )
        if pattern and not (text.startswith("file://") and shape.name in _ALSO_FILES):
            compiled = _pattern(pattern)
            if compiled and not compiled.fullmatch(text):
                constraint = f"satisfy regular expression pattern: {pattern}"
                errors.report(name, "constraint", param=_short(text), constraint=constraint)


def _metadata(shape: Shape) -> Mapping[str, Any]:
    """Returns the constraints of a shape by their names in the service's model."""
    return cast("Mapping[str, Any]", shape.metadata)


@functools.cache
def _pattern(text: str) -> re.Pattern[str] | None:
    """Returns a compiled pattern; None for the few that Python does not read."""
    # AWS writes patterns in Java's syntax
    try:
        return re.compile(
            text.replace(r"\p{L}", r"\w").replace(r"\p{Z}", r"\s").replace(r"\p{N}", r"\d")
        )
    except re.error:
        return None


def _measure(value: object) -> float:
    if isinstance(value, (str, list, dict)):
        return len(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "..."


def iso(seconds: float) -> str:
    """Returns a time in the form of XML answers."""
    return (
        datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        + "Z"
    )
