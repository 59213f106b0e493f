"""The packages of this distribution, and their folders."""

from __future__ import annotations

import os

PACKAGES = (
    "syrtos",
    "syrtos_clusters",
    "syrtos_estimator",
    "syrtos_jobs",
    "syrtos_keras2",
    "syrtos_migrate",
    "syrtos_tune",
)
_SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# With a separator at the end.
FOLDERS = tuple(os.path.join(_SOURCE, name, "") for name in PACKAGES)
