"""The entry of every request.

A request's signature is checked, then the service that it was signed for answers.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from syrtos_jobs.api.service import ApiError, Service
from syrtos_jobs.complaints import complain_in_full, hindrance
from syrtos_jobs.credentials import Caller, caller_of
from syrtos_jobs.http import bodies, identity, model, protocols, refusals, signing, unserved
from syrtos_jobs.http.bodies import BodyTooLargeError
from syrtos_jobs.http.cloudwatch import LogsService
from syrtos_jobs.http.cloudwatch_metrics import MetricsService
from syrtos_jobs.http.exposition import Exposition
from syrtos_jobs.http.health import Health
from syrtos_jobs.http.page import Page
from syrtos_jobs.http.s3 import S3
from syrtos_jobs.http.s3_form import S3Error, error_response
from syrtos_jobs.http.signing import UnsignedRequest
from syrtos_jobs.storage.objects import ObjectChangedError
from syrtos_jobs.tuning.operations import Operations

_TRAINING = (
    "CreateTrainingJob", "DescribeTrainingJob", "ListTrainingJobs", "StopTrainingJob", "UpdateTrainingJob",
    "DeleteTrainingJob", "AddTags", "ListTags", "DeleteTags",
)  # fmt: skip
_TUNING = (
    "CreateHyperParameterTuningJob", "DescribeHyperParameterTuningJob", "ListHyperParameterTuningJobs", "StopHyperParameterTuningJob",
    "DeleteHyperParameterTuningJob", "ListTrainingJobsForHyperParameterTuningJob",
)  # fmt: skip
_CHANGING = re.compile(r"(Create|Stop)(TrainingJob|HyperParameterTuningJob)")
_LOGS = ("DescribeLogGroups", "DescribeLogStreams", "GetLogEvents", "FilterLogEvents")
_QUICK = re.compile(r"SageMaker\.(DescribeTrainingJob|ListTrainingJobs|ListTags)")
_Operation = Callable[[dict[str, Any]], Mapping[str, object]]


class App:
    """The ASGI application.

    Args:
        changed: called when a job was created or stopped.
        health: answers those who watch the service.
    """

    def __init__(self, service: Service, changed: Callable[[], None], health: Health) -> None:
        self._service = service
        self._changed = changed
        self._s3 = S3(service.objects)
        self._metrics = MetricsService(service)
        # these check keys of their own, a token in a cookie and one in a header, or need none
        self._unsigned = (Page(service, changed), Exposition(service), health)
        self._operations = {
            "sagemaker": {
                **{name: getattr(service, _snake(name)) for name in _TRAINING},
                **{name: getattr(Operations(service), _snake(name)) for name in _TUNING},
            },
            "logs": {name: getattr(LogsService(service), _snake(name)) for name in _LOGS},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request; an error inside is reported to the outside without its details."""
        if scope["type"] != "http":
            return
        body = bodies.Incoming(scope, receive)
        try:
            response = await self._answer(Request(scope, body.receive))
            # a request that was refused before its body was read must not spoil the next one
            if not await body.drain():
                _last(response)
        except ClientDisconnect:
            return
        await response(scope, body.receive, send)

    async def _answer(self, request: Request) -> Response:
        url = request.scope["raw_path"].decode("latin1").partition("?")[0]
        if request.scope["query_string"]:
            url += "?" + request.scope["query_string"].decode("latin1")
        headers = {
            name.decode("latin1"): value.decode("latin1")
            for name, value in request.scope["headers"]
        }
        names = [name for name, _ in request.scope["headers"]]
        # one of the two may not be the one that was signed
        if len(set(names)) < len(names):
            return _error(request, "", "InvalidRequest", "A header was sent twice.", 400)
        service = signing.service_of(url, headers)
        try:
            if not service and (
                unsigned := next((one for one in self._unsigned if one.serves(request)), None)
            ):
                return await unsigned.answer(request)
            return await self._answer_signed(request, url, headers, service)
        except BodyTooLargeError:
            text = "Your proposed upload exceeds the maximum allowed size"
            return _error(request, service, "EntityTooLarge", text, 413)
        except UnicodeDecodeError:
            return _error(request, service, "InvalidURI", "Couldn't parse the specified URI.", 400)
        except UnsignedRequest as error:
            code = _NAMES.get(service, {}).get(error.code, error.code)
            status = 400 if error.code in _MALFORMED else 403
            return _error(request, service, code, str(error), status)
        except ObjectChangedError:
            text = "At least one of the pre-conditions you specified did not hold."
            return _error(request, service, "PreconditionFailed", text, 412)
        except S3Error as error:
            return error_response(error, request)
        except ApiError as error:
            return _error(request, service, error.code, str(error), 400)
        except ClientDisconnect:
            raise
        except Exception as error:
            # its details are for the service's own log: they may name files and keys
            complain_in_full()
            if why := hindrance(error):
                return _error(request, service, "ServiceUnavailable", why, 503)
            text = "We encountered an internal error. Please try again."
            code = "InternalFailure" if service != "s3" else "InternalError"
            return _error(request, service, code, text, 500)

    async def _answer_signed(
        self, request: Request, url: str, headers: dict[str, str], service: str
    ) -> Response:
        who = functools.partial(caller_of, self._service.home, self._service.store)
        # before the body is read: strangers must not make the service hold megabytes
        if service != "s3" and who(signing.claimed_key(headers)) is None:
            raise UnsignedRequest(
                "InvalidClientTokenId", "The security token included in the request is invalid."
            )
        body = b"" if service == "s3" else await bodies.read_short(request)
        payload = headers.get("x-amz-content-sha256", signing.UNSIGNED)
        if service != "s3":
            payload = hashlib.sha256(body).hexdigest()
        now = datetime.datetime.now(datetime.UTC)
        signed = signing.check(request.method, url, headers, payload, who, now)
        # by the signature itself, and not by what the request claims to be
        if signed.service != service:
            raise UnsignedRequest(
                "SignatureDoesNotMatch", "The request was signed for another service."
            )
        if service == "s3":
            return await self._s3.answer(request, signed)
        if service in ("sts", "iam"):
            return identity.answer(service, body, signed.caller)
        if service == "monitoring":
            path = url.partition("?")[0]
            return await run_in_threadpool(self._metrics.answer, path, headers, body, signed.caller)
        target = headers.get("x-amz-target", "")
        if service not in self._operations or request.method != "POST" or not target:
            # requests to endpoints, which SageMaker has too, name a path instead of a target
            path = (
                ""
                if service not in self._operations
                else f" ({request.method} {url.partition('?')[0]})"
            )
            raise ApiError(unserved.CODE, unserved.explain(service + path))
        # such an answer takes a fifth of a millisecond: handing it to a thread would cost more
        if _QUICK.fullmatch(target):
            return self._operate(service, target, body, signed.caller)
        return await run_in_threadpool(self._operate, service, target, body, signed.caller)

    def _operate(self, service: str, target: str, body: bytes, caller: Caller) -> Response:
        described = model.operation(model.service_model(service), target)
        name = str(described.name)
        operate: _Operation | None = self._operations[service].get(name)
        if operate is None:
            raise ApiError(unserved.CODE, unserved.explain_operation(service, name))
        request = model.parse_request(model.input_of(described), body)
        _check_allowed(caller, name, request)
        result = model.answer(described, operate(request))
        if _CHANGING.fullmatch(name):
            self._changed()
        return Response(result, media_type="application/x-amz-json-1.1")


