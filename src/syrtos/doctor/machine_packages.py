"""Checks of the installed Python, Keras, backends and MPI against what syrtos supports.

No framework is imported.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from syrtos.doctor import machine_facts
from syrtos.doctor.machine_check import Check, ok, warning, wrong
from syrtos.topology import BACKENDS

# What each backend is installed as, of which one will do.
_BACKENDS = {"tensorflow": machine_facts.TENSORFLOWS, "jax": ("jax",), "torch": ("torch",)}
_EXTRAS = ("", "tensorflow", "jax", "torch", "legacy")
_TRUE = ("1", "true", "True")


def checks(env: Mapping[str, str]) -> Iterator[Check]:
    """Yields the checks of everything that is installed."""
    yield ok(
        "python",
        f"Python {platform.python_version()} at {sys.executable}, syrtos"
        f" {machine_facts.version('syrtos')}",
    )
    yield from _check_versions(importlib.metadata.requires("syrtos") or [])
    yield backend(env, {name: _first_version(names) for name, names in _BACKENDS.items()})
    yield from legacy(
        env, _first_version(machine_facts.TENSORFLOWS), machine_facts.version("tf_keras")
    )
    yield from conflicts(machine_facts.version)


def _check_versions(required: list[str]) -> Iterator[Check]:
    """Yields a failure per missing or unsupported package; else one check with all versions."""
    wants = [want for want in map(Requirement, required) if _is_wanted(want)]
    found = {want.name: machine_facts.version(want.name) for want in wants}
    bad = [
        want
        for want in wants
        if found[want.name] != "-" and not want.specifier.contains(found[want.name], True)
    ]
    bad += [want for want in wants if found[want.name] == "-" and not want.marker]
    for want in bad:
        yield wrong(
            want.name,
            (
                f"{want.name} {found[want.name]} is installed, and syrtos needs {want.specifier}"
                if found[want.name] != "-"
                else f"{want.name} is not installed"
            ),
            f"`pip install '{want.name}{want.specifier}'`.",
        )
    if not bad:
        told = [
            f"{name} {version}"
            for name, version in machine_facts.versions().items()
            if version != "-"
        ]
        yield ok("packages", ", ".join(told))


def _is_wanted(want: Requirement) -> bool:
    return any(want.marker is None or want.marker.evaluate({"extra": extra}) for extra in _EXTRAS)


def _first_version(names: tuple[str, ...]) -> str:
    """Returns the version of the first of these packages that is installed; ``"-"`` if none is."""
    return next((found for name in names if (found := machine_facts.version(name)) != "-"), "-")


def backend(env: Mapping[str, str], installed: Mapping[str, str]) -> Check:
    """Checks that the backend that Keras will choose is supported and installed.

    Args:
        env: the environment.
        installed: the version of each backend, ``"-"`` for those that are not installed.
    """
    name, by = chosen_backend(env)
    there = [each for each in BACKENDS if installed[each] != "-"]
    if name not in BACKENDS:
        return wrong(
            "backend",
            f"{by} chooses {name}, which can't exchange gradients",
            f"Set KERAS_BACKEND to one of {', '.join(there or BACKENDS)}.",
        )
    if installed[name] == "-":
        choice = f", or set KERAS_BACKEND to {there[0]}" if there else ""
        return wrong(
            "backend",
            f"{by} chooses {name}, which is not installed",
            f"`pip install {name}`{choice}.",
        )
    return ok("backend", f"{name} {installed[name]}, chosen by {by}")


def chosen_backend(env: Mapping[str, str]) -> tuple[str, str]:
    """Returns the backend that Keras will choose, and the name of the setting that chooses it."""
    if env.get("KERAS_BACKEND"):
        return env["KERAS_BACKEND"], "KERAS_BACKEND"
    file = Path(
        env.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras"), "keras.json"
    )
    with contextlib.suppress(OSError, ValueError, KeyError):
        return json.loads(file.read_text())["backend"], str(file)
    return "tensorflow", "default"


def legacy(env: Mapping[str, str], tensorflow: str, keras2: str) -> Iterator[Check]:
    """Yields problems of Keras 2, which needs the TensorFlow of the same release.

    Args:
        env: the environment.
        tensorflow: version of TensorFlow, ``"-"`` without it.
        keras2: version of tf_keras, ``"-"`` without it.
    """
    asked = env.get("TF_USE_LEGACY_KERAS", "") in _TRUE
    if keras2 == "-" and asked:
        yield wrong(
            "tf_keras",
            "TF_USE_LEGACY_KERAS is set, and tf_keras is not installed",
            "`pip install tf_keras`, or unset it.",
        )
    if keras2 != "-" and tensorflow != "-" and _minor(keras2) != _minor(tensorflow):
        found = (
            f"tf_keras {keras2} is installed with TensorFlow {tensorflow}: they are made for each"
            " other in equal releases"
        )
        fix = f"`pip install 'tf_keras=={_minor(tensorflow)}.*'`."
        yield (wrong if asked else warning)("tf_keras", found, fix)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def conflicts(version: machine_facts.Versions) -> Iterator[Check]:
    """Yields warnings about packages that don't go together."""
    tensorflows = [name for name in machine_facts.TENSORFLOWS if version(name) != "-"]
    if len(tensorflows) > 1:
        yield warning(
            "packages",
            f"{' and '.join(tensorflows)} are both installed, and have overwritten each other's"
            " files",
            f"`pip uninstall -y {' '.join(tensorflows)}`, then install the one that you want.",
        )
    if version("horovod") != "-":
        yield warning(
            "packages",
            f"horovod {version('horovod')} is installed: under `syrtos run` syrtos itself answers"
            " `import horovod`, under `horovodrun` it takes no part",
            "`pip uninstall horovod`, if no other program needs it; start scripts by `syrtos run`.",
        )
