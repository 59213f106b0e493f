"""Rules about files that the script itself writes.

One worker writes what Keras and TensorFlow write; every worker writes the rest.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram, depends_on, on_one_rank
from syrtos.doctor.script import Script, argument, method

RULE = "file-on-every-rank"
_GUARD = (
    "`import syrtos`, `syrtos.init()`, and write it `if syrtos.rank() == 0:` (which holds in plain"
    " Python too)"
)
_BEFORE = f"prepare data before the run, or {_GUARD}, followed by `syrtos.barrier()`"
_TO_THE_SAME_PLACE = "this to the same place, and may read what another is still writing"
# Functions that write what their argument names, by the position of that argument.
_WRITE = {
    "numpy.save": 0, "numpy.savez": 0, "numpy.savez_compressed": 0, "numpy.savetxt": 0, "joblib.dump": 1, "cv2.imwrite": 0, "imageio.imwrite": 0,
    "imageio.imsave": 0,
    "imageio.mimsave": 0, "imageio.get_writer": 0, "imageio.v2.imwrite": 0, "imageio.v2.mimsave": 0, "matplotlib.pyplot.imsave": 0,
    "scipy.io.savemat": 0, "scipy.misc.imsave": 0, "skimage.io.imsave": 0,
    "scipy.io.wavfile.write": 0, "soundfile.write": 0, "urllib.request.urlretrieve": 1, "torch.save": 1, "h5py.File": 0,
    "tensorflow.io.TFRecordWriter": 0, "tensorflow.io.write_file": 0,
    "tensorflow.python_io.TFRecordWriter": 0, "tensorflow.compat.v1.python_io.TFRecordWriter": 0,
    "logging.FileHandler": 0, "wget.download": 0,
    "gdown.download": 1,
}  # fmt: skip
# Methods by whose names alone it is clear that they write, whatever they are called on.
_METHODS = frozenset(
    {
        "savefig",
        "to_csv",
        "to_parquet",
        "to_pickle",
        "to_excel",
        "to_hdf",
        "to_feather",
        "write_text",
        "write_bytes",
        "urlretrieve",
        "write_html",
        "write_image",
    }
)
# What a second worker finds done already, and fails.
_ONCE = {
    "os.remove": "removes", "os.unlink": "removes", "os.rmdir": "removes", "os.rename": "renames", "os.removedirs": "removes", "shutil.move": "moves",
    "shutil.rmtree": "removes", "tensorflow.io.gfile.rename": "renames", "tensorflow.io.gfile.remove": "removes", "tensorflow.io.gfile.rmtree": "removes",
}  # fmt: skip
_COPY = frozenset(
    {"shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.make_archive"}
)
_UNPACK = frozenset({"extractall", "unpack_archive"})
_SHELLS = frozenset(
    {
        "os.system",
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.Popen",
        "subprocess.check_output",
    }
)
_CHANGES = re.compile(
    r"\b(tar|unzip|wget|curl|rm|mv|cp|mkdir|git clone|aws s3|gsutil|pip install)\b"
)
_FOLDER = frozenset({"os.makedirs", "os.mkdir"})
# Functions that open a file like Python's own `open`, with a mode as their second argument.
_OPEN = frozenset(
    {
        "io.open",
        "codecs.open",
        "gzip.open",
        "bz2.open",
        "lzma.open",
        "tarfile.open",
        "zipfile.ZipFile",
        "tensorflow.io.gfile.GFile",
    }
)
_MODE = re.compile("[rwaxbtU+]+")


def files(program: ScriptProgram) -> Iterator[Finding]:
    """Finds files and folders that every worker would write, remove or unpack."""
    for script, call in program.calls():
        if (
            not on_one_rank(script, call)
            and not _has_own_path(script, call)
            and (found := _check_write(program, script, call))
        ):
            yield dataclasses.replace(found, fix=f"{_compute_first(call)}{found.fix}")


def own_writes(program: ScriptProgram) -> Iterator[tuple[Script, ast.Call]]:
    """Yields the calls by which the script itself writes, moves or removes files, on any worker.

    Calls of Keras are left out, and files in temporary folders.
    """
    for script, call in program.calls():
        if not _is_in_temporary_folder(script, call) and (
            _check_write(program, script, call) or script.meaning(call.func) in _ONCE
        ):
            yield script, call


def _check_write(program: ScriptProgram, script: Script, call: ast.Call) -> Finding | None:
    path, name = script.meaning(call.func), method(call)
    if path in _OPEN or (name == "open" and _is_builtin(script, call)):
        return _check_open(script, call, argument(call, "mode", 1))
    if name == "open" and isinstance(call.func, ast.Attribute) and not path:
        # the method of a `Path`
        return _check_open(script, call, argument(call, "mode", 0))
    if path in _ONCE and not _ignores_errors(script, call):
        says = f"every worker {_ONCE[path]} this, and all but the first find it done and fail"
        return at(script, call, RULE, Severity.BREAKS, says, f"do it on one worker: {_GUARD}")
    if path in _FOLDER and program.rank_aware and not _may_exist(script, call, path):
        says = "every worker makes this folder, and all but the first fail"
        advice = "add `exist_ok=True` (`os.makedirs(path, exist_ok=True)`)"
        return at(script, call, RULE, Severity.BREAKS, says, advice)
    if _writes_a_file(script, call, path, name):
        says, advice = "every worker writes this file, at the same time", _GUARD
    elif path in _COPY or (name in _UNPACK and not path.startswith("keras")):
        says, advice = f"every worker unpacks or copies {_TO_THE_SAME_PLACE}", _BEFORE
    elif path in _SHELLS and call.args and _CHANGES.search(ast.unparse(call.args[0])):
        says, advice = "every worker runs this command, which changes files", _BEFORE
    else:
        return None
    return at(script, call, RULE, Severity.WRONG, says, advice)


def _writes_a_file(script: Script, call: ast.Call, path: str, name: str) -> bool:
    """Returns whether a call, by its function or by its method's name, writes a file."""
    if path == "h5py.File":
        mode = script.constant(argument(call, "mode", 1)) or "r"
        return str(mode).startswith(("w", "a"))
    if name == "save" and isinstance(call.func, ast.Attribute):
        return path in _WRITE or _is_picture(script, call.func.value)
    if path in _WRITE or (path == "logging.basicConfig" and argument(call, "filename")):
        return True
    # `to_csv()` without a path returns text, and writes nothing.
    return name in _METHODS and bool(call.args or call.keywords)


