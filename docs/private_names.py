"""Writes the table of private names in docs/backends.md: ``python docs/private_names.py``; with ``--check`` it compares.

Names that are replaced are found in the patches of each backend, names that are imported in the source.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "backends.md"
SOURCE = Path(__file__).parent.parent / "src"
BEGIN, END = "<!-- private names -->", "<!-- end of private names -->"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}

_PRIVATE = re.compile(r"\bsrc\b|(^|[.:])_(?!_)")
_IMPORTED = ("keras.src", "tf_keras.src", "tensorflow.python", "jax._src", "torch._")


def replaced_here() -> list[tuple[str, str]]:
    """Returns owner and name of each function that is replaced with Keras's backend of this process."""
    from syrtos.keras.patching import Patch

    backend = os.environ["KERAS_BACKEND"]
    rooms = [f"syrtos.keras.{name}" for name in ("features", "files", "split", "trainer", backend)]
    for name in [*rooms, *["syrtos_keras2"] * (backend == "tensorflow")]:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("syrtos.keras.patches")
    found = {(o.owner, o.name) for o in gc.get_objects() if type(o) is Patch}
    return sorted(found)


def imported() -> Iterator[tuple[str, str]]:
    """Yields each private module that the source imports from, and the file that does."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        file = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
                names = [
                    argument.value for argument in node.args if isinstance(argument, ast.Constant)
                ]
            else:
                continue
            yield from ((name, file) for name in names if name.startswith(_IMPORTED))


def section() -> str:
    """Returns the text between the marks."""
    from syrtos.keras.patching import SEEN

    by_name: dict[tuple[str, str], list[str]] = defaultdict(list)
    for backend, title in BACKENDS.items():
        command = [sys.executable, __file__, "--print"]
        env = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
        for owner, name in json.loads(out.splitlines()[-1]):
            by_name[(owner, name)].append(title)
    private = {pair: titles for pair, titles in by_name.items() if is_private(*pair)}
    keras2 = {pair for pair in private if pair[0].startswith("tf_keras")}
    lines = [
        f"Of Keras 3 syrtos replaces {len(private) - len(keras2)} private functions and classes (seen to work with {SEEN['keras']}), of Keras 2, which",
        f"no longer changes, {len(keras2)} ({SEEN['tf_keras']}), and {len(by_name) - len(private)} public ones. Where a version lacks one, the run ends with a sentence that names it.",
        "",
        "| owner | private names that are replaced | with |",
        "|---|---|---|",
    ]
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (owner, name), titles in sorted(private.items()):
        with_all = "all" if len(titles) == len(BACKENDS) else ", ".join(titles)
        owners[(owner, with_all)].append(f"`{name}`")
    for (owner, titles), names in owners.items():
        shown = " or ".join(f"`{place}`" for place in owner.split("|"))
        lines.append(f"| {shown} | {', '.join(names)} | {titles} |")
    lines += [
        "",
        "Private names that are imported (TensorFlow's were seen in 2.18 to 2.21):",
        "",
        "| module | names | file in `src` |",
        "|---|---|---|",
    ]
    names_in: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, file in imported():
        module, _, last = name.rpartition(".")
        names_in[(module, file)].append(f"`{last}`")
    for (module, file), names in sorted(names_in.items()):
        lines.append(f"| `{module}` | {', '.join(names)} | `{file}` |")
    return "\n".join(lines)


def is_private(owner: str, name: str) -> bool:
    """Returns whether a function, or what holds it, is no part of a package's public API."""
    return bool(_PRIVATE.search(owner) or _PRIVATE.search(name))


def main() -> None:
    """Writes the section, or prints what is replaced with one backend."""
    if sys.argv[1:] == ["--print"]:
        print(json.dumps(replaced_here()))
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    page = f"{before}{BEGIN}\n{section()}\n{END}{rest.partition(END)[2]}"
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        sys.exit("docs/backends.md lists other private names: run `python docs/private_names.py`")


if __name__ == "__main__":
    main()
