"""The documentation agrees with the code: commands parse, snippets compile, links lead somewhere, and what programs write is as they write it."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from syrtos import cli
from syrtos.cli import command_files
from syrtos_jobs.commands import tune_search
from syrtos_tune.commands import tune_batch, tune_lr

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AT_THE_ROOT = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
]
PAGES = sorted([*AT_THE_ROOT, *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(
    r"^(?P<mark> *<!-- runnable -->\n)?(?P<indent> *)```(?P<language>\w*).*?\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.M)
INLINE = re.compile(r"`(syrtos [^`]+)`")
FORMS = {"batch": tune_batch.parser, "lr": tune_lr.parser}


def made_by(name: str) -> ModuleType:
    """A program of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    """The parts of pages that `make docs` makes from the code."""
    sys.path.insert(0, str(DOCS / "site"))
    yield importlib.import_module("parts")
    sys.path.remove(str(DOCS / "site"))


def test_the_picture_of_the_architecture_is_made_from_the_import_contract() -> None:
    made = made_by("architecture_picture").picture()
    assert (DOCS / "architecture.svg").read_text() == made, (
        "run `python docs/architecture_picture.py`"
    )


def test_the_page_of_old_names_is_made_from_the_matrix() -> None:
    assert (DOCS / "dialects.md").read_text() == made_by("dialects").page(), (
        "run `python docs/dialects.py`"
    )


def test_troubleshooting_is_made_from_its_list() -> None:
    made = made_by("troubleshooting").page()
    assert (DOCS / "troubleshooting.md").read_text() == made, "run `python docs/troubleshooting.py`"


def test_each_message_in_troubleshooting_is_in_the_code(site: ModuleType) -> None:
    entries = [entry for group in made_by("troubleshooting").groups() for entry in group["entry"]]
    texts = "\0".join(site.messages.texts())
    assert [entry["see"] for entry in entries if entry["see"] not in texts] == []
    of_errors = [*site.messages.of_errors()]
    for entry in entries:
        classes = {name for name, text in of_errors if entry["see"] in text}
        assert not classes or entry.get("error") in classes, entry["see"]


def test_each_class_of_errors_is_in_troubleshooting(site: ModuleType) -> None:
    entries = [entry for group in made_by("troubleshooting").groups() for entry in group["entry"]]
    assert set(site.messages.CLASSES) - {entry.get("error") for entry in entries} == {"SyrtosError"}


def test_each_variable_of_the_environment_is_in_the_settings() -> None:
    named = re.compile(r"SYRTOS_[A-Z0-9_]*[A-Z0-9]")
    in_code = {
        name for path in (ROOT / "src").rglob("*.py") for name in named.findall(path.read_text())
    }
    assert set(named.findall((DOCS / "reference/settings.md").read_text())) == in_code


def test_the_navigation_is_short_and_names_nothing_twice() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    entries = re.findall(r"^ +- (.+): (\S+\.md)$", text[text.index("\nnav:") :], re.M)
    assert len(entries) <= 25
    assert len({name for name, _ in entries}) == len({page for _, page in entries}) == len(entries)


def test_each_page_is_two_clicks_from_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    near = {DOCS / page for page in re.findall(r": (\S+\.md)$", text, re.M)}
    for _ in range(2):
        near |= {target for page in near for target in linked(page)}
    assert {page for page in PAGES if page.name != "README.md"} - near == set()


def linked(page: Path) -> Iterator[Path]:
    """The pages of the repository that a page links to."""
    for target in LINK.findall(without_fences(page)) if page.suffix == ".md" else ():
        if not re.match(r"[a-z]+:|#", target):
            yield (page.parent / target.partition("#")[0]).resolve()


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 6000
    assert text.count("\n") <= 90
    assert "make demo" in text
    assert "make test" in text


def fences(page: Path) -> Iterator[re.Match[str]]:
    return FENCE.finditer(page.read_text())


