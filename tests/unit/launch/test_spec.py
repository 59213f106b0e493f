"""Hosts and scripts: what is written is understood, or refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos.launch.program import Program, check_script
from syrtos.launch.spec import Host, Spec, new_run_dir, parse_hosts, read_hostfile
from syrtos.settings import Options

names = st.from_regex(r"[a-z][a-z0-9.-]{0,10}", fullmatch=True)


def spec(script: Path, **values: Any) -> Spec:
    return Spec(**{"program": Program(str(script)), "workers": 2, "options": Options(), **values})


def hostfile(folder: Path, text: str | bytes) -> Path:
    path = folder / "hosts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2,b:2", (Host("a", 2), Host("b", 2))),
        ("a", (Host("a", 1),)),
        (" a:3 , user@b.example.org ", (Host("a", 3), Host("user@b.example.org", 1))),
        ("10.0.0.1:16", (Host("10.0.0.1", 16),)),
    ],
)
def test_hosts_as_written(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == hosts


@given(st.dictionaries(names, st.integers(1, 10**6), min_size=1))
def test_hosts_round_trip(slots: dict[str, int]) -> None:
    text = ",".join(f"{name}:{count}" for name, count in slots.items())
    assert parse_hosts(text) == tuple(Host(name, count) for name, count in slots.items())


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", ":2", "a:0", "a:-1", "a:two", "a:1.5", "a:2:3", "-oProxyCommand=x", "::1"],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="written `name` or `name:slots`"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["a:00", "a:²", "a b:2"])
def test_what_only_looks_like_a_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_hosts(text)


def test_a_host_named_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"named twice: a, b, a\. Give each once"):
        parse_hosts("a:2,b,a:1")


def test_a_host_file_may_mix_ways_of_writing(tmp_path: Path) -> None:
    text = "# the cluster\na slots=2\n\nb:3  # the big one\n   c   slots=4  \nd\n"
    assert read_hostfile(hostfile(tmp_path, text)) == (
        Host("a", 2),
        Host("b", 3),
        Host("c", 4),
        Host("d", 1),
    )


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_host_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"names no hosts\. Write one to a line: `name slots=2`"
    ):
        read_hostfile(hostfile(tmp_path, text))


def test_a_missing_host_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"nowhere can't be read: .*No such file or directory"
    ):
        read_hostfile(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"can't be read: .*Is a directory"):
        read_hostfile(tmp_path)


@pytest.mark.parametrize(
    "text", ["a slots=0", "a slots=x", "a slots=2 max_slots=4", "-x slots=2", "a\na:2"]
)
def test_a_bad_line_in_a_host_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_hostfile(hostfile(tmp_path, text))


@pytest.mark.parametrize("text", ["node1 node2", "a,b", "a slot=2", "slots=2"])
def test_a_line_that_is_not_understood_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_hostfile(hostfile(tmp_path, text))


@pytest.mark.parametrize("text", ["a\tslots=2\n", "a slots = 2\n"])
def test_columns_of_a_host_file_may_be_set_apart(tmp_path: Path, text: str) -> None:
    assert read_hostfile(hostfile(tmp_path, text)) == (Host("a", 2),)


def test_a_host_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hosts can't be read"):
        read_hostfile(hostfile(tmp_path, b"\xff\xfe\n"))


@pytest.mark.parametrize("workers", [0, -3])
def test_a_run_has_workers(script: Path, workers: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"`-n` must be 1 or more workers\. Received: {workers}"
    ):
        spec(script, workers=workers)


def test_hosts_take_no_more_workers_than_slots(script: Path) -> None:
    hosts = parse_hosts("a:2,b:1")
    assert spec(script, workers=3, hosts=hosts).workers == 3
    with pytest.raises(
        ConfigurationError, match=r"4 workers were asked for, and the hosts have 3 slots\. .*`-n 3`"
    ):
        spec(script, workers=4, hosts=hosts)


def test_a_missing_script_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigurationError, match=re.escape(f"no script trian.py (looked in {tmp_path})")
    ):
        check_script(Path("trian.py"))


def test_a_folder_is_no_script(tmp_path: Path, script: Path) -> None:
    check_script(script)
    with pytest.raises(ConfigurationError, match=r"is a folder\. Name the Python file"):
        check_script(tmp_path)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_an_unreadable_script_is_refused(script: Path) -> None:
    script.chmod(0)
    with pytest.raises(ConfigurationError, match="chmod"):
        spec(script)


def test_runs_started_in_one_second_do_not_share_a_folder() -> None:
    folders = {new_run_dir() for _ in range(20)}
    assert len(folders) == 20
    assert {folder.parent for folder in folders} == {Path("runs")}