_MALFORMED = frozenset(
    {
        "IncompleteSignature",
        "InvalidRequest",
        "IncompleteBody",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "RequestTimeout",
    }
)


# The names that services give to refusals; `signing` uses those of STS.
_JSON_NAMES = {
    "InvalidClientTokenId": "UnrecognizedClientException",
    "SignatureDoesNotMatch": "InvalidSignatureException",
    "RequestTimeTooSkewed": "InvalidSignatureException",
    "MissingAuthenticationToken": "MissingAuthenticationTokenException",
    "IncompleteSignature": "IncompleteSignatureException",
}
_NAMES = {
    "sagemaker": _JSON_NAMES,
    "logs": _JSON_NAMES,
    "s3": {
        "InvalidClientTokenId": "InvalidAccessKeyId",
        "MissingAuthenticationToken": "AccessDenied",
    },
}


def _check_allowed(caller: Caller, name: str, request: Mapping[str, object]) -> None:
    """Raises ApiError if the caller may not do this: a script may only describe its own job."""
    own = (
        name == "DescribeTrainingJob"
        and caller.job
        and request.get("TrainingJobName") == caller.job.name
    )
    if caller.job is not None and not own:
        raise ApiError(
            "AccessDeniedException", f"User: {caller.arn} is not authorized to perform: {name}"
        )


def _error(request: Request, service: str, code: str, message: str, status: int) -> Response:
    if service == "s3" or not service:
        return error_response(S3Error(status, code, message), request)
    if service in ("sts", "iam"):
        return identity.error(code, message, status)
    if service == "monitoring":
        return protocols.wire_of(request.headers).error(code, message, status)
    if service in ("sagemaker", "logs"):
        return refusals.json_error(code, message, status)
    return refusals.error(service, request.headers, code, message, status)


def _last(response: Response) -> Response:
    """Makes a response the last of its connection."""
    response.headers["Connection"] = "close"
    return response


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