def _is_picture(script: Script, node: ast.expr) -> bool:
    values = script.assigned_values.get(node.id, []) if isinstance(node, ast.Name) else [node]
    return any(
        isinstance(each, ast.Call)
        and (
            script.meaning(each.func).startswith(("PIL.", "matplotlib.animation"))
            or method(each) in ("fromarray", "array_to_img")
        )
        for each in values
    )


def _compute_first(call: ast.Call) -> str:
    """Returns the words that begin a fix if all workers compute the written value together.

    The text is empty for other values.
    """
    shared = [
        method(inner)
        for inner in ast.walk(call)
        if isinstance(inner, ast.Call) and method(inner) in ("predict", "evaluate", "fit")
    ]
    return f"call `{shared[0]}` on all workers first, and with its result: " if shared else ""


def _is_builtin(script: Script, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id not in script.imported_paths


def _check_open(script: Script, call: ast.Call, given: ast.expr | None) -> Finding | None:
    # Of an archive the compression follows: "w:gz".
    mode = str(script.constant(given)).partition(":")[0]
    if not _MODE.fullmatch(mode) or not set(mode) & set("wax+"):
        return None
    if "a" in mode:
        return at(
            script,
            call,
            RULE,
            Severity.WRONG,
            "every worker appends to this file: each line will be in it once for every worker",
            _GUARD,
        )
    if "x" in mode:
        return at(
            script,
            call,
            RULE,
            Severity.BREAKS,
            "every worker makes this file, and all but the first fail",
            _GUARD,
        )
    return at(
        script,
        call,
        RULE,
        Severity.WRONG,
        "every worker writes this file, at the same time",
        _GUARD,
    )


def _has_own_path(script: Script, call: ast.Call) -> bool:
    """Returns whether each worker has a path of its own.

    Such a path contains the rank or the number of the process, or is in a temporary folder or in
    memory.
    """
    return _is_in_temporary_folder(script, call) or any(
        depends_on(script, value, "rank", "local_rank", "getpid") for value in _values(call)
    )


def _is_in_temporary_folder(script: Script, call: ast.Call) -> bool:
    return any(_is_temporary(script, value, frozenset()) for value in _values(call))


def _values(call: ast.Call) -> Iterator[ast.expr]:
    """Yields the arguments of a call, and what a method is called on."""
    yield from call.args
    yield from (keyword.value for keyword in call.keywords)
    if isinstance(call.func, ast.Attribute):
        yield call.func.value


def _is_temporary(script: Script, node: ast.AST, seen: frozenset[str]) -> bool:
    for inner in ast.walk(node):
        if script.meaning(inner).startswith(("tempfile.", "io.BytesIO", "io.StringIO")):
            return True
        if isinstance(inner, ast.Name) and inner.id not in seen:
            values = (
                []
                if inner.id in script.imported_paths
                else script.assigned_values.get(inner.id, [])
            )
            if any(_is_temporary(script, value, seen | {inner.id}) for value in values):
                return True
    return False


def _ignores_errors(script: Script, call: ast.Call) -> bool:
    ignored = script.constant(argument(call, "ignore_errors", 1))
    return ignored is True or any(
        isinstance(outer, ast.Try) and outer.handlers for outer in script.around(call)
    )


def _may_exist(script: Script, call: ast.Call, path: str) -> bool:
    return _ignores_errors(script, call) or (
        path == "os.makedirs" and script.constant(argument(call, "exist_ok", 2)) is True
    )
