"""The parts of STS and IAM that SageMaker's SDKs need before they train, with answers in XML.

They tell the caller's identity, and whether a role has permissions.
"""

from __future__ import annotations

import json
import urllib.parse
from xml.sax.saxutils import escape

from starlette.responses import Response

from syrtos_jobs.credentials import Caller
from syrtos_jobs.http import unserved
from syrtos_jobs.store.home import ACCOUNT

_STS, _IAM = (
    "https://sts.amazonaws.com/doc/2011-06-15/",
    "https://iam.amazonaws.com/doc/2010-05-08/",
)
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def answer(service: str, body: bytes, caller: Caller) -> Response:
    """Answers a request of form fields, of which ``Action`` names the operation."""
    asked = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    action = asked.get("Action", "")
    if service == "sts" and action == "GetCallerIdentity":
        inside = f"<Arn>{escape(caller.arn)}</Arn><UserId>SYRTOS:{escape(caller.arn.rpartition('/')[2])}</UserId><Account>{ACCOUNT}</Account>"
        return query_answer(action, inside, _STS)
    if service == "iam" and action == "GetRole":
        return query_answer(action, _role(asked.get("RoleName", "")), _IAM)
    if service == "iam" and action == "SimulatePrincipalPolicy":
        return query_answer(action, _allow_all(asked), _IAM)
    return error("AccessDenied", unserved.explain_operation(service, action), 403)


def _role(name: str) -> str:
    trust = escape(urllib.parse.quote(json.dumps(_TRUST)))
    facts = (
        f"<Path>/</Path><RoleName>{escape(name)}</RoleName><RoleId>AROASYRTOS0000000000</RoleId>"
    )
    arn = f"<Arn>arn:aws:iam::{ACCOUNT}:role/{escape(name)}</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate>"
    return f"<Role>{facts}{arn}<AssumeRolePolicyDocument>{trust}</AssumeRolePolicyDocument></Role>"


def _allow_all(asked: dict[str, str]) -> str:
    """Returns an answer that allows every action."""
    # roles have no effect here: a caller that may create a job has all permissions of jobs
    actions = [value for name, value in asked.items() if name.startswith("ActionNames.member.")]
    members = "".join(
        f"<member><EvalActionName>{escape(action)}</EvalActionName><EvalResourceName>*</EvalResourceName><EvalDecision>allowed</EvalDecision></member>"
        for action in actions
    )
    return f"<IsTruncated>false</IsTruncated><EvaluationResults>{members}</EvaluationResults>"


def error(code: str, message: str, status: int) -> Response:
    """Returns an error in the form of AWS's query protocol."""
    inside = (
        f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    )
    return Response(
        f"<ErrorResponse>{inside}<RequestId>0</RequestId></ErrorResponse>",
        status,
        media_type="text/xml",
    )


def query_answer(action: str, inside: str, namespace: str) -> Response:
    """Returns an answer in the form of AWS's query protocol.

    Args:
        action: the name of the operation.
        inside: the members of the result, as XML.
        namespace: the namespace of the XML.
    """
    meta = "<ResponseMetadata><RequestId>0</RequestId></ResponseMetadata>"
    text = (
        f"<{action}Response"
        f' xmlns="{namespace}"><{action}Result>{inside}</{action}Result>{meta}</{action}Response>'
    )
    return Response(text, media_type="text/xml")
