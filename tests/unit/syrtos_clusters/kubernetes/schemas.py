"""Strict validation of Kubernetes objects: unknown fields are errors, as with `kubectl apply --validate=strict`.

Objects of Kubernetes itself are validated by `kubernetes-validate`, those of JobSet and Kubeflow Trainer by the schemas of their
CustomResourceDefinitions in `tests/golden/kubernetes`, whose first line names the versions.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[3] / "golden" / "kubernetes"
CUSTOM = ("JobSet", "TrainJob")


def errors_of(found: dict[str, Any], version: str = "1.36") -> list[str]:
    """Returns what a strict API server of this version of Kubernetes would say against an object."""
    if found["kind"] in CUSTOM:
        return [
            f"{'/'.join(map(str, e.path))}: {e.message[:200]}"
            for e in _schema(found["kind"]).iter_errors(found)
        ]
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'/'.join(map(str, error.path))}: {error.message}"]
    return []


@functools.cache
def _schema(kind: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = _closed(json.loads((GOLDEN / f"{kind}.schema.json").read_text())["schema"])
    schema["properties"]["metadata"] = {}  # which the server validates by itself
    return jsonschema.Draft7Validator(schema)


def _closed(schema: Any) -> Any:
    """Returns a schema that allows no other fields than it names, unless it says that it keeps unknown ones."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {}
    closed = {name: _closed(value) for name, value in schema.items()}
    is_open = "additionalProperties" in closed or closed.get("x-kubernetes-preserve-unknown-fields")
    if closed.get("type") == "object" and "properties" in closed and not is_open:
        closed["additionalProperties"] = False
    return closed
