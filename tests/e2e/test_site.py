"""The documentation's site in a real browser: a stranger's questions are answered a click from its first page and by its search, on a desk and on a phone.

Pictures of the pages are written to build/screenshots, for a person to look at.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = [
    pytest.mark.slow,
    chromium.NEEDED,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None,
        reason="needs MkDocs, which `make docs` installs",
    ),
]

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "screenshots"
WIDTHS = {"desk": 1240, "phone": 390}

# What a stranger types, and the page that answers.
QUESTIONS = {
    "eight GPUs": "several-gpus.html",
    "two hosts ssh": "tutorials/hosts.html",
    "docker": "tutorials/docker.html",
    "mixed precision": "same-numbers.html",
    "BatchNormalization": "same-numbers.html",
    "NaN": "nan.html",
    "power loss": "tutorials/recovery.html",
    "mlflow": "trackers.html",
    "parquet s3": "object-stores.html",
    "does it pay": "does-it-pay.html",
}


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the site and the folder of its files."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        check=True,
    )
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.fixture(params=WIDTHS)
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": WIDTHS[request.param], "height": 900})
    yield context.new_page()
    context.close()


def device(page: Page) -> str:
    size = page.viewport_size
    assert size is not None
    return next(name for name, width in WIDTHS.items() if width == size["width"])


def test_questions_are_answered_by_the_first_results_of_a_search(
    site: tuple[str, Path], page: Page
) -> None:
    page.goto(f"{site[0]}/index.html?q=start")
    for question, answer in QUESTIONS.items():
        box = page.locator("input[name=query]")
        box.fill(question, force=True)
        box.dispatch_event("keyup")
        among_three = page.locator(f".md-search-result__item:nth-child(-n+3) > a[href*='{answer}']")
        among_three.first.wait_for(state="attached", timeout=60_000)


def test_questions_are_answered_a_click_from_the_first_page(
    site: tuple[str, Path], page: Page
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for answer in sorted({*QUESTIONS.values()}):
        page.goto(f"{site[0]}/index.html")
        page.locator(f"article a[href^='{answer}']").first.click()
        page.locator("article h1").wait_for()
        assert page.url.startswith(f"{site[0]}/{answer}")
        page.screenshot(path=PICTURES / f"{Path(answer).stem}-{device(page)}.png", full_page=True)


def test_no_page_is_wider_than_the_screen(site: tuple[str, Path], page: Page) -> None:
    wide = []
    for path in sorted(site[1].rglob("*.html")):
        name = path.relative_to(site[1]).as_posix()
        if name.startswith("source/") or name == "404.html":
            continue
        page.goto(f"{site[0]}/{name}", wait_until="domcontentloaded")
        width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if width > 0:
            wide.append((name, width))
    assert wide == []
