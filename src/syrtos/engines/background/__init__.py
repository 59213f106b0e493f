"""A run of this machine that goes on after the command that started it: `syrtos run --detach`."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from syrtos.engines.engine import Engine, EngineRequest, RunState, Submitted, growing, read_end
from syrtos.errors import ConfigurationError
from syrtos.launch import events
from syrtos.launch.processes import signalling

_OUTPUT = "output.log"


class BackgroundEngine(Engine):
    """Runs `syrtos run` in a session of its own; its output goes into the run directory."""

    name = "background"

    def files(self, wanted: EngineRequest) -> dict[str, str]:
        return {}

    def submit(self, wanted: EngineRequest) -> dict[str, str]:
        wanted.run_dir.mkdir(parents=True, exist_ok=True)
        with (wanted.run_dir / _OUTPUT).open("ab") as output:
            process = subprocess.Popen(
                [
                    wanted.python,
                    "-m",
                    "syrtos",
                    "run",
                    "--run-dir",
                    str(wanted.run_dir),
                    *wanted.words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # It outlives the terminal of this command.
                start_new_session=True,
            )
        facts = {
            "pid": process.pid,
            "host": socket.gethostname(),
            "machine": events.machine(),
            "born": events.born(process.pid),
        }
        return {
            "run_dir": str(wanted.run_dir),
            **{name: str(value) for name, value in facts.items()},
        }

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        return _Process(facts)


class _Process(Submitted):
    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts, self._run_dir = facts, Path(facts["run_dir"])

    def state(self) -> RunState:
        if self._runs():
            return RunState("running")
        if ended := read_end(self._run_dir):
            return ended
        if elsewhere := self._elsewhere():
            return RunState(
                "running",
                f"It was started on {elsewhere}, and only there it is known whether it still runs.",
            )
        return RunState(
            "failed", f"The launcher is gone without a word: {self._run_dir / _OUTPUT} may say why."
        )

    def _elsewhere(self) -> str:
        """Returns the name of the host where the run was started; empty if it is this machine."""
        host = self._facts.get("host", "")
        return host if host != socket.gethostname() else ""

    def _runs(self) -> bool:
        # Elsewhere, or after a start of the machine, the number means another process.
        if self._facts["machine"] != str(events.machine()):
            return False
        pid = int(self._facts["pid"])
        stat = events.stat(pid)
        return bool(stat) and stat[0] not in "ZX" and str(events.born(pid)) == self._facts["born"]

    def output(self, follow: bool) -> Iterator[bytes]:
        return growing(self._run_dir / _OUTPUT, self, follow)

    def stop(self, at_once: bool = False) -> None:
        if (elsewhere := self._elsewhere()) and not read_end(self._run_dir):
            raise ConfigurationError(
                f"The run in {self._run_dir} was started on {elsewhere}, and this is"
                f" {socket.gethostname()}: give the command there."
            )
        if self._runs():
            signalling.to_process(
                int(self._facts["pid"]), signal.SIGKILL if at_once else signal.SIGTERM
            )


ENGINE = BackgroundEngine()
