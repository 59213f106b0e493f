"""The interface of runs that a package knows by their names, such as training jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from syrtos import entry_points


class NamedRuns(ABC):
    """Answers `syrtos logs NAME` and `syrtos stop NAME`, where no folder has that name.

    A package names an instance by an entry point of the group ``syrtos.named_runs``.
    """

    @abstractmethod
    def print_output(self, name: str, follow: bool) -> int:
        """Prints what a run has printed, and returns the command's exit code.

        Args:
            name: the name of the run.
            follow: whether to go on until the run ends.

        Raises:
            ConfigurationError: there is no such run.
        """

    @abstractmethod
    def stop(self, name: str) -> int:
        """Asks a run to end, and returns the command's exit code.

        Raises:
            ConfigurationError: there is no such run.
        """


def named_runs() -> NamedRuns | None:
    """Returns the runs by name; None where no package has any.

    Raises:
        ConfigurationError: the package can't be imported.
    """
    found = entry_points.names(entry_points.NAMED_RUNS)
    if not found:
        return None
    return entry_points.load_instance(entry_points.NAMED_RUNS, found[0], NamedRuns)
