"""A process that has imported what the workers have: the next generation is forked from it, and need not import for seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from syrtos import settings
from syrtos.errors import LaunchError
from syrtos.launch import local, output
from syrtos.launch.forking import Command, Forked, Zygote

_PATIENCE = 10.0  # seconds for a fork


@dataclasses.dataclass(frozen=True)
class Imports:
    """What a worker has imported.

    Attributes:
        modules: names, with the files that they come from.
        variables: those of the environment that they have read.
    """

    modules: Mapping[str, str]
    variables: Mapping[str, str]


class Standby:
    """Starts a zygote once it is known what the workers import; until it is ready, workers are new interpreters."""

    def __init__(self) -> None:
        self._zygote: Zygote | None = None

    def prepare(self, imports: Imports, env: Mapping[str, str]) -> None:
        """Starts one, in the place of one that has died. It ends with the thread that calls this.

        Args:
            imports: what a worker has imported.
            env: of the workers.
        """
        if self._zygote is not None and self._zygote.lives():
            return
        self.close()
        own = {*settings.read_at_import(env), settings.SECRET_VARIABLE}
        kept = {name: value for name, value in env.items() if name not in own}
        modules = [f"{name}={file}" for name, file in imports.modules.items()]
        try:
            self._zygote = Zygote(modules, {**kept, **imports.variables})
        except OSError as error:
            output.say(f"workers that are started again will import their frameworks again: {error}")

    def start(self, command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: local.Files) -> local.Process:
        """A worker's process: `local.start`, or the same as a fork. Flags of the interpreter need a new one."""
        plain = command[1:2] == ("-m",)
        if plain and self._zygote is not None and self._zygote.is_ready():
            try:
                return Forked(self._zygote.path, Command(command[1:], env), (*files, pmi), _PATIENCE)
            except (OSError, LaunchError) as error:
                output.say(f"a worker imports its frameworks again: {error}")
                self.close()
        return local.start(command, env, pmi, files)

    def close(self) -> None:
        """Ends it, if there is one."""
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = None
