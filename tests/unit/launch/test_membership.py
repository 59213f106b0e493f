"""Hosts that come and go, and the number of workers that follows them. Agents are real processes of this machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syrtos.errors import ConfigurationError
from syrtos.launch import membership
from syrtos.launch.membership import Membership, ask_for, listed_by
from syrtos.launch.plan import Machine
from syrtos.launch.program import Program
from syrtos.launch.remote.agents import Agents
from syrtos.launch.spec import Elastic, Host, Spec
from syrtos.settings import Options

PYTHON = sys.executable
HOSTS = (Host("a", 2), Host("b", 2))
LONG = 30.0


@contextmanager
def members(tmp_path: Path, **values: object) -> Iterator[Membership]:
    """Of a run whose hosts are all this machine, but for those named "none...", which can't be reached."""
    spec = Spec(
        **{
            "program": Program(__file__, ()),
            "workers": 4,
            "hosts": HOSTS,
            "options": Options(),
            **values,
        }
    )  # type: ignore[arg-type]
    machine = Machine(PYTHON, 2, frozenset("abc"))
    agents = Agents() if spec.hosts else None
    found = Membership(spec, machine, tmp_path, agents, os.environ)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK", "_LIST_EVERY", "_SETTLED", "_TRY_AGAIN"):
        monkeypatch.setattr(membership, name, 0.05)
    monkeypatch.setattr(membership, "_HOSTS_COME_BACK", 1.0)


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reason(found: Membership) -> str:
    """Why its generation, which has committed something, is to be replaced, once it is."""
    said: list[str] = []
    found.committed = lambda: found._reached + 1
    until(lambda: said.append(found.reason_to_replace()) or said[-1])
    found.committed = lambda: 0
    return said[-1]


def test_a_fixed_number_of_workers_stays(tmp_path: Path) -> None:
    with members(tmp_path) as found:
        found.gather(lambda: False)
        spec, without = found.begin(0)
        assert (spec.workers, spec.hosts, without) == (4, HOSTS, frozenset())
        time.sleep(0.2)
        assert found.reason_to_replace() == ""


def test_a_run_is_resized(tmp_path: Path) -> None:
    with members(tmp_path, hosts=(), workers=2) as found:
        assert found.begin(0)[0].workers == 2
        assert ask_for(tmp_path, 9, LONG, lambda: True) == (
            "9 workers were asked for, and this machine offers 2 cores: they would take turns. Use `-n 2`, more hosts (`--hosts a:2,b:2`), or "
            "`--oversubscribe` if that is what you want."
        )
        assert ask_for(tmp_path, 1, LONG, lambda: True) == ""
        assert reason(found) == "The run is to have 1 worker in the place of 2."
        assert found.begin(0)[0].workers == 1
        assert found.reason_to_replace() == ""


def test_nothing_is_replaced_before_it_has_committed_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loops of the script's own commit nothing: they would begin anew."""
    with members(tmp_path, hosts=(), workers=2) as found:
        found.begin(7)
        ask_for(tmp_path, 1, LONG, lambda: True)
        found.committed = lambda: 7
        until(lambda: found._told)
        assert found.reason_to_replace() == ""
        found.committed = lambda: 8
        until(found.reason_to_replace)
    assert capsys.readouterr().err == (
        "syrtos: The run is to have 1 worker in the place of 2: once a further step of `fit`, or a state of Horovod's, is committed.\n"
    )


def test_a_host_with_which_nothing_is_committed_is_left_out(tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("a:1\n")
    elastic = Elastic(1, discover=f"cat {listed}")
    with members(tmp_path, hosts=(Host("a", 1),), workers=1, elastic=elastic) as found:
        found.gather(lambda: False)
        assert found.begin(0)[0].workers == 1
        listed.write_text("a:1\nb:1\n")
        assert reason(found)
        assert found.begin(5)[0].workers == 2
        assert found.begin(5)[0].hosts == (Host("a", 1),)
        listed.write_text("a:1\n")
        until(lambda: not found._avoided)
        listed.write_text("a:1\nb:1\n")
        assert reason(found)


def test_a_list_that_is_no_text_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elastic = Elastic(1, discover=r"printf '\377\n'")
    with members(tmp_path, hosts=(Host("a", 1),), workers=1, elastic=elastic) as found:
        found.gather(lambda: False)
        found.begin(0)
        until(lambda: found._told)
        time.sleep(0.3)
        assert ask_for(tmp_path, 3, LONG, lambda: True) == ""
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err.count("the hosts stay as they are: A host is written") == 1


def test_several_ask_one_after_the_other(tmp_path: Path) -> None:
    answers: list[str | None] = []

    def ask() -> None:
        answers.append(ask_for(tmp_path, 1, LONG, lambda: True))

    with members(tmp_path, hosts=(), workers=2) as found:
        found.begin(0)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [""] * 3
    assert not list(tmp_path.iterdir())


def test_without_a_launcher_nobody_answers(tmp_path: Path) -> None:
    assert ask_for(tmp_path, 1, 0.1, lambda: True) is None
    assert not list(tmp_path.iterdir())


def test_an_elastic_run_has_as_many_workers_as_the_hosts_that_answer_have_slots(
    tmp_path: Path,
) -> None:
    hosts = (*HOSTS, Host("none", 4))
    with members(tmp_path, hosts=hosts, workers=6, ssh="false", elastic=Elastic(2, 6)) as found:
        found.gather(lambda: False)
        spec, without = found.begin(0)
        assert (spec.workers, spec.hosts, without) == (4, HOSTS, frozenset())


def test_hosts_are_discovered_and_left(tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("a:1\n")
    elastic = Elastic(1, discover=f"cat {listed}")
    with members(tmp_path, hosts=(Host("a", 1),), workers=1, elastic=elastic) as found:
        found.gather(lambda: False)
        assert found.begin(0)[0].workers == 1
        listed.write_text("a:1\nc:2\n")
        assert reason(found) == "There are slots for 3 workers now, and 1 trained."
        assert found.begin(0)[0].hosts == (Host("a", 1), Host("c", 2))
        listed.write_text("c:2\n")
        assert reason(found) == "a offers fewer slots, or none: there are slots for 2 workers now."
        listed.write_text("is no host:x\n")
        time.sleep(0.3)
        assert found.begin(0)[0].hosts == (Host("c", 2),)


def test_too_few_hosts_are_waited_for(tmp_path: Path) -> None:
    with members(
        tmp_path, hosts=(Host("none", 2),), workers=2, ssh="false", elastic=Elastic(2)
    ) as found:
        began = time.monotonic()
        found.gather(lambda: time.monotonic() - began > 2.0)
        assert time.monotonic() - began > 2.0
        with pytest.raises(ConfigurationError, match="no host answers"):
            found.begin(0)


@pytest.mark.parametrize(
    ("command", "words"),
    [("exit 3", "ended with exit code 3"), ("true", "names no hosts"), ("echo a b", "A host is")],
)
def test_a_command_that_lists_no_hosts(command: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        listed_by(command, "")
