"""What the site has beside the pages of docs/: files of the repository that pages link to, and parts that are made from the code.

MkDocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from parts import filled_in

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Files at the root of the repository that are pages of the site.
_ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]*(?:\[[^\]]*\][^\]]*)*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=\"?(?:canonical|prev|next|edit)))\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>"
)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of files outside of docs/: those of the root, and all that a page links to."""
    wanted = [DOCS / file.src_uri for file in files.documentation_pages()] + [
        ROOT / name for name in _ROOT_PAGES
    ]
    seen = set(wanted)
    while wanted:
        path = wanted.pop()
        for target in _targets(path) if path.suffix == ".md" else ():
            if target not in seen and target.is_file() and not target.is_relative_to(DOCS):
                seen.add(target)
                wanted.append(target)
    for path in sorted(seen):
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, _uri(path), content=_as_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in the parts that are made from the code, and points links at the pages of the site."""
    if page.file.generated_by:
        return markdown
    return _relinked(filled_in(markdown), DOCS / page.file.src_uri, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Writes the colon before a block of code as Markdown has it: docstrings have two."""
    return html.replace("::</p>", ":</p>")


def on_post_build(config: Any) -> None:
    """Refuses a site whose pages load something from another host."""
    for path in Path(config.site_dir).rglob("*.html"):
        if found := _FROM_ELSEWHERE.search(path.read_text()):
            raise PluginError(f"{path} loads from another host: {found[0]}")


def _targets(path: Path) -> Iterator[Path]:
    for found in _LINK.finditer(_FENCE.sub("", path.read_text())):
        if not re.match(r"[a-z]+:|#", found[2]):
            yield (path.parent / found[2].partition("#")[0]).resolve()


def _uri(path: Path) -> str:
    """Returns the place of a file of the repository in the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return _ROOT_PAGES.get(name, f"source/{name.removesuffix('.md')}.md")


def _as_page(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return _relinked(path.read_text(), path, _uri(path))
    head = f"---\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n"
    if path.suffix == ".ipynb":
        return head + "\n\n".join(_cell(cell) for cell in json.loads(path.read_text())["cells"])
    return f"{head}~~~~{path.suffix[1:]}\n{path.read_text()}\n~~~~\n"


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"~~~~python\n{text}\n~~~~"


def _relinked(markdown: str, source: Path, uri: str) -> str:
    """Returns the text of ``source`` with its links as they are for the page at ``uri``."""

    def replaced(found: re.Match[str]) -> str:
        label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, mark, anchor = target.partition("#")
        absolute = (source.parent / path).resolve()
        if absolute.is_dir():
            return label
        return f"[{label}]({posixpath.relpath(_uri(absolute), posixpath.dirname(uri) or '.')}{mark}{anchor})"

    pieces, end = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_LINK.sub(replaced, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, _LINK.sub(replaced, markdown[end:])])
