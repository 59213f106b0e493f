"""Checks that stand as functions in one script: one world runs them one after the other, and each is a test of its own."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class CheckedRun:
    """A run of a script that prints ``ok NAME`` after each check.

    Attributes:
        done: how the run ended, and what it printed.
        names: the checks that it was asked for, in order.
    """

    done: subprocess.CompletedProcess[str]
    names: Sequence[str]

    def check(self, name: str) -> None:
        """Fails unless the check came to its end; the last one also needs the run to end well.

        A check that fails ends the run, so those after it fail as well: the first failure is the one to look at.
        """
        assert f"ok {name}\n" in self.done.stdout, (
            f"`{name}` did not come to its end.\n{self.done.stderr[-4000:]}"
        )
        if name == self.names[-1]:
            assert self.done.returncode == 0, self.done.stderr[-4000:]

    def check_all(self) -> None:
        """Fails unless all checks came to their ends."""
        for name in self.names:
            self.check(name)
