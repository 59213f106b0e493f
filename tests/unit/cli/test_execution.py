"""What goes on when it is started again."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from syrtos.checkpoint.encoding import pack
from syrtos.cli.earlier_run import _goes_on, _may_be_forgotten
from syrtos.cli.execution import execute, this_machine
from syrtos.cli.generation_starter import GenerationStarter
from syrtos.cli.run_request import KeptRequest, RunRequest, note, read_request
from syrtos.errors import ConfigurationError
from syrtos.json_files import document
from syrtos.launch.outcome import End, end_of
from syrtos.launch.policy import RestartPolicy
from syrtos.launch.program import parse
from syrtos.launch.spec import Elastic, Host, Spec
from syrtos.observe.unrecorded import Unrecorded
from syrtos.settings import Options


@pytest.fixture
def request_in(tmp_path: Path) -> RunRequest:
    """Of a run that was stopped in ``tmp_path``, and left a snapshot."""
    script = tmp_path / "train.py"
    script.write_text("import keras")
    found = RunRequest(
        Spec(program=parse([str(script)]), workers=2, options=Options()), RestartPolicy(3), seed=7
    )
    found.write(tmp_path)
    snapshot = tmp_path / "snapshots" / "snapshot-12"
    snapshot.mkdir(parents=True)
    (snapshot / "part-0.safetensors").write_bytes(pack({}, {"place": {"commits": 0}}))
    return found


def test_the_same_command_goes_on_with_what_goes_on(tmp_path: Path, request_in: RunRequest) -> None:
    again = dataclasses.replace(request_in, seed=8)
    assert _goes_on(again, tmp_path)
    for end, expected in (
        (["STOPPED", 143], True),
        (["STOPPED", 130], False),
        (["FAILED", 1], False),
        (None, True),
    ):
        path = tmp_path / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "end": end}))
        assert _goes_on(again, tmp_path) == expected


def test_another_command_begins_anew(tmp_path: Path, request_in: RunRequest) -> None:
    assert not _goes_on(request_in, tmp_path / "other")
    spec = dataclasses.replace(request_in.spec, workers=3)
    assert not _goes_on(dataclasses.replace(request_in, spec=spec), tmp_path)
    assert not _goes_on(dataclasses.replace(request_in, policy=RestartPolicy(0)), tmp_path)


def test_what_nobody_has_asked_to_keep_is_no_reason_to_refuse(
    tmp_path: Path, request_in: RunRequest
) -> None:
    by_default = dataclasses.replace(request_in, policy=RestartPolicy(3, asked=False))
    assert not _may_be_forgotten(by_default, tmp_path)
    by_default.write(tmp_path)
    assert _may_be_forgotten(by_default, tmp_path)
    assert not _may_be_forgotten(request_in, tmp_path)
    part = tmp_path / "snapshots" / "snapshot-12" / "part-0.safetensors"
    part.write_bytes(pack({}, {"place": {"commits": 3}}))  # the script has asked
    assert not _may_be_forgotten(by_default, tmp_path)


def test_it_is_told_what_differs(tmp_path: Path, request_in: RunRequest) -> None:
    found = json.loads((tmp_path / "run.json").read_text())
    options = Options(timeout=9.0)
    assert request_in.differences(found) == []
    other = dataclasses.replace(
        request_in, spec=dataclasses.replace(request_in.spec, workers=3, options=options)
    )
    assert other.differences(found) == ["workers", "timeout"]
    elastic = dataclasses.replace(
        request_in.spec, workers=1, hosts=(Host("a", 1),), elastic=Elastic(1)
    )
    assert dataclasses.replace(request_in, spec=elastic).differences(found) == ["elastic"]
    elsewhere = dataclasses.replace(request_in.spec, hosts=(Host("b", 2),))
    assert dataclasses.replace(request_in, spec=elsewhere).differences(found) == ["hosts"]
    placed = dataclasses.replace(elsewhere, placed=True)
    assert dataclasses.replace(request_in, spec=placed).differences(found) == []


def test_no_snapshot_is_removed_without_a_word(tmp_path: Path, request_in: RunRequest) -> None:
    (tmp_path / "train.py").write_text("import keras  # with another learning rate")
    with pytest.raises(
        ConfigurationError,
        match=r"other values of: the script's file, and.*`syrtos resume .*remove that folder",
    ):
        execute(request_in, tmp_path)
    assert (tmp_path / "snapshots" / "snapshot-12").is_dir()


ODD = ["", "\0\xff", "{", "[]", "7", "{}", '{"end": 3}', "[" * 9999]
# A member of the request, and what it can't be.
WRONG = [
    ("policy", []), ("policy", {"restarts": "3"}), ("options", [1]), ("options", {"timeout": "long"}), ("options", {"batch": "none"}),
    ("workers", "two"), ("workers", True), ("hosts", 3), ("hosts", [["a", 1]]), ("seed", None), ("seed", "x"), ("program", "train.py"),
    ("program", {"name": 3, "arguments": [], "flags": []}), ("forward", [1]), ("elastic", 4), ("track", 5), ("track", [5]),
    ("metrics_port", "a"), ("folder", 1 << 40), ("grace", [])
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_a_damaged_request_is_named(tmp_path: Path, request_in: RunRequest, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"run\.json is damaged"):
        read_request(tmp_path)
    with pytest.raises(ConfigurationError, match="and has kept a snapshot"):
        execute(request_in, tmp_path)
    if text in ('{"end": 3}', "{}"):
        return
    unrecorded = Unrecorded()
    with unrecorded.noting(tmp_path / "run.json"):
        note(tmp_path, end=["FINISHED", 0])
    assert "run.json is damaged" in unrecorded.sentence()
    assert (tmp_path / "run.json").read_text() == text


@pytest.mark.parametrize("text", [*ODD, None])
def test_a_request_that_was_damaged_meanwhile_is_whole_at_the_end(
    tmp_path: Path, request_in: RunRequest, text: str | None
) -> None:
    kept, path = KeptRequest(tmp_path, request_in), tmp_path / "run.json"
    path.unlink() if text is None else path.write_text(text)
    kept.note(resized=3)
    path.write_text(text or "")
    kept.note(end=["STOPPED", 143])
    assert end_of(document(path)) == (End.STOPPED, 143)
    assert read_request(tmp_path).spec == dataclasses.replace(request_in.spec, workers=3)


def test_a_request_that_had_no_room_is_written_at_the_end(
    tmp_path: Path, request_in: RunRequest
) -> None:
    (tmp_path / "run.json").unlink()
    KeptRequest(tmp_path, request_in).note(end=["STOPPED", 143])
    assert read_request(tmp_path).spec == request_in.spec
    assert end_of(document(tmp_path / "run.json")) == (End.STOPPED, 143)


def test_a_request_is_written_where_snapshots_have_made_the_folder_again(
    tmp_path: Path, request_in: RunRequest
) -> None:
    kept = KeptRequest(tmp_path, request_in)
    tmp_path.rename(tmp_path.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        kept.note(resized=3)
    tmp_path.mkdir()
    with pytest.raises(FileNotFoundError, match="was removed"):
        kept.note(end=["STOPPED", 143])
    found = document(tmp_path / "run.json")
    assert (found["resized"], end_of(found)) == (3, (End.STOPPED, 143))


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_request_with_another_type_is_named(
    tmp_path: Path, request_in: RunRequest, name: str, value: object
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    assert not _goes_on(request_in, tmp_path) or name in ("seed", "track", "metrics_port")
    with pytest.raises(ConfigurationError, match=r"can be resumed: |can't be resumed\. "):
        read_request(tmp_path)


@pytest.mark.parametrize("end", [3, [], ["FINISHED"], ["NONE", 0], [[], 0], {"a": 1}, "FINISHED"])
def test_an_odd_end_is_none(tmp_path: Path, request_in: RunRequest, end: object) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "end": end}))
    assert read_request(tmp_path).seed == 7
    with pytest.raises(ConfigurationError, match="has not finished, and has kept a snapshot"):
        execute(request_in, tmp_path)


def test_a_run_is_resumed_with_a_changed_script_and_a_word(
    tmp_path: Path,
    request_in: RunRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_request(tmp_path).seed == 7
    assert capsys.readouterr().err == ""
    (tmp_path / "train.py").write_text("import keras  # mended")
    assert read_request(tmp_path).seed == 7
    assert (
        capsys.readouterr().err
        == f"syrtos: {tmp_path / 'train.py'} has changed since the run was begun.\n"
    )


def test_a_script_that_was_changed_begins_anew(tmp_path: Path, request_in: RunRequest) -> None:
    (tmp_path / "train.py").write_text("import keras  # with another learning rate")
    assert not _goes_on(request_in, tmp_path)


def test_names_of_this_machine_are_known_and_others_are_not() -> None:
    hosts = tuple(
        Host(name, 1)
        for name in ("localhost", "127.0.0.1", socket.gethostname(), "no-such-host.invalid")
    )
    assert this_machine(hosts).here == {"localhost", "127.0.0.1", socket.gethostname()}


def test_a_script_that_changed_before_a_restart_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import keras")
    nothing: Any = None
    starter = GenerationStarter(nothing, nothing, nothing, nothing, 0.0, nothing)
    for text, is_told in (("import keras", False), ("import keras", False), ("pass", True)):
        script.write_text(text)
        starter._tell_change(str(script))
        assert (f"{script} has changed since" in capsys.readouterr().err) == is_told
