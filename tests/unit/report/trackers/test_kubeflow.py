"""A TrainJob's status gets the progress of a run, over TLS and with the token of the moment. The controller is an emulation."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from syrtos.cli.watching import all_trackers
from syrtos.errors import ConfigurationError
from syrtos.report.figures import FiguresPoint
from syrtos.report.trackers import About, Tracker, make
from syrtos.settings import KUBEFLOW_VARIABLES


class Controller:
    """An emulated status server: the reports that it got, each with its token."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.refuses = False


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    key, certificate, token = (tmp_path / name for name in ("key.pem", "ca.crt", "token"))
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=trainer",
        "-days",
        "1",
    ]
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    token.write_text("first\n")
    state = Controller()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not state.refuses:
                state.reports.append((self.headers["Authorization"], body["trainerStatus"]))
            self.send_response(503 if state.refuses else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    values = (f"https://127.0.0.1:{server.server_address[1]}/status", str(certificate), str(token))
    for name, value in zip(KUBEFLOW_VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def tracker(controller: Controller, tmp_path: Path) -> Tracker:
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    return make("kubeflow", About("run", "train", tmp_path / "run"))


def end_epoch(folder: Path, epoch: int, time: float) -> None:
    with (folder / "run" / "ledger" / "epochs.jsonl").open("a") as file:
        file.write(json.dumps({"epoch": epoch, "epochs": 4, "time": time}) + "\n")


def test_progress_and_metrics(tracker: Tracker, controller: Controller, tmp_path: Path) -> None:
    end_epoch(tmp_path, 1, 100.0)
    end_epoch(tmp_path, 2, 110.0)
    tracker.log(
        [
            FiguresPoint(1.0, 5, {"loss": 0.25, "system/rank 0 memory bytes": 1.0}),
            FiguresPoint(2.0, 6, {"loss": 0.125}),
        ]
    )
    ((token, status),) = controller.reports
    assert token == "Bearer first"
    assert status["lastUpdatedTime"].endswith("Z")
    assert {
        name: status[name]
        for name in ("progressPercentage", "estimatedRemainingSeconds", "metrics")
    } == {
        "progressPercentage": 50,
        "estimatedRemainingSeconds": 20,
        "metrics": [{"name": "loss", "value": "0.125"}],
    }


def test_the_end_has_the_last_numbers_and_the_token_of_then(
    tracker: Tracker, controller: Controller, tmp_path: Path
) -> None:
    tracker.log([FiguresPoint(1.0, 1, {"loss": 1.0})])
    tracker.log(
        [FiguresPoint(2.0, 2, {"loss": 0.5})]
    )  # too soon after the first: the controller wants 5 s between reports
    (tmp_path / "token").write_text("second")
    tracker.end("finished", None)
    (_, first), (token, last) = controller.reports
    assert "progressPercentage" not in first  # no epoch has ended
    assert (token, last["progressPercentage"]) == ("Bearer second", 100)
    assert last["metrics"] == [{"name": "loss", "value": "0.5"}]


def test_a_controller_that_is_away_ends_nothing(
    tracker: Tracker, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.refuses = True
    tracker.log([FiguresPoint(1.0, 1, {"loss": 1.0})])
    assert "status was not updated" in capsys.readouterr().out


def test_it_is_on_by_itself_in_a_train_job(controller: Controller) -> None:
    env: dict[str, str] = dict.fromkeys(KUBEFLOW_VARIABLES, "x")
    assert all_trackers(["jsonl"], env) == ("jsonl", "kubeflow")
    assert all_trackers(["kubeflow"], env) == ("kubeflow",)
    assert all_trackers([], {}) == ()


def test_elsewhere_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KUBEFLOW_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="there it is on by itself"):
        make("kubeflow", About("run", "train", tmp_path))
