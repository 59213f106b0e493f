"""A process that has imported what the workers need, and from which they are forked.

It forks the workers of the first generation, and those that take their place. Workers that have
another share of the machine, e.g. more of them with fewer threads each, are forked from another
process, which imports with that share. Where the script's text does not say which frameworks it
imports, that process has imported NumPy and MPI's library, if it was started early enough for that
to take no time.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from syrtos import settings
from syrtos.comm import xla_library
from syrtos.errors import ConfigurationError, LaunchError
from syrtos.launch import program, resources
from syrtos.launch.process_engine import read_vitals
from syrtos.launch.processes import local
from syrtos.launch.processes.first_imports import first_imports
from syrtos.launch.processes.forking import Command, Forked, Zygote
from syrtos.launch.processes.zygote_process import EarlyStart, is_watched
from syrtos.launch.terminal import output
from syrtos.launch.terminal.noise import is_noise
from syrtos.observe import steady

_PATIENCE = 10.0  # seconds for a fork
_LOOK = 0.002  # seconds
# Variables by which mpi4py is told another MPI than the one of this environment.
_OTHER_MPI = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")


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

    def __init__(self, early: EarlyStart | None = None) -> None:
        """Makes an object without a zygote; the first one may have been started ``early``."""
        self._early = early or EarlyStart()
        self._zygote: Zygote | None = None
        self._given_up: list[Zygote] = []  # which end with what they have forked
        # The variables of the workers' share of this machine, of the generation that began last.
        self._share: dict[str, str] | None = None
        # When the zygote of `begin` was started, s since the epoch, until it has imported.
        self._began: float | None = None
        # When it began to import frameworks, and when it was ready.
        self._imported: tuple[float, float] | None = None
        # The moment at which it was first seen stopped, by the monotonic clock.
        self._stopped: float | None = None

    # -- before a generation -----------------------------------------------------------------------

    def begin(self, command: Sequence[str], env: Mapping[str, str], workers: int) -> None:
        """Starts a zygote where there is none for the workers' share of this machine.

        It is started if the script's text says what to import. A zygote that has imported for
        another share is ended. The new one ends with the thread that calls this.

        Args:
            command: the command of each worker.
            env: the environment of the workers.
            workers: the number of workers on this machine.
        """
        try:
            self._begin(command, env, workers)
        except ConfigurationError:
            # A worker reports the error.
            return
        finally:
            self._early.end()

    def _begin(self, command: Sequence[str], env: Mapping[str, str], workers: int) -> None:
        shared = resources.shared_variables(env, workers)
        known, self._share = self._share, shared or {}
        is_new = settings.NEW_INTERPRETERS_VARIABLE in env
        if (known is not None and known != self._share) or (self._imported and is_new):
            # What was imported is not what these workers import.
            self.close()
        elif known is not None:
            return
        if shared is None or is_new or not _is_plain(command) or settings.TASKS_VARIABLE in env:
            return
        # A script's `setdefault` finds what workers are given; but the level of a log is the
        # script's.
        given = {name: value for name, value in shared.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
        found = first_imports(program.parse(command[3:]), {**env, **given})
        variables = {**settings.without_secrets(env), **shared, **found.variables}
        early = None if is_watched(env) else self._early.take(variables)
        if not found.frameworks and early is None:
            return
        began = steady.now()
        self._start(
            dict.fromkeys(found.frameworks, ""),
            variables | _xla_variables(found.frameworks, variables),
            libraries=found.libraries,
            shared_libraries=_mpi_library(env) if workers > 1 else (),
            compare=True,
            process=early,
        )
        self._began = began

    def skip(self) -> None:
        """Ends the interpreter that was started early, for workers that are not forked."""
        self._early.end()

    def is_settled(self) -> bool:
        """Returns whether workers can start, as forks or as new interpreters if no zygote lives.

        A zygote that is stopped (SIGSTOP) is given up after some seconds.
        """
        if self._zygote is None:
            return True
        if self._is_stopped(self._zygote):
            self._stopped = self._stopped or time.monotonic()
            if time.monotonic() - self._stopped < _PATIENCE:
                return False
            self._give_up(f"the process that imports for them was stopped for {_PATIENCE:g} s")
            return True
        self._stopped = None
        if self._began is None:
            return True
        if self._zygote.lives() and not self._zygote.is_ready():
            return False
        if self._zygote.modules:
            self._imported = (self._began, steady.now())
        self._began = None
        # Where the zygote has ended, each worker says why its import fails.
        if self._zygote.lives():
            lines = self._zygote.printed_text.splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not is_noise(line.encode())))
        return True

    def _is_stopped(self, zygote: Zygote) -> bool:
        vitals = read_vitals(zygote.process.pid)
        return vitals is not None and vitals.state in "Tt"

    def _give_up(self, why: str) -> None:
        """Forks no more workers from the zygote, which ends with those that it has forked."""
        output.say(f"workers are new interpreters, and import by themselves: {why}")
        if self._zygote is not None:
            self._given_up.append(self._zygote)
        self._zygote = self._began = self._imported = self._stopped = None

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that the zygote imports, if there is one."""
        return self._zygote.modules if self._zygote else ()

    def settle(self, over: Callable[[], bool]) -> None:
        """Waits until workers can be started, or until ``over`` returns True."""
        while not (self.is_settled() or over()):
            time.sleep(_LOOK)

    # -- while one runs ----------------------------------------------------------------------------

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
        """Starts a zygote in place of an existing one; ``how`` are more arguments of `Zygote`."""
        # Not those that were given up: workers that they have forked still run.
        self._close_zygote()
        try:
            self._zygote = Zygote(modules, env, **how)
        except OSError as error:
            output.say(f"each worker imports its frameworks by itself: {error}")

    # -- a generation ------------------------------------------------------------------------------

    def start(
        self,
        command: tuple[str, ...],
        env: Mapping[str, str],
        pmi: int,
        files: local.Files,
        over: Callable[[], bool] = lambda: False,
    ) -> local.Process:
        """Starts a worker's process: a fork of the zygote, or by `local.start` if there is none.

        The zygote is not waited for any more once ``over`` returns True.
        """
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
                    over,
                )
            except (OSError, LaunchError) as error:
                self._give_up(str(error))
        return local.start(command, env, pmi, files)

    def close(self) -> None:
        """Ends the zygote, if there is one, and those that were given up."""
        for zygote in self._given_up:
            zygote.close()
        self._given_up.clear()
        self._close_zygote()
        self._early.end()

    def _close_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = self._began = self._imported = self._stopped = None


def _mpi_library(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the path where mpi4py looks for MPI's library first; empty if that is not certain."""
    # It takes 40 ms to load. mpi4py's module is not imported: that would start MPI, and a single
    # worker has none. A library that is loaded already would take the place of another of its name.
    if sys.prefix == sys.base_prefix or any(name in env for name in _OTHER_MPI):
        return ()
    return (os.path.join(sys.exec_prefix, "lib", "libmpi.so.12"),)


def _xla_variables(frameworks: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables in which JAX finds the library by which it exchanges."""
    is_jax = "jax" in frameworks or env.get("KERAS_BACKEND") == "jax"
    by_mpi = settings.options_from(env).exchange != "framework"
    return xla_library.variables(env) if is_jax and by_mpi else {}


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
