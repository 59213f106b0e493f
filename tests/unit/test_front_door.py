"""`import syrtos`: small, typed, lazy."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import syrtos
from syrtos import api

FRAMEWORKS = ["tensorflow", "keras", "tf_keras", "jax", "torch", "mpi4py", "numpy"]


def loaded_after(statement: str) -> set[str]:
    """The top-level modules of a fresh process that ran ``statement``."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(list(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    return {name.split(".")[0] for name in json.loads(output.splitlines()[-1])}


def type_checked_names() -> list[str]:
    """What type checkers see as imported in the front door."""
    tree = ast.parse(Path(syrtos.__file__).read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in guarded for node in block.body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).startswith("syrtos")]
    return [alias.name for node in ours for alias in node.names]


def test_frameworks_for_gpus_fulfil_the_extras() -> None:
    """`tensorflow[and-cuda]` is the package `tensorflow`, `jax[cuda12]` is `jax`: what is installed already is kept."""
    wanted = [line.split(";") for line in metadata.requires("syrtos") or [] if "extra ==" in line]
    packages = {extra.split('"')[1]: Requirement(name).name for name, extra in wanted}
    assert {packages[name] for name in ("tensorflow", "jax", "torch")} == {
        "tensorflow",
        "jax",
        "torch",
    }


def test_importing_loads_no_framework() -> None:
    assert loaded_after("import syrtos").isdisjoint(FRAMEWORKS)


def test_the_exceptions_load_no_framework() -> None:
    assert loaded_after("import syrtos; syrtos.SyrtosError").isdisjoint(FRAMEWORKS)


def test_a_world_of_one_loads_neither_mpi_nor_a_framework() -> None:
    loaded = loaded_after("import syrtos; syrtos.init(); assert syrtos.size() == 1")
    assert loaded.isdisjoint({"tensorflow", "keras", "tf_keras", "jax", "torch", "mpi4py"})


def test_the_command_line_loads_no_framework() -> None:
    assert loaded_after("import syrtos.cli").isdisjoint(
        {"tensorflow", "keras", "tf_keras", "mpi4py"}
    )


def test_no_command_but_one_loads_what_makes_completions() -> None:
    assert "shtab" not in loaded_after("import syrtos.cli; syrtos.cli.parser()")


def test_all_is_sorted() -> None:
    assert syrtos.__all__ == sorted(set(syrtos.__all__))


def test_all_is_what_type_checkers_see() -> None:
    assert sorted(type_checked_names()) == syrtos.__all__


def test_all_has_every_public_function_of_the_api() -> None:
    functions = {
        name
        for name, value in inspect.getmembers(api, inspect.isfunction)
        if value.__module__ == api.__name__
    }
    public = {name for name in functions if not name.startswith("_")} - {
        "comm_of",
        "unconverted",
    }  # of our own rooms
    assert public <= set(syrtos.__all__)


@pytest.mark.parametrize("name", syrtos.__all__)
def test_every_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(syrtos, name)
    assert value.__name__ == name
    assert value.__doc__


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'allreduse'"):
        getattr(syrtos, "allreduse")  # noqa: B009
    assert not hasattr(syrtos, "importlib_metadata")


def test_dir_shows_the_public_names() -> None:
    assert set(dir(syrtos)) == {*syrtos.__all__, "__version__"}


def test_the_module_for_ray_is_found_in_each_way() -> None:
    for statement in ("import syrtos.ray", "from syrtos import ray", "from syrtos.ray import run"):
        code = f"{statement}\nimport syrtos\nprint(syrtos.ray.run.__module__)"
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert found.stdout == "syrtos_clusters.ray.calls\n"
