"""Checks of other hosts, which are reached as `syrtos run --hosts` reaches them.

A probe on each host sends facts about it, and tries to connect to the other hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from syrtos.doctor import machine_facts, machine_host
from syrtos.doctor.machine_check import Check, ok, warning, wrong
from syrtos.doctor.machine_probe import MARK
from syrtos.launch.plan import Machine, command_on
from syrtos.launch.processes import signalling
from syrtos.launch.remote.here import is_here

_PATIENCE = 10.0  # seconds for each host
_CLOCK = 1.0  # seconds that a clock may be off
_ROUNDS = 5
# What ssh says, and what to do.
_REFUSALS = (
    ("permission denied", "`ssh-copy-id {host}`: workers are started without a password prompt."),
    ("host key verification failed", "`ssh {host}` once, and compare its key."),
    (
        "identification has changed",
        (
            "The host has another key than before: if that is right, `ssh-keygen -R {host}`, then"
            " `ssh {host}` once."
        ),
    ),
    ("could not resolve", "Check the name, or add it to /etc/hosts or ~/.ssh/config."),
    ("refused", "Start sshd there, or name its port in ~/.ssh/config."),
    ("timed out", "Is it up? A firewall may drop what is sent to its port 22."),
    ("no route", "Is it up, and in a network that this machine reaches?"),
)


def checks(hosts: Sequence[str], ssh: str, env: Mapping[str, str]) -> list[Check]:
    """Returns the checks of all hosts, probed at the same time. Names may have slots (``a:2``)."""
    names = list(dict.fromkeys(host.partition(":")[0] for host in hosts))
    machine = Machine(sys.executable, machine_facts.cores(), frozenset(filter(is_here, names)))
    probes = [
        _Probe(
            name,
            command_on(name, "syrtos.doctor.machine_probe", _asking_nothing(ssh), machine, env),
        )
        for name in names
    ]
    try:
        return list(_all_checks(probes))
    finally:
        for probe in probes:
            probe.close()


def _asking_nothing(ssh: str) -> str:
    """Returns ``ssh`` with options that forbid prompts and limit the time to connect."""
    return f"{ssh} -o BatchMode=yes -o ConnectTimeout={_PATIENCE - 2:.0f}"


def _all_checks(probes: Sequence[_Probe]) -> Iterator[Check]:
    with ThreadPoolExecutor(max(len(probes), 1)) as pool:
        list(pool.map(_Probe.begin, probes))
        there = [probe for probe in probes if probe.facts]
        places = {
            probe.host: [(address, probe.facts["port"]) for address in probe.facts["addresses"]]
            for probe in there
        }
        list(
            pool.map(
                lambda probe: probe.connect(
                    {name: at for name, at in places.items() if name != probe.host}
                ),
                there,
            )
        )
    for probe in probes:
        yield from probe.checks()


class _Probe:
    """The doctor's side of the probe on one host.

    Attributes:
        host: the host's name.
        facts: the facts that the probe has sent; empty if it failed.
    """

    def __init__(self, host: str, command: Sequence[str]) -> None:
        self.host = host
        self.facts: dict[str, Any] = {}
        self._offset = 0.0
        self._has_folder = False
        # why it can't connect to each; empty where it can
        self._others: dict[str, str] = {}
        self._why = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=signalling.death_with_parent(),
        )
        self._late = threading.Timer(_PATIENCE, self._process.kill)
        self._late.daemon = True
        self._late.start()

    # -- talking ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Reads facts, compares clocks and asks whether this process's folder exists there."""
        try:
            facts = self._hear()
            # The answer that came soonest says most exactly what the other clock shows.
            self._offset = min((self._clock() for _ in range(_ROUNDS)), key=lambda item: item[0])[1]
            self._has_folder = self._ask(folder=os.getcwd())["folder"]
            self.facts = facts
        except (OSError, EOFError, ValueError):
            self._why = self._failure()

    def connect(self, places: Mapping[str, object]) -> None:
        """Asks the probe to connect to the probes of other hosts."""
        try:
            self._others = self._ask(peers=places)
        except (OSError, EOFError, ValueError):
            self.facts, self._why = {}, self._failure()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A login shell may print lines of its own.
            before, mark, text = line.partition(MARK)
            if mark:
                return json.loads(text)
        raise EOFError

    def _ask(self, **what: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _clock(self) -> tuple[float, float]:
        """Returns the seconds that a question took, and those by which the other clock is ahead."""
        began = time.time()
        told = self._ask(clock=True)["time"]
        ended = time.time()
        return ended - began, told - (began + ended) / 2

    def _failure(self) -> str:
        """Ends the process and returns the last line of its errors, or that it did not answer."""
        assert self._process.stderr is not None
        late = self._process.poll() is None and not self._late.is_alive()
        self._process.kill()
        lines = self._process.stderr.read().strip().splitlines()
        self._process.wait()
        return (
            lines[-1]
            if lines
            else (
                f"no answer in {_PATIENCE:.0f} s"
                if late or not self._late.is_alive()
                else "it ended without a word"
            )
        )

    def close(self) -> None:
        """Ends the process."""
        self._late.cancel()
        self._process.kill()
        with self._process:
            pass

    # -- judging ---------------------------------------------------------------------------------

    def checks(self) -> Iterator[Check]:
        """Yields the checks of the host."""
        if not self.facts:
            yield wrong(
                self.host, f"can't run Python there: {self._why}", _remedy(self.host, self._why)
            )
            return
        facts = self.facts
        yield ok(
            self.host,
            f"reached without a password, {facts['cores']} cores, {facts['memory'] / 1e9:.1f} GB"
            " free",
        )
        yield versions(self.host, facts["versions"])
        yield clock(self.host, self._offset)
        shared = machine_host.shared_memory(lambda: facts["shared"])
        yield Check(f"{self.host} /dev/shm", shared.status, shared.found, shared.fix)
        yield self._folder()
        yield from self._network()

    def _folder(self) -> Check:
        here = os.getcwd()
        if self._has_folder:
            return ok(f"{self.host} folder", f"{here} is there")
        return wrong(
            f"{self.host} folder",
            f"{here} is not there, and workers begin in it",
            f"Share it (NFS), or copy it: `rsync -a {here}/ {self.host}:{here}/`.",
        )

    def _network(self) -> Iterator[Check]:
        unreached = {other: why for other, why in self._others.items() if why}
        for other, why in unreached.items():
            yield wrong(
                f"{self.host} network",
                f"can't connect to a free port of {other}: {why}",
                "Workers listen on free ports (32768 to 60999 on most systems): let the hosts of a"
                " run reach each other there.",
            )
        if self._others and not unreached:
            yield ok(f"{self.host} network", f"connects to free ports of {', '.join(self._others)}")


def _remedy(host: str, why: str) -> str:
    known = next((fix for mark, fix in _REFUSALS if mark in why.lower()), "")
    if known:
        return known.format(host=host)
    if "syrtos" in why and "module" in why.lower():
        return f"Install syrtos there, into {sys.prefix}."
    if sys.executable in why or "not found" in why or "no such file" in why.lower():
        return (
            f"Each host needs this environment at the same path: `rsync -a {sys.prefix}/"
            f" {host}:{sys.prefix}/`, or install it there."
        )
    return f"Try `ssh -o BatchMode=yes {host} {sys.executable} -c 'import syrtos'`."


def versions(host: str, theirs: Mapping[str, str]) -> Check:
    """Checks that a host has the versions of this machine."""
    # workers of unequal versions refuse to train together
    mine = machine_facts.versions_to_compare()
    different = [
        f"{name} {theirs.get(name, '-')} (here {version})"
        for name, version in mine.items()
        if theirs.get(name, "-") != version
    ]
    if different:
        return wrong(
            f"{host} versions",
            ", ".join(different),
            f"Install the same versions there: `pip freeze` here, `pip install -r` on {host}.",
        )
    return ok(f"{host} versions", "those of this machine")


def clock(host: str, offset: float) -> Check:
    """Checks the clock of a host, which is ``offset`` seconds ahead of this machine's."""
    found = (
        f"its clock is {abs(offset) * 1e3:,.0f} ms {'ahead of' if offset > 0 else 'behind'} this"
        " machine's"
    )
    if abs(offset) > _CLOCK:
        return warning(
            f"{host} clock",
            f"{found}: logs of a run are hard to compare",
            f"`timedatectl set-ntp true` on {host}, or start chrony.",
        )
    return ok(f"{host} clock", found)