def without_fences(page: Path) -> str:
    return FENCE.sub("", page.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_python_compiles(name: str) -> None:
    for fence in fences(ROOT / name):
        if fence["language"] == "python":
            compile(textwrap.dedent(fence["text"]), name, "exec")


RUNNABLE = [
    pytest.param(textwrap.dedent(fence["text"]), id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, fence in enumerate(fences(page))
    if fence["mark"]
]


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("script", RUNNABLE)
def test_runnable_snippets_run(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    env = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def commands(page: Path) -> Iterator[str]:
    """Command lines of the blocks of a page that are no code of a language: those that begin with `syrtos`."""
    for fence in fences(page):
        if fence["language"] in ("", "sh", "bash", "console"):
            lines = re.sub(r"\\\n", " ", fence["text"]).splitlines()
            pieces = (
                piece for line in lines for piece in re.split(r"(?:^| )#.*|;|\||&&|&|\$\(|\)", line)
            )
            for piece in filter(None, pieces):
                words = re.sub(r"^\s*(\$ )?(\w+=\S+ )*", "", piece).strip()
                if (
                    words.startswith("syrtos ")
                    and not words.startswith("syrtos train")
                    and ":" not in words.split()[1]
                ):
                    yield words


def is_parsed(words: list[str]) -> bool:
    try:
        chosen = cli.parser(words[0]).parse_args(words)
        if words[0] == "tune":
            FORMS.get(chosen.form, tune_search.parser)().parse_args(
                chosen.rest if chosen.form in FORMS else words[1:]
            )
    except SystemExit as end:
        return not end.code  # as after `-h`
    return True


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(ROOT / name):
        assert is_parsed(shlex.split(command)[1:]), f"{command}: {capsys.readouterr().err}"


@functools.cache
def options_of(command: str) -> frozenset[str]:
    """The options of a command and of those below it."""
    parsers = [cli.parser(command)]
    if command == "tune":
        parsers += [make() for make in (*FORMS.values(), tune_search.parser)]
    found = set()
    for parser in parsers:
        for action in parser._actions:
            found |= {*action.option_strings}
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return frozenset(found)


@pytest.mark.parametrize("name", NAMES)
def test_commands_in_sentences_exist(name: str) -> None:
    """Such as `syrtos run --compress auto ...`, which leave parts of a command out."""
    for command in INLINE.findall(without_fences(ROOT / name)):
        words = command.split()[1:]
        if words[0].startswith("-"):
            continue
        assert words[0] in command_files.names(), command
        script = next(
            (at for at, word in enumerate(words) if word.endswith((".py", ".yaml"))), len(words)
        )
        given = {word.partition("=")[0] for word in words[1:script] if re.match(r"--?[a-z]", word)}
        assert given <= options_of(words[0]) | {"-h"}, command


@functools.cache
def anchors(page: Path, site: ModuleType) -> set[str]:
    """The addresses of the headings of a page, as GitHub and the site make them."""
    text = FENCE.sub("", site.filled_in(page.read_text()))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str, site: ModuleType) -> None:
    page = ROOT / name
    for link in LINK.findall(without_fences(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target, site), link


def test_pages_that_the_code_and_its_tools_name_exist() -> None:
    named = re.compile(r"\bdocs/[\w./-]+\.(?:md|svg|png|py|json|toml)\b")
    places = [ROOT / "Makefile", ROOT / "mkdocs.yml", *AT_THE_ROOT]
    places += [
        path
        for folder in ("src", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    missing = {
        f"{path.relative_to(ROOT)}: {found}"
        for path in places
        for found in named.findall(re.sub(r"https?://\S+", "", path.read_text()))
        if not (ROOT / found).exists()
    }
    assert not missing


def test_files_that_the_architecture_names_are_there() -> None:
    """By their paths below `src`, the core or one of its rooms; in `keras/*/steps.py` a star is any folder."""
    page = (DOCS / "architecture.md").read_text()
    named = re.findall(r"`([\w*-]+(?:/[\w*-]+)+\.py)`", page)
    core = ROOT / "src" / "syrtos"
    places = (ROOT / "src", core, core / "launch", core / "keras")
    missing = [path for path in named if not any(any(place.glob(path)) for place in places)]
    assert len(named) > 50
    assert not missing
