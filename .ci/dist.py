"""Builds the sdist and, from it, the wheel, and checks both: ``dist.py [FOLDER]`` (dist).

The wheel has each file of the packages and no other; a tag vX.Y.Z of the commit is that of the package's version.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
# Files of the package that stay in the checkout: notes for who works on it, and what Python has compiled.
_LEFT_OUT = (".md", ".pyc")


def files_of(package: Path) -> set[str]:
    """Returns the files that a wheel of the package has, by their paths in it."""
    paths = (path for path in package.rglob("*") if path.is_file() and path.suffix not in _LEFT_OUT)
    return {path.relative_to(package.parent).as_posix() for path in paths}


def content_faults(names: Iterable[str], expected: Collection[str]) -> Iterator[str]:
    """Yields a sentence for each file that a wheel lacks, or has beside those of the package."""
    own = {name for name in names if ".dist-info/" not in name}
    for name in sorted(set(expected) - own):
        yield f"The wheel lacks {name}: name it in [tool.setuptools.package-data] of pyproject.toml."
    for name in sorted(own - set(expected)):
        yield f"The wheel has {name}, which is no file of src."


def tag_faults(tags: Iterable[str], version: Version) -> Iterator[str]:
    """Yields a sentence for each tag of a release that is not that of the version."""
    for tag in tags:
        if re.fullmatch(r"v\d+\.\d+\.\d+\S*", tag) and tag != f"v{version}":
            yield f"This commit has the tag {tag}, and src/syrtos/_version.py the version {version}: change one of them."


def build(folder: Path) -> Path:
    """Builds both files into the folder, in the place of earlier ones, and returns the wheel's path."""
    for old in (*folder.glob("syrtos-*.whl"), *folder.glob("syrtos-*.tar.gz")):
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *folder.glob("syrtos-*")], check=True
    )
    return next(folder.glob("syrtos-*.whl"))


def main(folder: Path) -> int:
    """Builds and checks; the exit code is 1 where anything is wrong."""
    wheel = build(folder)
    with zipfile.ZipFile(wheel) as opened:
        packages = [path.parent for path in (ROOT / "src").glob("syrtos*/__init__.py")]
        expected = set().union(*map(files_of, packages))
        faults = [*content_faults(opened.namelist(), expected)]
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    faults += tag_faults(tags.stdout.split(), parse_wheel_filename(wheel.name)[1])
    print(*(faults or [f"{wheel} and its sdist are ready."]), sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()))
