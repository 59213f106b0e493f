"""The protocols that clients of CloudWatch's metrics speak; the operations are the same in each.

They are the query protocol (a form, and XML), JSON 1.0 and CBOR.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Protocol, cast
from xml.sax.saxutils import escape

from botocore.model import OperationModel, ShapeResolver, StructureShape
from botocore.parsers import RpcV2CBORParser
from botocore.serialize import RpcV2CBORSerializer
from botocore.utils import parse_to_aware_datetime
from starlette.responses import Response

from syrtos_jobs.api.service import ApiError
from syrtos_jobs.http import identity, model

_SERVICE = "GraniteServiceVersion20100801"  # CloudWatch's name in requests
_NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_TEXTS = {
    "Texts": {"type": "map", "key": {"shape": "Text"}, "value": {"shape": "Text"}},
    "Text": {"type": "string"},
}


class TypedShape(Protocol):
    """A shape of botocore's model, whose own classes have no types.

    Attributes:
        type_name: ``structure``, ``list``, ``timestamp``, ``string`` ...
        members: the shapes of a structure's members.
        member: the shape of a list's members.
    """

    type_name: str
    members: Mapping[str, TypedShape]
    member: TypedShape


class Wire(Protocol):
    """A protocol: the form of an operation's name, of parameters, results and errors."""

    def name(self, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """Returns the operation that a request asks for; empty if it names none."""
        ...

    def read(self, body: bytes) -> object:
        """Returns the request's parameters, as texts if the protocol has no other types."""
        ...

    def answer(self, operation: OperationModel, result: Mapping[str, object]) -> Response:
        """Returns the response with a result."""
        ...

    def error(self, code: str, message: str, status: int) -> Response:
        """Returns the response with an error, whose code is one of the query protocol."""
        ...


def wire_of(headers: Mapping[str, str]) -> Wire:
    """Returns the protocol of a request."""
    if headers.get("smithy-protocol") == "rpc-v2-cbor":
        return _Cbor()
    return _Json() if "x-amz-target" in headers else _Query()


def read(wire: Wire, operation: OperationModel, body: bytes) -> dict[str, object]:
    """Returns a request's parameters as Python values, checked by the service's model.

    Times are seconds since 1970.

    Raises:
        ApiError: they can't be read, or the model does not allow them.
    """
    shape = model.input_of(operation)
    try:
        found = _convert_types(cast(TypedShape, shape), wire.read(body))
    except Exception as error:
        # any: botocore's decoder was made for answers of trusted services, and checks little
        raise ApiError("ValidationError", f"The request can't be read: {error}") from error
    if not isinstance(found, dict):
        raise ApiError("ValidationError", "The request has no parameters.")
    assert shape is not None  # each operation that is served has parameters
    return model.check_params(found, shape, "ValidationError")


def _convert_types(shape: TypedShape, value: Any) -> Any:
    """Returns a value with the types of its shape.

    A value of a wrong type stays, for the model's check to report.
    """
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        members = shape.members.items()
        return {
            name: _convert_types(member, value[name])
            for name, member in members
            if value.get(name) is not None
        }
    if kind == "list":
        # a form names the members of a list `Name.member.1`, `Name.member.2` ...
        if isinstance(value, dict):
            value = [
                one
                for _, one in sorted(
                    (value.get("member") or {}).items(), key=lambda pair: int(pair[0])
                )
            ]
        return [_convert_types(shape.member, one) for one in value or ()]
    if kind == "timestamp":
        return parse_to_aware_datetime(value).timestamp()
    if isinstance(value, str):
        if kind == "integer":
            return int(value)
        return value == "true" if kind == "boolean" else value
    return value


class _Json:
    def name(self, path: str, headers: Mapping[str, str], body: bytes) -> str:
        service, _, name = headers["x-amz-target"].partition(".")
        return name if service == _SERVICE else ""

    def read(self, body: bytes) -> object:
        return json.loads(body)

    def answer(self, operation: OperationModel, result: Mapping[str, object]) -> Response:
        return Response(json.dumps(result), media_type="application/x-amz-json-1.0")

    def error(self, code: str, message: str, status: int) -> Response:
        text = json.dumps({"__type": _type_of(code), "message": message})
        return Response(
            text, status, _old_name(code, status), media_type="application/x-amz-json-1.0"
        )


class _Cbor:
    _HEADERS = {"smithy-protocol": "rpc-v2-cbor"}

    def name(self, path: str, headers: Mapping[str, str], body: bytes) -> str:
        found = re.fullmatch(rf"/service/{_SERVICE}/operation/(\w+)", path)
        return found[1] if found else ""

    def read(self, body: bytes) -> object:
        parser = RpcV2CBORParser()
        return parser.parse_data_item(parser.get_peekable_stream_from_bytes(body)) if body else {}

    def answer(self, operation: OperationModel, result: Mapping[str, object]) -> Response:
        return Response(
            _cbor(result, operation.output_shape),
            headers=self._HEADERS,
            media_type="application/cbor",
        )

    def error(self, code: str, message: str, status: int) -> Response:
        texts = {"__type": _type_of(code), "message": message}
        body = _cbor(texts, ShapeResolver(_TEXTS).get_shape_by_name("Texts"))
        return Response(
            body, status, self._HEADERS | _old_name(code, status), media_type="application/cbor"
        )


def _cbor(value: Mapping[str, object], shape: object) -> bytes:
    # botocore's clients have a serializer for requests alone, whose step for the body serves
    # answers as well
    return RpcV2CBORSerializer()._serialize_body_params(value, shape)


class _Query:
    def name(self, path: str, headers: Mapping[str, str], body: bytes) -> str:
        return dict(_form(body)).get("Action", "")

    def read(self, body: bytes) -> object:
        tree: dict[str, Any] = {}
        # `Dimensions.member.1.Name=a` becomes {"Dimensions": {"member": {"1": {"Name": "a"}}}}
        for name, value in _form(body):
            *path, last = name.split(".")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[last] = value
        return tree

    def answer(self, operation: OperationModel, result: Mapping[str, object]) -> Response:
        return identity.query_answer(
            str(operation.name), _xml(cast(TypedShape, operation.output_shape), result), _NAMESPACE
        )

    def error(self, code: str, message: str, status: int) -> Response:
        return identity.error(code, message, status)


def _form(body: bytes) -> list[tuple[str, str]]:
    return urllib.parse.parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)


def _xml(shape: TypedShape, value: Any) -> str:
    if shape.type_name == "structure":
        return "".join(
            f"<{name}>{_xml(shape.members[name], one)}</{name}>" for name, one in value.items()
        )
    if shape.type_name == "list":
        return "".join(f"<member>{_xml(shape.member, one)}</member>" for one in value)
    if shape.type_name == "timestamp":
        return model.iso(value)
    # XML can't hold these characters in any spelling
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "\ufffd", escape(str(value)))


def _type_of(code: str) -> str:
    """Returns the name of an error's shape, which the younger protocols use."""
    shapes = cast("list[StructureShape]", model.service_model("cloudwatch").error_shapes)
    return next((str(shape.name) for shape in shapes if shape.error_code == code), code)


def _old_name(code: str, status: int) -> dict[str, str]:
    """Returns a header with the error's code, for programs written for the query protocol."""
    return {"x-amzn-query-error": f"{code};{'Sender' if status < 500 else 'Receiver'}"}
