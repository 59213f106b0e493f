"""A report as one HTML file that holds all it needs: facts, code and the library of its charts."""

from __future__ import annotations

import functools
import html
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from syrtos.report.facts import Facts

# Seconds after which the page of a run that goes on reads its file again.
_REFRESH = 5


def page(facts: Sequence[Facts], comparison: Facts | None = None, live: bool = False) -> str:
    """Returns the HTML of the report about one run, or of the comparison of two.

    ``live``: the file is written again and again, and the page reads it anew.
    """
    title = " and ".join(each["run"]["name"] for each in facts)
    return standalone(
        title, {"runs": list(facts), "comparison": comparison}, "SyrtosReport.whole", live=live
    )


def standalone(title: str, facts: Any, function: str, code: str = "", live: bool = False) -> str:
    """Returns a page on which ``function`` shows facts: it is called with an element and with them.

    ``function`` is one of this room's JavaScript, or of ``code``.
    """
    title = html.escape(title)
    refresh = f'<meta http-equiv="refresh" content="{_REFRESH}">' if live else ""
    data = json.dumps(finite(facts), allow_nan=False)
    # a name may hold "</script>"
    safe = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
{refresh}
<title>{title} · Syrtos</title>
<style>{static("report.css")}</style>
</head>
<body>
<noscript><p>This report needs JavaScript. `syrtos report RUN_DIR --text` prints the same facts.</p></noscript>
<main id="report"></main>
<script>{static("echarts.min.js")}</script>
<script type="application/json" id="facts">{safe}</script>
<script>{static("report.js")}
{code}
{function}(document.getElementById("report"), JSON.parse(document.getElementById("facts").textContent));</script>
</body>
</html>
"""


@functools.cache
def static(name: str) -> str:
    """Returns a static file of the page; `syrtos serve` uses them too."""
    return (resources.files("syrtos.report") / "static" / name).read_text(encoding="utf-8")


def finite(value: Any) -> Any:
    """Returns the value with None in place of numbers that are not finite."""
    # a loss may be NaN, which JSON does not have
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
