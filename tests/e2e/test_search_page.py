"""The page of tuning jobs in a real browser."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest

from syrtos_jobs.client import local
from syrtos_jobs.client.estimator import Estimator
from syrtos_jobs.client.search_file import SearchFile
from syrtos_jobs.http.page import token
from syrtos_jobs.http.server import Server
from syrtos_jobs.store.home import Home
from syrtos_jobs.tuning.operations import Operations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = [pytest.mark.slow, chromium.NEEDED]
expect = sync_api.expect
expect.set_options(timeout=30_000)

TRIAL = """
import os, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
while os.path.exists(given["--wait"]): time.sleep(0.1)
if given["--kind"] == "bad": raise ValueError("a bad kind")
print("val_loss:", float(given["--lr"]))
"""
RANGES = {
    "ContinuousParameterRanges": [
        {"Name": "lr", "MinValue": "1e-4", "MaxValue": "1e-1", "ScalingType": "Logarithmic"}
    ],
    "CategoricalParameterRanges": [
        {"Name": "kind", "Values": ['"good"', '"bad"', '"<b>bold</b>"']}
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(Home(tmp_path_factory.mktemp("home")), capacity=2)
    found.start()
    yield found
    for record in found.service.tunings.active():
        local.stop_search(found.service, record.name)
    found.close()


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.long)])
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page on which nothing may go wrong, and from which no request may leave the service."""
    context = browser.new_context(
        viewport={"width": 1240, "height": 900}, color_scheme=request.param
    )
    found, wrong = context.new_page(), []
    found.on(
        "console", lambda message: wrong.append(message.text) if "404" not in message.text else None
    )  # asked for on purpose
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on(
        "request",
        lambda asked: None if asked.url.startswith(server.url + "/") else wrong.append(asked.url),
    )
    found.goto(f"{server.url}/?token={token(server.service.home)}")
    yield found
    context.close()
    assert wrong == []


@pytest.fixture
def search(server: Server, tmp_path: Path) -> tuple[str, Path]:
    """A tuning job of 8 trials, and the file that they wait for to be gone."""
    name, wait = f"look-{secrets.token_hex(2)}", tmp_path / "wait"
    wait.touch()
    (tmp_path / "trial.py").write_text(TRIAL)
    config: dict[str, Any] = {
        "Strategy": "Random",
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "val_loss"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 8, "MaxParallelTrainingJobs": 2},
        "ParameterRanges": RANGES,
        "RandomSeed": 1,
    }
    estimator = Estimator(
        tmp_path / "trial.py", home=server.service.home.path, hyperparameters={"wait": str(wait)}
    )
    asked = SearchFile(name, {}, None, config).request(
        estimator.request(server.service, None, name)
    )
    Operations(server.service).create_hyper_parameter_tuning_job(asked)
    server.tuning.wake()
    return name, wait


@pytest.mark.long
def test_a_search_from_its_begin_to_its_end(
    server: Server, page: Page, search: tuple[str, Path]
) -> None:
    name, wait = search
    link = page.locator(f"#searches a[data-name={name}]")
    expect(link).to_contain_text("0 of 8 trials")
    expect(link.locator(".status")).to_have_text("●In progress")
    page.keyboard.press("j")
    expect(page.locator("#searches a").first).to_be_focused()
    link.press("Enter")
    expect(page.locator("#search-title")).to_have_text(name)
    expect(page.locator("#search-title")).to_be_focused()
    expect(page.locator("#search-facts")).to_contain_text("minimizes val_loss")
    expect(page.locator("#search-progress")).to_contain_text("2 running or waiting")
    expect(page.locator("#search-best-section")).to_be_hidden()

    wait.unlink()
    expect(page.locator("#search-facts .status")).to_have_text("✓Completed", timeout=90_000)
    trials = local.trials(server.service, name)
    failed = sum(trial.status == "Failed" for trial in trials)
    assert 0 < failed < 8
    expect(page.locator("#search-progress")).to_contain_text(f"{failed} failed")
    best = min(
        (trial for trial in trials if trial.has_succeeded), key=lambda trial: trial.objective or 0.0
    )
    expect(page.locator("#search-best")).to_contain_text(best.name)
    check_table(page, best.number)
    check_charts(page, 8 - failed)
    check_narrow(page)
    page.locator("#search-best a").click()
    expect(page.locator("#job-title")).to_have_text(best.name)
    page.go_back()
    expect(page.locator("#search-title")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#list")).to_be_visible()
    expect(link).to_be_focused()
    expect(link).to_contain_text("8 of 8 trials")
    expect(link).to_contain_text("best val_loss")


def check_table(page: Page, best: int) -> None:
    """It is sorted by any column, up and down, with failed trials last."""
    rows = page.locator("#search-rows tr")
    expect(rows).to_have_count(8)
    expect(page.locator("#search-trials")).not_to_contain_text('"')
    heading = page.get_by_role("columnheader", name="val_loss")
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(rows.first.locator("th")).to_have_text(str(best))
    expect(rows.first).to_have_class("chosen")
    expect(rows.last).to_contain_text("Failed")
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(rows.last).to_contain_text("Failed")
    expect(rows.first).not_to_have_class("chosen")


def check_charts(page: Page, count: int) -> None:
    objective = page.get_by_label("Objective of each trial, and the best so far")
    expect(objective.locator("svg")).to_contain_text("best so far")
    objective.press("End")
    expect(page.locator("figure", has=objective).get_by_role("status")).to_contain_text(
        re.compile(r"Trial \d: val_loss ")
    )
    parallel = page.get_by_label("Parallel coordinates")
    for text in ("lr", "kind", "val_loss", "good", "<b>bold</b>"):
        expect(parallel.locator("svg")).to_contain_text(text)
    lines = parallel.locator("svg path").evaluate_all(
        "all => all.filter(one => one.getAttribute('stroke-width') === '1.4').length"
    )
    assert lines == count
    parallel.press("Home")
    expect(page.locator("figure", has=parallel).get_by_role("status")).to_contain_text("Trial 1")


def check_narrow(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    time.sleep(0.5)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    expect(page.get_by_label("Parallel coordinates").locator("svg")).to_contain_text("kind")
    page.set_viewport_size({"width": 1240, "height": 900})


def test_stopping(page: Page, search: tuple[str, Path]) -> None:
    name, _ = search
    page.locator(f"#searches a[data-name={name}]").click()
    page.get_by_role("button", name="Stop tuning").click()
    page.keyboard.press("Escape")
    expect(page.locator("#search-stop")).to_be_focused()
    page.get_by_role("button", name="Stop tuning").press("Enter")
    page.get_by_role("button", name="Stop it").press("Enter")
    expect(page.locator("#search-facts .status")).to_have_text("■Stopped", timeout=60_000)
    expect(page.locator("#search-stopping")).to_be_hidden()
    page.goto(page.url.replace(name, "nobody"))
    expect(page.locator("#trouble")).to_have_text("There is no tuning job nobody.", timeout=5_000)
