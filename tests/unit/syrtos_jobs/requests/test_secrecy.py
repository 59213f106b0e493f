"""Values that nobody is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syrtos_jobs.requests.secrecy import Redactor, redact, secrets_of

REQUEST = {
    "HyperParameters": {
        "api_key": '"abcdefgh"',
        "pw": "4711",
        "secret_share": "0.25",
        "passwords": '["one", 22]',
        "use_password": "true",
        "config": '{"auth_token": "nested", "rows": 3}',
        "epochs": "5",
    },
    "Environment": {"DB_PASSWORD": "x y"},
}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("key abcdefgh, xabcdefghx", "key ******, x******x"),
        ("pw=4711 of 14711 and 0.4711, 4711.", "pw=****** of 14711 and 0.4711, ******."),
        ("share 0.25 of 10.25", "share ****** of 10.25"),
        ("['one', 22] none 122", "['******', ******] none 122"),
        ("true, nested, 3 rows in 5", "true, ******, 3 rows in 5"),
        ("x y", "******"),
    ],
)
def test_secrets_are_hidden_in_output(line: str, shown: str) -> None:
    assert Redactor(secrets_of(REQUEST))(line) == shown


def test_secrets_are_hidden_in_requests() -> None:
    text = json.dumps(redact(REQUEST))
    for secret in ("abcdefgh", "4711", "0.25", "22", "nested", "x y"):
        assert secret not in text
    assert redact(REQUEST)["HyperParameters"]["epochs"] == "5"
    assert json.loads(redact(REQUEST)["HyperParameters"]["config"])["rows"] == 3


def test_files_of_a_job(tmp_path: Path) -> None:
    logs, ledger = tmp_path / "attempt-1" / "logs", tmp_path / "attempt-1" / "ledger"
    logs.mkdir(parents=True)
    ledger.mkdir()
    path, other, document = logs / "rank-0.log", logs / "rank-1.log", ledger / "launcher.json"
    path.write_bytes(b"begins\r\n\xff abcdefgh\nno end")
    other.write_bytes(b"nothing")
    document.write_text(json.dumps({"failures": [{"text": "bad abcdefgh"}], "seconds": 4711}))
    before = other.stat().st_ino
    Redactor(["abcdefgh", "4711"]).redact_folder(tmp_path)
    assert path.read_bytes() == b"begins\r\n\xff ******\nno end"
    assert json.loads(document.read_text()) == {
        "failures": [{"text": "bad ******"}],
        "seconds": 4711,
    }
    assert other.stat().st_ino == before
    assert sorted(logs.iterdir()) == [path, other]
