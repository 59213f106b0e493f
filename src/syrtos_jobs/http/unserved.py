"""Sentences about services and operations of AWS that are not served here."""

from __future__ import annotations

CODE = "UnknownOperationException"
_SERVED = (
    "SageMaker's training and tuning jobs, S3, CloudWatch's logs and metrics of jobs, and the"
    " identity of the caller (STS)"
)


def explain(name: str) -> str:
    """Returns the sentence that says what is served here, and that ``name`` is not.

    ``name`` is a service or an operation.
    """
    return (
        f"{name} is not served here: this is `syrtos serve`, which has {_SERVED}. To reach AWS"
        " itself, leave out AWS_ENDPOINT_URL (endpoint_url) and use keys of AWS."
    )


def explain_operation(service: str, name: str) -> str:
    """Returns what is said about an operation that is not served, of a service that is."""
    if name == "StartLiveTail":
        return (
            f"{service}:{name} is not served here. Use `aws logs tail --follow`, or"
            " filter_log_events again and again."
        )
    return explain(f"{service}:{name}")
