"""A finding of the doctor: a problem in one place of a script."""

from __future__ import annotations

import ast
import dataclasses
import enum
from pathlib import Path

from syrtos.doctor.script import Script


class Severity(enum.IntEnum):
    """The consequence of running the script as it stands, the worst first."""

    BREAKS = 0  # the run ends with an error
    WRONG = 1  # the run goes on, and something differs from what was meant
    SLOW = 2  # more time or memory than needed
    NOTE = 3  # works; good to know


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """Something that will be wrong or slow.

    Attributes:
        severity: kind of the consequence.
        path: the file.
        line: from 1.
        column: from 1.
        rule: the name of the rule, for tables and for `--json`.
        says: the consequence, in one sentence.
        fix: the change to make, in one sentence.
    """

    severity: Severity
    path: Path
    line: int
    column: int
    rule: str
    says: str
    fix: str

    def facts(self) -> dict[str, object]:
        """Returns the fields as values that JSON can hold."""
        return {
            **dataclasses.asdict(self),
            "severity": self.severity.name.lower(),
            "path": str(self.path),
        }


def at(
    script: Script, node: ast.AST, rule: str, severity: Severity, says: str, fix: str
) -> Finding:
    """Returns a finding about a node of a script."""
    return Finding(
        severity,
        script.path,
        getattr(node, "lineno", 1),
        getattr(node, "col_offset", 0) + 1,
        rule,
        says,
        fix,
    )
