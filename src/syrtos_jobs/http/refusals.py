"""Errors in the protocol that a client reads, also for clients of services that are not here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from xml.sax.saxutils import escape

from starlette.responses import Response

from syrtos_jobs.http import identity, protocols

_IN_XML = ("route53", "cloudfront")  # and S3: the protocol rest-xml


def error(
    service: str, headers: Mapping[str, str], code: str, message: str, status: int
) -> Response:
    """Returns an error in the protocol of a request for a service that is not here."""
    # the request tells the protocols apart, and its service where two look alike: EC2's, rest-xml
    if service == "ec2":
        inside = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        text = f"<Response><Errors>{inside}</Errors><RequestID>0</RequestID></Response>"
        return Response(text, status, media_type="text/xml")
    if service in _IN_XML or headers.get("content-type", "").startswith(
        "application/x-www-form-urlencoded"
    ):
        return identity.error(code, message, status)
    if headers.get("smithy-protocol") == "rpc-v2-cbor":
        return protocols.wire_of(headers).error(code, message, status)
    return json_error(code, message, status)


def json_error(code: str, message: str, status: int) -> Response:
    """Returns an error in the form of AWS's JSON protocols."""
    text = json.dumps({"__type": code, "message": message})
    return Response(
        text, status, {"x-amzn-errortype": code}, media_type="application/x-amz-json-1.1"
    )
