"""What jobs print: every line once, as a terminal would leave it, and without secrets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos_jobs.observation import logs
from syrtos_jobs.observation.logs import LogStream, LogTail, terminal_line
from syrtos_jobs.requests.secrecy import Redactor


@pytest.fixture
def stream(tmp_path: Path) -> LogStream:
    logs.make(tmp_path / "job" / "logs", ["algo-1"], 1700000000.9)
    (found,) = logs.of(tmp_path / "job" / "logs")
    return found


def test_streams_are_named_and_ordered_by_instance(tmp_path: Path) -> None:
    folder = tmp_path / "my-job" / "logs"
    logs.make(folder, [f"algo-{k + 1}" for k in range(11)], 1700000000.9)
    found = logs.of(folder)
    assert [one.name for one in found] == [f"my-job/algo-{k + 1}-1700000000" for k in range(11)]
    assert [one.size for one in found] == [0] * 11
    assert folder.stat().st_mode & 0o077 == 0
    assert all(one.path.stat().st_mode & 0o077 == 0 for one in found)
    assert found[0].read() == []


def test_a_job_that_is_created_again_has_one_stream_for_each_instance(tmp_path: Path) -> None:
    """A service was killed when it had made the streams, and had not written down the job."""
    for now in (1700000000.9, 1700000004.0):
        logs.make(tmp_path / "logs", ["algo-1", "algo-11"], now)
    assert [stream.path.name for stream in logs.of(tmp_path / "logs")] == [
        "algo-1-1700000000.jsonl",
        "algo-11-1700000000.jsonl",
    ]


def test_pages_by_offset(stream: LogStream) -> None:
    lines = [f"line {number} é\U0001f600" for number in range(25)]
    before = int(time.time() * 1000)
    stream.write(lines[:10])
    stream.write([])
    stream.write(lines[10:])
    found, offset = [], 0
    while page := stream.read(offset, 4):
        assert len(page) <= 4
        found += page
        offset = page[-1].end
    assert [event.text for event in found] == lines
    assert offset == stream.size == found[-1].end
    assert stream.read(offset) == []
    assert all(before <= event.time <= time.time() * 1000 for event in found)
    assert list(stream.all()) == found
    assert [event.text for event in stream.all(found[19].end)] == lines[20:]
    stream.write(["later"])
    assert [event.text for event in stream.read(offset)] == ["later"]


def test_more_than_a_page(stream: LogStream) -> None:
    lines = [f"{number} " + "x" * 5000 for number in range(600)]
    stream.write(lines)
    assert 0 < len(stream.read(0)) < 600
    assert [event.text for event in stream.all()] == lines


@pytest.mark.parametrize("character", ["x", "\U0001f600", "\0", '"'])
def test_the_longest_event_fits_a_page(stream: LogStream, character: str) -> None:
    stream.write([character * 2_000_000, "next"])
    assert [event.text for event in stream.all()] == [character * 32_000, "next"]


def test_what_a_killed_writer_left_does_not_hide_what_follows(stream: LogStream) -> None:
    stream.write(["before"])
    with stream.path.open("a") as file:
        file.write('{"t": 1700000000000, "m": "hal')
    assert [event.text for event in stream.all()] == ["before"]
    stream.write(["after"])
    assert [event.text for event in stream.all()][-1] == "after"


def test_threads_write_whole_lines(stream: LogStream) -> None:
    threads = [
        threading.Thread(
            target=lambda k=k: [stream.write([f"{k}-{n}", "x" * 3000]) for n in range(40)]
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [event.text for event in stream.all()]
    assert len(texts) == 320
    assert sorted(text for text in texts if not text.startswith("x")) == sorted(
        f"{k}-{n}" for k in range(4) for n in range(40)
    )


# -- what a terminal would leave ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("plain", "plain"),
        ("", ""),
        ("windows\r", "windows"),
        ("10%\r20%\r30%", "30%"),
        ("10%\r20%\r", "20%"),
        ("\x1b[1m\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2K\x1b[1A1/3 \x1b[?25hdone", "1/3 done"),
        ("tab\tstays", "tab\tstays"),
        ("bell\x07 and nul\x00", "bell and nul"),
        ("1/2\x08\x08\x082/2", "2/2"),
        ("1/9\x08\x08\x082/9\x08\x08\x083/9", "3/9"),
        ("1/2\x08\x08\x08", "1/2"),
        ("é\U0001f600", "é\U0001f600"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    ],
)  # fmt: skip
def test_lines_are_shown_as_a_terminal_leaves_them(line: str, wanted: str) -> None:
    assert terminal_line(line) == wanted


@pytest.mark.parametrize(
    "line",
    ["x" * 1_000_000, "x\r" * 500_000, "\x1b[" * 500_000, "x\x08" * 500_000, "\x08" * 1_000_000],
)
def test_a_long_line_takes_no_time(line: str) -> None:
    """The thread that shows it is one of the process that stops the job."""
    thread = threading.Thread(target=lambda: done.append(terminal_line(line[:20_000])), daemon=True)
    done: list[str] = []
    began = time.process_time()
    thread.start()
    thread.join()
    short = time.process_time() - began
    assert short < 0.2, f"20,000 characters took {short:.1f} s"
    began = time.process_time()
    terminal_line(line)
    assert time.process_time() - began < 5


@given(st.text(alphabet="ab\r\x08\x1b[0m1;", max_size=60))
def test_no_control_character_is_left(line: str) -> None:
    assert not any(ord(character) < 32 for character in terminal_line(line))


# -- files that grow ---------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> list[str]:
    return []


@pytest.fixture
def tail(tmp_path: Path, taken: list[str]) -> Iterator[LogTail]:
    found = LogTail([(tmp_path / "log", taken.extend)])
    yield found
    found.close()


def wait_for(taken: list[str], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(taken) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_lines_come_whole_while_the_file_grows(
    tmp_path: Path, tail: LogTail, taken: list[str]
) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"first\nsec")
        wait_for(taken, 1)
        time.sleep(0.25)
        assert taken == ["first"]
        file.write("ond \xe9".encode()[:-1])
        time.sleep(0.15)
        file.write("\xe9".encode()[-1:] + b"\nlast")
        wait_for(taken, 2)
        assert taken == ["first", "second \xe9"]
        tail.close()
    assert taken == ["first", "second \xe9", "last"]


def test_files_that_never_come(tmp_path: Path, tail: LogTail, taken: list[str]) -> None:
    tail.close()
    assert taken == []


def test_each_file_has_its_taker(tmp_path: Path) -> None:
    one: list[str] = []
    two: list[str] = []
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n")
    LogTail([(tmp_path / "a", one.extend), (tmp_path / "b", two.extend)]).close()
    assert (one, two) == (["a"], ["b"])


def test_bytes_that_are_no_text(tmp_path: Path, tail: LogTail, taken: list[str]) -> None:
    (tmp_path / "log").write_bytes(b"a\xff\xfeb\n")
    tail.close()
    assert taken == ["a\ufffd\ufffdb"]


def test_blank_lines_are_lines(tmp_path: Path, tail: LogTail, taken: list[str]) -> None:
    (tmp_path / "log").write_text("\n\na\n\n\nb\n\n\n")
    tail.close()
    assert taken == ["", "", "a", "", "", "b", "", ""]


def test_much_output_at_the_end_keeps_its_lines(
    tmp_path: Path, tail: LogTail, taken: list[str]
) -> None:
    lines = [f"{number:07} " + "x" * 90 for number in range(30_000)]  # 3 MB
    (tmp_path / "new").write_text("\n".join(lines) + "\n")
    tail._over.set()  # the file is there for the last look only
    tail._thread.join()
    (tmp_path / "new").rename(tmp_path / "log")
    tail.close()
    assert len(taken) == len(lines)
    assert taken == lines


def test_a_line_without_an_end_does_not_grow_for_ever(
    tmp_path: Path, tail: LogTail, taken: list[str]
) -> None:
    (tmp_path / "log").write_bytes(b"\r".join(b"%07d" % number for number in range(300_000)))
    wait_for(taken, 1)
    assert taken
    assert all(len(line) < 100 for line in taken)


# -- secrets -----------------------------------------------------------------------------------------------


def test_secrets_are_hidden() -> None:
    redact = Redactor(["hunter22", "hunter22-longer", "a.b*c+d", "", "short"])
    assert redact("it is hunter22.") == "it is ******."
    assert redact("hunter22-longer hunter22") == "****** ******"
    assert redact("a.b*c+d axb*c+d") == "****** axb*c+d"
    # A short value is hidden as a word of its own, and not within other words.
    assert redact("short words, shortly") == "****** words, shortly"
    assert Redactor([])("anything") == "anything"


SECRETS = {
    "lines": "-----BEGIN KEY-----\nMIIEabcdefgh\nMIIEijklmnop\n-----END KEY-----\n",
    "quotes": "pass'wo\"rd-123",
    "backslash": "pass\\word-123",
    "text": "pässwörd-123",
}


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secrets_are_hidden_however_they_are_printed(name: str) -> None:
    """As they are, line by line; as Python shows a mapping; as JSON has them, which is how SM_HPS does."""
    secret = SECRETS[name]
    redact = Redactor([secret])
    printed = [*secret.splitlines(), repr({"A": secret}), json.dumps({"A": secret})]
    seen = "\n".join(redact(line) for line in printed)
    parts = {"lines": ["MIIEabcdefgh", "MIIEijklmnop"], "text": ["pässw", "\\u00e4"]}
    for part in parts.get(name, ["-123"]):
        assert part not in seen


def test_text_of_a_log_that_is_longer_than_a_piece(stream: LogStream) -> None:
    lines = [f"line {number} \u00e9 {'x' * 200}" for number in range(20_000)]
    stream.write(lines)
    pieces = list(stream.text())
    assert b"".join(pieces).decode() == "".join(f"{line}\n" for line in lines)
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= 1 << 20
    stream.write(["lone \ud800"])
    assert b"".join(stream.text()).endswith(b"lone ?\n")


def test_text_ends_where_the_log_was_when_it_was_asked_for(stream: LogStream) -> None:
    stream.write(["x" * 20_000] * 100)
    pieces = stream.text()
    next(pieces)
    for _ in range(3):  # it goes on faster than it is read
        stream.write(["y" * 20_000] * 200)
    assert b"".join(pieces).count(b"\n") < 200
