"""The service's page in a real browser."""

from __future__ import annotations

import json
import re
import secrets
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest

from syrtos.run_dir import RunDir
from syrtos_jobs.client.estimator import Estimator
from syrtos_jobs.http.page import token
from syrtos_jobs.http.server import Server
from syrtos_jobs.observation import logs
from syrtos_jobs.store.home import Home

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = [pytest.mark.slow, chromium.NEEDED]
expect = sync_api.expect
expect.set_options(timeout=30_000)  # other tests may keep the processors busy

TRAINING = """
import os, time
import keras, numpy as np

class WaitsToBeSeen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        until = time.monotonic() + 120  # then the test has failed, and others wait for these workers
        while epoch == 1 and not os.path.exists(os.environ["SM_HP_GO_ON"]) and time.monotonic() < until:
            time.sleep(0.1)

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
print("host", os.environ["SM_CURRENT_HOST"], "begins", flush=True)
model.fit(x, x.sum(1), batch_size=8, epochs=5, validation_split=0.25, callbacks=[WaitsToBeSeen()], verbose=2)
model.save(os.path.join(os.environ["SM_MODEL_DIR"], "model.keras"))
"""
WAITING = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"
NASTY = "<img src=x onerror=alert(1)>"
Submit = Callable[..., str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(Home(tmp_path_factory.mktemp("home")), capacity=2)
    found.start()
    yield found
    for record in found.service.store.find([], [], 0, 100)[0]:
        if not record.state.final:
            found.service.stop_training_job({"TrainingJobName": record.name})
            wait_for(found, record.name, "Stopped")
    found.close()


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """A browser that knows the page's key, from which no request may leave the service."""
    found = browser.new_context(viewport={"width": 1240, "height": 900})
    asked: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    found.new_page().goto(f"{server.url}/?token={token(server.service.home)}")
    yield found
    found.close()
    assert asked
    assert [url for url in asked if not url.startswith(server.url + "/")] == []


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing may go wrong."""
    found, wrong = context.pages[0], []
    found.on("console", lambda message: wrong.append(f"{message.text} {message.location['url']}"))
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("dialog", lambda dialog: wrong.append(dialog.message))
    yield found
    assert wrong == []


@pytest.fixture
def submit(server: Server, tmp_path: Path) -> Iterator[Submit]:
    """Creates a job of a script's text, and returns its name, which is another one each time, as a test may be run again.

    A test that fails leaves no job, which would keep the workers from the next test.
    """
    created: list[str] = []

    def create(name: str, text: str, **arguments: Any) -> str:
        name = f"{name}-{secrets.token_hex(2)}"
        script = tmp_path / f"{name}.py"
        script.write_text(text)
        created.append(
            Estimator(script, home=server.service.home.path, **arguments).create(
                server.service, job_name=name
            )
        )
        return created[-1]

    yield create
    for name in created:
        record = server.service.store.get(name)
        if record is not None and not record.state.final:
            server.service.stop_training_job({"TrainingJobName": name})
            wait_for(server, name, "Stopped")


def wait_for(server: Server, name: str, *statuses: str) -> None:
    deadline = time.monotonic() + 180  # other tests may keep the processors busy
    while True:
        record = server.service.store.get(name)
        assert record is not None
        if record.state.secondary in statuses:
            return
        assert not record.state.final, record
        assert time.monotonic() < deadline, record
        time.sleep(0.1)


def go(page: Page, server: Server, name: str) -> None:
    page.goto(f"{server.url}/#/jobs/{name}")
    expect(page.locator("#job-title")).to_have_text(name)


def epochs_shown(page: Page) -> Locator:
    """Their ends, in the table under the chart of the loss."""
    return page.locator("[data-metric=loss] + details tr", has_text="at the end of epochs")


def test_training(server: Server, page: Page, submit: Submit, tmp_path: Path) -> None:
    metrics = [{"Name": "validation:mae", "Regex": "val_mae: ([0-9.]+)"}]
    go_on = tmp_path / "go_on"
    settings = {"rate": 0.1, "go_on": str(go_on)}
    facts = {"instance_count": 2, "instance_type": "ml.c5.xlarge", "metric_definitions": metrics}
    name = submit("training", TRAINING, hyperparameters=settings, **facts)
    page.locator("#jobs a", has_text=name).click()
    expect(page.locator("#report-none")).to_be_visible()
    expect(page.locator("#log")).to_contain_text("host algo-1 begins", timeout=90_000)

    page.locator("[data-metric=loss] svg").wait_for(timeout=90_000)
    page.locator("[data-metric=loss] + details summary").click()
    expect(epochs_shown(page)).to_have_count(
        1, timeout=90_000
    )  # the second is told when its callbacks have returned
    expect(page.locator("#job-facts .status")).to_have_text("●Training")
    shown = page.locator("[data-metric]").evaluate_all("all => all.map(one => one.dataset.metric)")
    assert shown == ["loss", "mae", "Learning rate"]
    expect(page.locator("[data-metric=loss] svg")).to_contain_text("validation")

    go_on.touch()
    expect(page.locator("#job-facts .status")).to_have_text("✓Completed", timeout=90_000)
    expect(epochs_shown(page)).to_have_count(5)
    expect(page.locator("#progress")).to_have_text("epoch 5 of 5")
    check_run(page, name)
    check_report(page, tmp_path)
    expect(page.locator("#metrics")).to_contain_text("validation:mae")
    expect(page.locator("#settings")).to_contain_text("rate")
    expect(page.locator("#story li").last).to_contain_text("Completed")
    expect(page.locator("#stopping")).to_be_hidden()
    page.locator("#stream").select_option("algo-2")
    expect(page.locator("#log")).to_contain_text("host algo-2 begins")

    with page.expect_download() as download:
        page.get_by_role("link", name="model.tar.gz").click()
    download.value.save_as(tmp_path / "model.tar.gz")
    with tarfile.open(tmp_path / "model.tar.gz") as archive:
        assert "model.keras" in [Path(name).name for name in archive.getnames()]
    check_schemes(page, tmp_path)
    page.get_by_role("link", name="All jobs").click()
    row = page.locator(f"#jobs a[data-name={name}]")
    expect(row).to_contain_text(re.compile(rf"{name}\.py · 2\s×\sml.c5.xlarge"))
    expect(row.locator(".metric")).to_have_text(re.compile(r"^loss[0-9.]+$"))


def check_report(page: Page, folder: Path) -> None:
    """The charts, by the keyboard too, and as a file."""
    waterfall = page.get_by_label("Where the time went: a bar for each part of the run's time")
    expect(waterfall.locator("svg")).to_contain_text("compute")
    waterfall.press("End")
    expect(page.locator("figure", has=waterfall).get_by_role("status")).to_contain_text("%")
    expect(page.get_by_label("The same for each worker").locator("svg")).to_contain_text("rank 1")
    expect(page.locator("#report-more")).to_contain_text("What workers exchange in a step")
    with page.expect_download() as download:
        page.get_by_role("link", name="Save as a file").click()
    download.value.save_as(folder / "report.html")
    assert "Where the time went" in (folder / "report.html").read_text()


def check_run(page: Page, name: str) -> None:
    """How a job of two instances says it was run."""
    run = page.locator("#run")
    expect(run.locator("dl")).to_contain_text(re.compile(r"2\s×\sml.c5.xlarge"))
    expect(run.locator("pre")).to_have_text(
        re.compile(rf"^python {name}\.py --go_on \S+ --rate 0.1$")
    )
    for package in ("Python", "syrtos", "keras", "numpy"):
        expect(run.locator("tr", has=page.get_by_text(package, exact=True))).to_contain_text(
            re.compile("[0-9]")
        )


def check_schemes(page: Page, folder: Path) -> None:
    """A light and a dark picture, with something on each; on a narrow screen nothing sticks out."""
    grounds, pictures = set(), []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        pictures.append(page.screenshot(path=folder / f"{scheme}.png", full_page=True))
    assert len(grounds) == 2
    assert pictures[0] != pictures[1]
    assert min(map(len, pictures)) > 30_000  # a blank one has 5,000 bytes
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    tops = [
        page.locator(f"#{part}-section").evaluate("part => part.offsetTop")
        for part in ("artifacts", "logs")
    ]
    assert tops[0] < tops[1]


def test_what_jobs_say_is_text(server: Server, page: Page, submit: Submit) -> None:
    name = submit(
        "nasty", f"print('{NASTY}')\nraise ValueError('{NASTY}')\n", hyperparameters={"note": NASTY}
    )
    wait_for(server, name, "Failed")
    go(page, server, name)
    for place in ("#log", "#failure", "#settings", "#run pre"):
        expect(page.locator(place)).to_contain_text(NASTY)
    page.locator("#clone-open").click()
    expect(page.locator("#clone-settings")).to_have_value(re.compile(re.escape(NASTY)))
    page.keyboard.press("Escape")
    page.get_by_role("link", name="All jobs").click()
    expect(page.locator(f"#jobs a[data-name={name}] .reason")).to_contain_text(NASTY)
    assert page.locator("img").count() == 0


def test_keys(server: Server, page: Page, submit: Submit) -> None:
    name = submit("waiting", WAITING)
    wait_for(server, name, "Training")
    go(page, server, name)  # from here on without a mouse
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(f"#jobs a[data-name={name}]")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()

    page.reload()
    page.locator("#jobs a").first.wait_for()
    page.keyboard.press("j")
    expect(page.locator("#jobs a:focus")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#job-title")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#stop-yes")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#stop")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#job-facts .status")).to_have_text("■Stopped", timeout=90_000)
    wait_for(server, name, "Stopped")
    page.go_back()
    expect(page.locator("#list")).to_be_visible()


def test_search(server: Server, page: Page, submit: Submit) -> None:
    tags = [{"Key": "team", "Value": "vision"}]
    failing = submit(
        "pear",
        "raise ValueError('no pears')\n",
        tags=tags,
        hyperparameters={"depth": 18, "api_key": "hid"},
    )
    other = submit("apple", "print('nothing')\n")
    wait_for(server, failing, "Failed")
    wait_for(server, other, "Completed")
    names = page.locator("#jobs a").evaluate_all  # those that are shown
    page.locator(f"#jobs a[data-name={other}]").wait_for()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    for words in (failing, f"{failing}.PY", "team=vision pear", "depth=18 failed pear"):
        page.locator("#search").fill(words)
        expect(page.locator("#found")).to_have_text("1 job found")
        expect(page.locator("#jobs a")).to_have_attribute("data-name", failing)
    expect(page.locator("#jobs .reason")).to_have_text("ValueError: no pears")
    assert (
        page.locator("#jobs .reason").evaluate("one => getComputedStyle(one).color")
        == "rgb(177, 40, 30)"
    )
    page.locator("#search").fill("hid")  # a secret is not even found
    expect(page.locator("#found")).to_have_text("No jobs found")
    page.get_by_role("button", name="Show all jobs").click()
    expect(page.locator(f"#jobs a[data-name={other}]")).to_be_visible()
    page.get_by_role("button", name="Failed").click()
    expect(page.locator(f"#jobs a[data-name={other}]")).to_have_count(0)
    assert failing in names("all => all.map(one => one.dataset.name)")
    expect(page.get_by_role("button", name="Failed")).to_have_attribute("aria-pressed", "true")
    page.locator("#search").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#jobs a").first).to_be_focused()


def test_waiting_and_progress(server: Server, page: Page, submit: Submit) -> None:
    """What a running job tells of its progress, and how many workers are in use."""
    running = submit("running", WAITING, instance_count=2)
    wait_for(server, running, "Training")
    queued = submit("queued", WAITING)
    wait_for(server, queued, "Pending")
    expect(page.locator("#capacity")).to_have_text("2 of 2 workers in use1 job waiting")
    path = RunDir(server.service.home.job(running) / "attempt-1").epochs
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = [
        {"time": time.time() - 60 * (2 - k), "epoch": k + 1, "epochs": 5, "logs": {"loss": 1.0}}
        for k in range(3)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in facts))
    row = page.locator(f"#jobs a[data-name={running}]")
    expect(row.locator(".bar")).to_have_text("epoch 3 of 5 · about 2 min left")
    expect(row.locator(".metric")).to_have_text("loss1")
    page.get_by_role("button", name="Waiting").click()
    expect(page.locator("#jobs a")).to_have_count(1)
    page.locator(f"#jobs a[data-name={queued}]").click()
    expect(page.locator("#run")).to_contain_text(f"python {queued}.py")  # as it will be run
    go(page, server, running)
    expect(page.locator("#progress")).to_contain_text("about 2 min left")
    for name in (queued, running):
        server.service.stop_training_job({"TrainingJobName": name})
        wait_for(server, name, "Stopped")


def test_clone(server: Server, context: BrowserContext, submit: Submit) -> None:
    page = context.pages[0]  # a refusal of the service is told in the browser's console too
    settings = {"epochs": 3, "label": "a b", "auth_token": "of-the-first"}
    variables = {"DB_PASSWORD": "secret-1", "PLAIN": "plain"}
    first = submit("first", "print('hello')\n", hyperparameters=settings, environment=variables)
    wait_for(server, first, "Completed")
    go(page, server, first)
    page.get_by_role("button", name="Clone job").click()
    expect(page.locator("#clone-name")).to_be_focused()
    for secret in ("of-the-first", "secret-1"):
        assert secret not in page.content()
        assert secret not in page.locator("#clone-settings").input_value()
    page.locator("#clone-name").fill(first)
    page.keyboard.press("Enter")
    expect(page.locator("#clone-trouble")).to_contain_text("Choose another name")
    page.locator("#clone-name").fill(f"{first}-again")
    page.locator("#clone-settings").fill("{epochs}")
    page.get_by_role("button", name="Create job").click()
    expect(page.locator("#clone-trouble")).to_contain_text("no JSON")
    page.locator("#clone-settings").fill('{"epochs": 4, "label": "a b", "new": [1, 2]}')
    page.get_by_label("DB_PASSWORD").fill("secret-2")
    page.get_by_role("button", name="Create job").click()
    expect(page.locator("#job-title")).to_have_text(f"{first}-again")
    expect(page.get_by_role("dialog")).to_be_hidden()
    record = server.service.store.get(f"{first}-again")
    assert record is not None
    own = {
        k: v for k, v in record.request["HyperParameters"].items() if not k.startswith("sagemaker_")
    }
    assert own == {"epochs": "4", "label": '"a b"', "new": "[1, 2]"}
    assert record.request["Environment"] == {"DB_PASSWORD": "secret-2", "PLAIN": "plain"}
    wait_for(server, record.name, "Completed")


def test_download_of_a_log(server: Server, page: Page, submit: Submit, tmp_path: Path) -> None:
    name = submit("printing", "print('one <b>'); print('två')\n")
    wait_for(server, name, "Completed")
    go(page, server, name)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"{name}-algo-1.log"
    download.value.save_as(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "one <b>\ntvå\n"
    answer = page.context.request.get(f"{server.url}/ui/jobs/{name}/logs/0/download")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert page.context.request.get(f"{server.url}/ui/jobs/{name}/logs/7/download").status == 404


def test_strangers(server: Server, context: BrowserContext, submit: Submit) -> None:
    for path in ("/", "/ui/jobs", "/ui/page.js"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url + path)
        assert refused.value.code == 403
    name = submit("untouched", WAITING)
    wait_for(server, name, "Training")
    assert context.request.post(f"{server.url}/ui/jobs/{name}/stop").status == 404
    wanted = {"name": f"{name}-2", "hyperparameters": "{}", "secrets": {}}
    assert context.request.post(f"{server.url}/ui/jobs/{name}/clone", data=wanted).status == 404
    assert server.service.store.get(f"{name}-2") is None
    time.sleep(0.5)
    wait_for(server, name, "Training")
    assert context.request.post(
        f"{server.url}/ui/jobs/{name}/stop", headers={"X-Syrtos": "page"}
    ).ok
    wait_for(server, name, "Stopped")


@pytest.mark.long
def test_long_log(server: Server, page: Page, submit: Submit) -> None:
    name = submit("long", WAITING)
    wait_for(server, name, "Training")
    stream = logs.of(server.service.home.job(name) / "logs")[0]
    while not stream.size:
        time.sleep(0.1)
    stream.write([f"line {number}" for number in range(100_000)])
    go(page, server, name)
    expect(page.locator("#log-count")).to_contain_text("of 100,001 lines", timeout=90_000)
    log = page.locator("#log")
    expect(log.locator("div")).to_have_count(2000)
    log.evaluate("box => box.scrollIntoView({ block: 'end' })")
    expect(log.locator("div").last).to_be_in_viewport()
    log.evaluate("log => { log.scrollTop -= 500 }")
    expect(page.locator("#latest")).to_be_visible()
    place = log.evaluate("log => log.scrollTop")
    stream.write(["the very last"])
    expect(page.locator("#log-count")).to_contain_text("of 100,002 lines")
    assert log.evaluate("log => log.scrollTop") == place
    page.locator("#latest").click()
    expect(log.locator("div").last).to_have_text("the very last")
    expect(log.locator("div").last).to_be_in_viewport()
    log.evaluate("log => { log.scrollTop = 0 }")  # more come in there
    expect(page.locator("#log-count")).to_contain_text("97,003–99,002")
    page.locator("#filter").fill("LINE 9999")
    expect(page.locator("#log-count")).to_have_text("11 found")
    expect(log.locator("mark")).to_have_count(11)
    server.service.stop_training_job({"TrainingJobName": name})
    wait_for(server, name, "Stopped")


def test_odd_numbers(server: Server, page: Page, submit: Submit) -> None:
    name = submit("odd", "print('nothing')\n")
    wait_for(server, name, "Completed")
    path = RunDir(server.service.home.job(name) / "attempt-1").epochs
    path.parent.mkdir(parents=True, exist_ok=True)
    line = '{{"epoch": {}, "epochs": 3, "logs": {{"loss": {}}}}}\n'
    path.write_text(
        "".join(
            line.format(k + 1, value)
            for k, value in enumerate((2.5, "NaN", 1.5, "Infinity", 1, 0.5))
        )
    )
    go(page, server, name)
    chart = page.get_by_label("loss over the training steps")
    chart.press("Home")
    chart.press("ArrowRight")
    expect(page.locator("[data-metric=loss]").get_by_role("status")).to_have_text(
        "at the end of epochs: not finite at step 2"
    )
    page.locator("[data-metric=loss] + details summary").click()
    expect(page.locator("[data-metric=loss] + details tr", has_text="not finite")).to_have_count(2)


@pytest.mark.parametrize("width", [1240, 400])
def test_legends_have_room(server: Server, page: Page, submit: Submit, width: int) -> None:
    name = submit("legends", "print('nothing')\n")
    wait_for(server, name, "Completed")
    path = RunDir(server.service.home.job(name) / "attempt-1").epochs
    path.parent.mkdir(parents=True, exist_ok=True)
    logs = {"loss": 1.5, "val_loss": 2.5}
    path.write_text(
        "".join(json.dumps({"epoch": k + 1, "epochs": 3, "logs": logs}) + "\n" for k in range(3))
    )
    page.set_viewport_size({"width": width, "height": 900})
    go(page, server, name)
    chart = page.locator("[data-metric=loss] svg")
    legends = [
        chart.locator("text", has_text=text) for text in ("at the end of epochs", "validation")
    ]
    for legend in legends:
        # it has no box before the chart is drawn
        expect(legend).to_be_visible()
    texts = [legend.bounding_box() for legend in legends]
    first, second = (box for box in texts if box is not None)
    assert first["y"] == second["y"], "the legend is on two lines"
    marks = chart.locator("path").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().toJSON())"
    )
    of_legend = [
        mark
        for mark in marks
        if mark["width"] < 30 and mark["bottom"] < first["y"] + first["height"] + 4
    ]
    assert of_legend
    assert not [
        mark for mark in of_legend if first["x"] + 2 < mark["left"] < first["x"] + first["width"]
    ]


def test_service_gone(server: Server, context: BrowserContext) -> None:
    page = context.pages[0]
    expect(page.locator("#list")).to_be_visible()
    context.set_offline(True)
    expect(page.locator("#trouble")).to_contain_text("does not answer")
    context.set_offline(False)
    expect(page.locator("#trouble")).to_be_hidden()
    page.goto(f"{server.url}/#/jobs/nobody")
    expect(page.locator("#trouble")).to_have_text("There is no job nobody.")
    page.get_by_role("link", name="Syrtos").click()
    expect(page.locator("#list")).to_be_visible()
