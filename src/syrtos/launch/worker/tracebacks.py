"""The part of a traceback that a user sees: the lines of the script and the error's text.

The whole traceback is in the worker's log.
"""

from __future__ import annotations

import dis
import errno
import itertools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from types import ModuleType

from syrtos.launch.worker import suggestions
from syrtos.launch.worker.other_backends import NAMES, propose_backend
from syrtos.own_packages import FOLDERS

# Before the script runs: a distribution may have set one for all programs.
_HOOK = sys.excepthook

Frames = list[traceback.FrameSummary]

# What calls the script.
_STARTING = (FOLDERS[0] + f"launch{os.sep}", f"{FOLDERS[0]}worker.py", "<frozen runpy>")
_PACKAGES = tuple(
    os.path.join(folder, name) + os.sep
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    for name in ("keras", "tf_keras", "tensorflow", "jax", "torch", "mpi4py")
)
_REMOVES = re.compile(r"\b(remove|unlink|rmdir|rmtree|rename|replace|move)\(")
_PYTHON = sysconfig.get_path("stdlib") + os.sep
# without a virtual environment, packages are below the standard library's folder
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_LEFT_OUT = (
    "(lines of Keras and its backend, syrtos and Python's standard library are left out; the log"
    " has them)\n"
)


def imported_world() -> ModuleType | None:
    """Returns the module `syrtos.comm.world` if it is imported: its import may have failed."""
    return sys.modules.get("syrtos.comm.world")


def cause_of(error: BaseException) -> BaseException:
    """Returns the original error of an exchange, which TensorFlow wraps into one of its own."""
    world = imported_world()
    is_wrapped = type(error).__module__.startswith("tensorflow")
    return world.original_of(error) if world and is_wrapped else error


def is_raised(interrupt: KeyboardInterrupt) -> bool:
    """Returns whether a line of the script raises an interrupt, rather than a signal or syrtos."""
    last = interrupt.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_filename.startswith(FOLDERS):
        return False
    operation = last.tb_frame.f_code.co_code[last.tb_lasti]
    return dis.opname[operation] == "RAISE_VARARGS"


def call_hook(error: BaseException) -> None:
    """Calls the script's own `sys.excepthook`, if it has one, with an error that ends the script.

    The exit code of a hook that calls `sys.exit` is not used: the run has failed.
    """
    if sys.excepthook is _HOOK:
        return
    shown = error.__traceback__
    while shown is not None and _runs_scripts(traceback.extract_tb(shown, limit=1)[0]):
        shown = shown.tb_next
    try:
        sys.excepthook(type(error), error, shown)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()


def full_text(error: BaseException) -> str:
    """Returns the whole traceback, from the script's first line on."""
    return "".join(
        _format(error, lambda frames: list(itertools.dropwhile(_runs_scripts, frames))).format()
    )


def short_text(error: BaseException) -> str:
    """Returns the traceback without the lines of frameworks, of syrtos and of Python.

    The lines of the script, and those of other libraries, are left.
    """
    text = "".join(_format(error, _of_script).format())
    # the last line is the error: jobs report it
    return _LEFT_OUT + text if text != full_text(error) else text


def advice(error: BaseException, size: int) -> str:
    """Returns advice on an error of several workers that run one script, or of an absent backend.

    The text is empty for other errors.
    """
    if isinstance(error, ModuleNotFoundError) and error.name in NAMES and _is_keras_import(error):
        proposal = propose_backend(error.name, "syrtos run ...")
        return (
            f"Keras's backend is {NAMES[error.name]}, which is not installed. {proposal}."
            if proposal
            else ""
        )
    if isinstance(error, ImportError | AttributeError) and (text := _hidden_package(error)):
        return text
    if size < 2:
        return ""
    text = _text_of(error)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"All {size} workers run this script, and another may have opened that port before:"
            " start servers where `syrtos.rank() == 0`."
        )
    if type(error).__module__.startswith("torch.distributed") or "EADDRINUSE" in text:
        return (
            f"All {size} workers run this script, and it starts a distributed training of its own"
            " (`torch.distributed`). Run it with `python`, or take that out of it: `syrtos run`"
            " trains plain `model.fit` on all workers."
        )
    if "must equal the product of mesh_shape" in text:
        return (
            f"`jax.devices()` are the devices of all {size} workers, and `jax.local_devices()`"
            " those of one: give a mesh the shape `(len(jax.devices()),)`."
        )
    if re.search(r"(not fully |non-)addressable", text) and "jax" in sys.modules:
        return (
            f"`jax.devices()` are the devices of all {size} workers: put arrays that are not for"
            " `fit`, `evaluate` or `predict` on `jax.local_devices()`, those of one worker."
        )
    if "Unsupported primitive type for reduction" in text:
        return "XLA exchanges no float16 by MPI: add `--exchange framework`, by which gloo does."
    if "ordered effects are not supported" in text:
        return f"JAX can't order calls on the devices of {size} workers: leave out `ordered=True`."
    # `jax.pmap`, whose frames JAX leaves out.
    if "select an axis to squeeze out" in text and "jax" in sys.modules:
        return (
            f"`jax.device_count()` counts the devices of all {size} workers, and `jax.pmap` takes a"
            " row for each device of this one: use `jax.local_device_count()`."
        )
    if isinstance(error, FileExistsError):
        return (
            f"All {size} workers run this script, and another has made {error.filename!r} before:"
            " give `exist_ok=True`, or write `if syrtos.rank() == 0:` around it."
        )
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, FileNotFoundError) and any(_REMOVES.search(line) for line in lines):
        return (
            f"All {size} workers run this script, and another may have removed or renamed"
            f" {error.filename!r} before: write `if syrtos.rank() == 0:` around it."
        )
    return ""


