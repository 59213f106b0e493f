"""A process that has imported what the workers need, and from which they are forked.

It forks the workers of the first generation, and those that take their place. Workers that have
another share of the machine, e.g. more of them with fewer threads each, are forked from another
process, which imports with that share. Where the script's text does not say which frameworks it
imports, that process has imported NumPy and MPI's library, if it was started early enough for that
to take no time.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from syrtos import settings
from syrtos.errors import ConfigurationError, LaunchError
from syrtos.launch import program, resources
from syrtos.launch.processes import local
from syrtos.launch.processes.first_imports import FirstImports, first_imports, is_watched
from syrtos.launch.processes.forking import Command, Forked, Zygote
from syrtos.launch.processes.zygote_process import ZygoteProcess
from syrtos.launch.terminal import output
from syrtos.launch.terminal.noise import is_noise

_PATIENCE = 10.0  # seconds for a fork
_LOOK = 0.002  # seconds
# It takes 40 ms to load. Its module for Python is not imported: that would start MPI.
_MPI = "libmpi.so.12"


@dataclasses.dataclass(frozen=True)
class Imports:
    """The modules that a worker has imported, and the variables that they have read.

    Attributes:
        modules: names, with the files that they come from.
        variables: the variables of the environment that the modules have read.
    """

    modules: Mapping[str, str]
    variables: Mapping[str, str]


class Standby:
    """The zygote of the workers on this machine.

    Until there is one, and where there can be none, workers are new interpreters.
    """

    def __init__(self, early: ZygoteProcess | None = None) -> None:
        """Makes an object without a zygote; ``early`` is the interpreter of the first one, if it has been started."""
        self._early = early
        self._zygote: Zygote | None = None
        self._given_up: list[Zygote] = []  # which end with what they have forked
        # The variables of the workers' share of this machine, of the generation that began last.
        self._share: dict[str, str] | None = None
        # When the zygote of `begin` was started, s since the epoch, until it has imported.
        self._began: float | None = None
        # When it began to import frameworks, and when it was ready.
        self._imported: tuple[float, float] | None = None

    # -- before a generation -----------------------------------------------------------------------

    def begin(self, command: Sequence[str], env: Mapping[str, str], workers: int) -> None:
        """Starts a zygote where there is none for the workers' share of this machine, if the script's text says what to import.

        A zygote that has imported for another share is ended. The new one ends with the thread that
        calls this.

        Args:
            command: the command of each worker.
            env: the environment of the workers.
            workers: the number of workers on this machine.
        """
        try:
            shared = resources.shared_variables(env, workers)
        except ConfigurationError:
            # A worker reports the error.
            return
        known, self._share = self._share, shared or {}
        is_new = settings.NEW_INTERPRETERS_VARIABLE in env
        if (known is not None and known != self._share) or (self._imported and is_new):
            # What was imported is not what these workers import.
            self.close()
        elif known is not None:
            return
        if (
            shared is not None
            and not is_new
            and _is_plain(command)
            and settings.TASKS_VARIABLE not in env
        ):
            self._begin(command, env, workers, shared)
        self._close_early()

    def _begin(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        workers: int,
        shared: Mapping[str, str],
    ) -> None:
        # A script's `setdefault` finds what workers are given; but the level of a log is the
        # script's.
        given = {name: value for name, value in shared.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
        try:
            found = first_imports(program.parse(command[3:]), {**env, **given}) or FirstImports(
                (), (), {}
            )
        except ConfigurationError:
            return
        variables = {**settings.without_secrets(env), **shared, **found.variables}
        early = self._early if self._early is not None and self._early.can_take(variables) else None
        if not found.frameworks and (early is None or is_watched(env)):
            return
        began = time.time()
        self._early = self._early if early is None else None
        self._start(
            dict.fromkeys(found.frameworks, ""),
            variables,
            libraries=found.libraries,
            shared_libraries=(_MPI,) * (workers > 1),
            compare=True,
            process=early,
        )
        self._began = began

    def is_settled(self) -> bool:
        """Returns whether workers can be started: as forks, or as new interpreters where no zygote lives."""
        if self._began is None or self._zygote is None:
            return True
        if self._zygote.lives() and not self._zygote.is_ready():
            return False
        if self._zygote.modules:
            self._imported = (self._began, time.time())
        self._began = None
        # Where the zygote has ended, each worker says why its import fails.
        if self._zygote.lives():
            lines = self._zygote.printed_text.splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not is_noise(line.encode())))
        return True

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that the zygote imports, if there is one."""
        return self._zygote.modules if self._zygote else ()

    def settle(self, over: Callable[[], bool]) -> None:
        """Waits until workers can be started, or until ``over`` returns True."""
        while not (self.is_settled() or over()):
            time.sleep(_LOOK)

    # -- while one runs ------------------------------------------------------------------------------

    def prepare(self, imports: Imports, env: Mapping[str, str]) -> None:
        """Starts a zygote for the next generation where there is none, or it has died.

        The zygote ends with the thread that calls this.

        Args:
            imports: what a worker has imported.
            env: the environment of the workers.
        """
        if _always_new(env):
            return
        if self._zygote is not None and self._zygote.lives():
            if self._zygote.modules or not imports.modules:
                return
            # It has forked the workers that run, and imported nothing of what they have.
            self._given_up.append(self._zygote)
            self._zygote = None
        self._start(
            imports.modules, {**_without_framework_variables(env), **imports.variables}, idle=True
        )

    def _start(self, modules: Mapping[str, str], env: Mapping[str, str], **how: Any) -> None:
        """Starts a zygote in the place of one that there is; ``how`` are further arguments of `Zygote`."""
        # Not those that were given up: workers that they have forked still run.
        self._close_zygote()
        try:
            self._zygote = Zygote(modules, env, **how)
        except OSError as error:
            output.say(f"each worker imports its frameworks by itself: {error}")

    # -- a generation --------------------------------------------------------------------------------

    def start(
        self, command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: local.Files
    ) -> local.Process:
        """Starts a worker's process: a fork of the zygote where there is one, else by `local.start`."""
        # flags of the interpreter need a new one
        if (
            _is_plain(command)
            and not _always_new(env)
            and self._zygote is not None
            and self._zygote.is_ready()
        ):
            imported = (
                {settings.IMPORTED_VARIABLE: "{:.3f} {:.3f}".format(*self._imported)}
                if self._imported
                else {}
            )
            try:
                return Forked(
                    self._zygote.path,
                    Command(command[1:], {**env, **imported}),
                    (*files, pmi),
                    _PATIENCE,
                )
            except (OSError, LaunchError) as error:
                output.say(f"a worker imports its frameworks again: {error}")
                self._given_up.append(self._zygote)
                self._zygote = self._began = self._imported = None
        return local.start(command, env, pmi, files)

    def close(self) -> None:
        """Ends the zygote, if there is one, and those that were given up."""
        for zygote in self._given_up:
            zygote.close()
        self._given_up.clear()
        self._close_zygote()
        self._close_early()

    def _close_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = self._began = self._imported = None

    def _close_early(self) -> None:
        if self._early is not None:
            self._early.end()
        self._early = None


def _is_plain(command: Sequence[str]) -> bool:
    return tuple(command[1:2]) == ("-m",)


def _always_new(env: Mapping[str, str]) -> bool:
    return env.get(settings.NEW_INTERPRETERS_VARIABLE, "first") != "first"


def _without_framework_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that are neither secret nor read by frameworks."""
    left_out = settings.read_at_import(env)
    return {
        name: value for name, value in settings.without_secrets(env).items() if name not in left_out
    }
