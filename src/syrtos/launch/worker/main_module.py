"""Runs a program as `python` does: as ``__main__``, with its ``sys.argv`` and ``sys.path[0]``."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader

from syrtos.launch.program import Program


def run(program: Program) -> None:
    """Runs a program to its end; its exceptions pass through, `SystemExit` too."""
    sys.argv = [program.name, *program.arguments]
    find_modules_of(program)
    if program.is_module:
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    else:
        _run_file(os.path.abspath(program.name))


def find_modules_of(program: Program) -> None:
    """Makes the program's own modules importable by ``sys.path[0]``.

    They stand beside its file, or in the working directory if the program is a module.
    """
    if not sys.flags.safe_path:
        sys.path[0] = (
            os.getcwd() if program.is_module else os.path.dirname(os.path.realpath(program.name))
        )


def _run_file(path: str) -> None:
    """Runs a file as ``__main__``."""
    # Not by runpy, which changes ``sys.argv[0]`` to the absolute path, and takes ``__main__`` away
    # at the end.
    module = types.ModuleType("__main__")
    facts = {
        "__file__": path,
        "__cached__": None,
        "__builtins__": __builtins__,
        "__package__": None,
    }
    vars(module).update(facts, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))