def _hidden_package(error: ImportError | AttributeError) -> str:
    """Returns the sentence about a file that stands in the place of a package; empty without one.

    It is about imports that a package makes, and not about those of the script.
    """
    owner = error.obj if isinstance(error, AttributeError) else None
    name = (error.name if owner is None else getattr(owner, "__name__", "")) or ""
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    frames = traceback.extract_tb(error.__traceback__)
    if not (file and is_of_script(file) and frames) or is_of_script(frames[-1].filename):
        return ""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if PathFinder.find_spec(package, installed) is None:
        return ""
    return f"{package} was imported from {file}, and not from the package that is installed. Rename that file."


# Errors of reading a file that another process has not written to its end.
_TORN = {"EOFError", "UnpicklingError", "BadZipFile", "JSONDecodeError"}


def advice_if_alone(error: BaseException, size: int) -> str:
    """Returns advice on an error that the other workers, which run the same script, have not had.

    The text is empty for other errors.
    """
    text = _text_of(error)
    is_torn = type(error).__name__ in _TORN or (isinstance(error, OSError) and "truncated" in text)
    is_absent = isinstance(error, FileNotFoundError)
    frames = traceback.extract_tb(error.__traceback__)
    starts_program = any(frame.filename.endswith("subprocess.py") for frame in frames)
    # The standard input of workers is empty.
    if size < 2 or not (is_torn or is_absent) or "reading a line" in text or starts_program:
        return ""
    named = error.filename if isinstance(error, FileNotFoundError) else None
    file = "the file" if named is None else repr(named)
    when = "before it was there" if is_absent else "before it was complete"
    return (
        f"All {size} workers run this script: if another of them writes {file}, this one has read"
        f" it {when}. Let rank 0 alone write it (`if syrtos.rank() == 0:`), and call"
        " `syrtos.barrier()` on all workers before they read it."
    )


def _text_of(error: BaseException) -> str:
    """Returns an error's message; empty where the script's own class fails to give it."""
    try:
        return str(error)
    except Exception:
        return ""


def _is_keras_import(error: BaseException) -> bool:
    """Returns whether Keras itself imported what is missing, not the script."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(f"{os.sep}keras{os.sep}src{os.sep}" in file for file in files)


def _format(error: BaseException, kept: Callable[[Frames], Frames]) -> traceback.TracebackException:
    """Returns an exception ready to be printed, with the frames that ``kept`` selects.

    Each exception of the chain keeps all of its frames if none would be left.
    """
    found = traceback.TracebackException.from_exception(error)
    if sys.version_info < (3, 12):
        suggestions.add_suggestions(found, error)
    for part in _chain(found):
        # the script has no lines yet: the error names its own
        everything = [] if part.exc_type is SyntaxError else list(part.stack)
        part.stack = traceback.StackSummary.from_list(kept(list(part.stack)) or everything)
    return found


def _chain(found: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yields an exception, and those that it came from."""
    if found is not None:
        yield found
        yield from _chain(found.__cause__)
        yield from _chain(found.__context__)


def _runs_scripts(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_STARTING)


def _of_script(frames: Frames) -> Frames:
    outside = [frame for frame in frames if not _is_inside(frame)]
    return [frame for frame in outside if not _is_pythons(frame.filename)] or outside


def is_of_script(file: str) -> bool:
    """Returns whether a file is the script's own code, not an installed package's or Python's."""
    return not (
        file.startswith((*FOLDERS, "<frozen ")) or _INSTALLED.search(file) or _is_pythons(file)
    )


def _is_pythons(file: str) -> bool:
    return file.startswith(_PYTHON) and not _INSTALLED.search(file)


def _is_inside(frame: traceback.FrameSummary) -> bool:
    file = frame.filename
    return (
        file.startswith((*FOLDERS, *_PACKAGES, "<frozen ")) or "__autograph_generated_file" in file
    )
