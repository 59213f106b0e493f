"""What a user sees of an exception."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos.launch.worker import tracebacks


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def in_keras() -> None:
    import keras

    keras.config.disable_traceback_filtering()
    try:
        keras.Sequential([keras.layers.Dense(2)])(object())
    finally:
        keras.config.enable_traceback_filtering()


def in_syrtos() -> None:
    from syrtos.launch.spec import parse_hosts

    parse_hosts("")


@pytest.mark.parametrize("call", [in_keras, in_syrtos])
def test_the_last_line_shown_is_the_scripts_own(call: Callable[[], None]) -> None:
    error = caught(call)
    shown = tracebacks.short_text(error)
    files = [line.split('"')[1] for line in shown.splitlines() if line.startswith('  File "')]
    assert set(files) == {__file__}
    assert f"{type(error).__name__}: " in shown
    assert str(error).splitlines()[0] in shown
    assert shown.startswith("(lines of Keras")
    assert len(tracebacks.full_text(error)) > len(shown)


def test_errors_that_it_came_from_are_shortened_alike() -> None:
    def fails() -> None:
        try:
            in_syrtos()
        except ConfigurationError as error:
            raise ValueError("no hosts") from error

    shown = tracebacks.short_text(caught(fails))
    assert (
        shown.index("ConfigurationError")
        < shown.index("direct cause")
        < shown.index("ValueError: no hosts")
    )
    assert "spec.py" not in shown


def test_other_libraries_are_shown() -> None:
    shown = tracebacks.short_text(caught(lambda: __import__("numpy").stack([])))
    assert "shape_base.py" in shown
    assert "left out" not in shown


def test_lines_of_the_standard_library_are_shown_where_no_others_are() -> None:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        yield

    def fails() -> None:
        with context():
            json.loads("{")

    shown = tracebacks.short_text(caught(fails))
    assert 'json.loads("{")' in shown
    assert "contextlib.py" not in shown
    assert "decoder.py" not in shown
    assert shown.startswith("(lines of Keras")
    error = caught(fails)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next
    assert "decoder.py" in tracebacks.short_text(error)


@pytest.mark.parametrize(
    "make",
    [lambda path: os.mkdir(path), lambda path: os.makedirs(path), lambda path: Path(path).mkdir()],
)
def test_a_folder_that_another_worker_made(tmp_path: Path, make: Callable[[str], None]) -> None:
    error = caught(lambda: make(str(tmp_path)))
    advice = tracebacks.advice(error, 2)
    assert "exist_ok=True" in advice
    assert "if syrtos.rank() == 0:" in advice
    assert repr(str(tmp_path)) in advice
    assert tracebacks.advice(error, 1) == ""


def test_a_file_that_another_worker_removed(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert "removed or renamed" in tracebacks.advice(caught(lambda: shutil.rmtree(gone)), 2)
    assert tracebacks.advice(caught(lambda: Path(gone).read_text()), 2) == ""


def test_the_frames_of_what_runs_a_script_are_in_neither(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def f():\n    raise ValueError('x')\nf()\n")
    code = (
        "from syrtos.launch import program\nfrom syrtos.launch.worker import main_module, tracebacks\n"
        f"try:\n    main_module.run(program.Program({str(script)!r}))\n"
        "except ValueError as error:\n    print(tracebacks.full_text(error.with_traceback(error.__traceback__.tb_next)), end='')"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    plain = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    ).stderr
    assert printed == plain


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Number of devices 2 must equal the product of mesh_shape (1,)", "(len(jax.devices()),)"),
        ("Cannot reshard an input that is not fully addressable", "`jax.local_devices()`"),
        ("Fetching value for array that spans non-addressable devices", "`jax.local_devices()`"),
        ("cannot select an axis to squeeze out which has", "`jax.local_device_count()`"),
        ("ordered effects are not supported for more than 1 device", "`ordered=True`"),
    ],
)
def test_errors_of_jax_on_several_workers_are_explained(
    monkeypatch: pytest.MonkeyPatch, message: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "jax", sys)
    assert said in tracebacks.advice(ValueError(message), 2)
    assert tracebacks.advice(ValueError(message), 1) == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            FileNotFoundError(2, "No such file", "made.txt"),
            "'made.txt', this one has read it before",
        ),
        (FileNotFoundError("no checkpoint"), "if another of them writes the file"),
        (EOFError("Ran out of input"), "before it was complete"),
        (EOFError("EOF when reading a line"), ""),
        (OSError("Unable to open file (truncated file: eof = 96)"), "before it was complete"),
        (ValueError("no such name"), ""),
    ],
)
def test_files_that_another_worker_may_be_writing_are_explained(
    error: Exception, said: str
) -> None:
    found = tracebacks.advice_if_alone(error, 2)
    assert said in found
    assert bool(found) == bool(said)
    assert tracebacks.advice_if_alone(error, 1) == ""


class Layers:
    Dense = 1


def misspell_an_attribute() -> None:
    Layers().Densse  # type: ignore[attr-defined]  # noqa: B018


def misspell_an_import() -> None:
    from json import dumpss  # type: ignore[attr-defined]  # noqa: F401


def misspell_a_variable() -> None:
    layer_count = 1
    print(layer_cuont)  # type: ignore[name-defined]  # noqa: F821
    print(layer_count)


def misspell_in_a_handler() -> None:
    try:
        misspell_an_attribute()
    except AttributeError as error:
        raise ValueError("no layer") from error


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (misspell_an_attribute, "Dense"),
        (misspell_an_import, "dumps"),
        (misspell_a_variable, "layer_count"),
        (misspell_in_a_handler, "Dense"),
    ],
)
def test_a_misspelt_name_is_shown_with_the_one_that_was_meant(
    call: Callable[[], None], meant: str
) -> None:
    error = caught(call)
    for text in (tracebacks.short_text(error), tracebacks.full_text(error)):
        (line,) = [line for line in text.splitlines() if "Did you mean" in line]
        assert line.endswith(f". Did you mean: '{meant}'?")


def test_no_name_is_suggested_where_none_is_like_it_or_the_object_fails() -> None:
    class Fails:
        def __dir__(self) -> list[str]:
            raise RuntimeError

    for thing in (Layers(), Fails()):
        error = caught(lambda thing=thing: operator.attrgetter("frobnicate")(thing))
        assert tracebacks.short_text(error).splitlines()[-1] == f"AttributeError: {error}"


@pytest.mark.parametrize(("package", "name"), [("tensorflow", "TensorFlow"), ("torch", "PyTorch")])
def test_an_absent_backend_is_explained_where_keras_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str
) -> None:
    monkeypatch.setattr(
        tracebacks,
        "propose_backend",
        lambda absent, command: f"Install {absent}, or: `KERAS_BACKEND=jax {command}`",
    )
    file = tmp_path / "keras" / "src" / "tree.py"
    code = compile(f"raise ModuleNotFoundError('no', name='{package}')", file, "exec")
    advice = tracebacks.advice(caught(lambda: exec(code)), 1)
    assert advice.startswith(f"Keras's backend is {name}, which is not installed.")
    assert advice.endswith(f"Install {package}, or: `KERAS_BACKEND=jax syrtos run ...`.")
    of_script = compile(
        f"raise ModuleNotFoundError('no', name='{package}')", tmp_path / "train.py", "exec"
    )
    assert tracebacks.advice(caught(lambda: exec(of_script)), 1) == ""


def test_a_port_that_another_worker_has_opened() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        error = caught(lambda: socket.create_server(server.getsockname(), reuse_port=False))
    assert "start servers where `syrtos.rank() == 0`" in tracebacks.advice(error, 2)
    assert tracebacks.advice(error, 1) == ""


class Unprintable(Exception):
    """An error whose message can't be made."""

    def __str__(self) -> str:
        raise ValueError("no message")


def test_an_error_that_has_no_message_is_shown_as_python_shows_it() -> None:
    with pytest.raises(Unprintable) as raised:
        raise Unprintable
    assert tracebacks.advice(raised.value, 2) == ""
    assert "Unprintable: <exception str() failed>" in tracebacks.short_text(raised.value)


def interrupt_of(source: str) -> KeyboardInterrupt:
    with pytest.raises(KeyboardInterrupt) as raised:
        exec(compile(source, "script.py", "exec"), {"signal": signal})
    assert isinstance(raised.value, KeyboardInterrupt)
    return raised.value


def test_an_interrupt_that_a_script_raises_is_no_signal() -> None:
    assert tracebacks.is_raised(interrupt_of("def f():\n    raise KeyboardInterrupt\nf()"))
    sent = "signal.raise_signal(signal.SIGINT)"
    assert not tracebacks.is_raised(interrupt_of(sent))
    again = f"try:\n    {sent}\nexcept KeyboardInterrupt:\n    raise"
    assert not tracebacks.is_raised(interrupt_of(again))


def test_the_hook_of_a_script_is_called_without_the_lines_that_run_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = caught(lambda: int("x"))
    tracebacks.call_hook(error)
    seen: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *facts: seen.append(facts))
    tracebacks.call_hook(error)
    assert seen == [(ValueError, error, error.__traceback__)]

    def ends(*_: object) -> None:
        sys.exit("told by the hook")

    def fails(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(sys, "excepthook", ends)
    tracebacks.call_hook(error)
    monkeypatch.setattr(sys, "excepthook", fails)
    tracebacks.call_hook(error)
    told, *rest = capsys.readouterr().err.splitlines()
    assert told == "told by the hook"
    assert rest[0] == "Error in sys.excepthook:"
    assert rest[-1] == "OSError: no network"


def test_a_file_in_the_place_of_a_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error_of(statement: str, file: Path) -> BaseException:
        return caught(lambda: exec(compile(statement, str(file), "exec"), {}))

    installed = tmp_path / "site-packages"
    (installed / "bigarrays").mkdir(parents=True)
    (installed / "bigarrays" / "__init__.py").write_text("SIZE = 1")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(installed))
    for name in ("bigarrays", "helpers"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = installed / "other" / "part.py"
    expected = f"bigarrays was imported from {tmp_path}/bigarrays.py, and not from the package"
    for statement in (
        "from bigarrays import SIZE",
        "import bigarrays.util",
        "import bigarrays; bigarrays.SIZE",
    ):
        assert tracebacks.advice(error_of(statement, package), 1).startswith(expected)
        # The script's own imports mean its own files.
        assert tracebacks.advice(error_of(statement, tmp_path / "train.py"), 1) == ""
    assert tracebacks.advice(error_of("from helpers import nothing", package), 1) == ""
    for name in ("bigarrays", "helpers"):
        monkeypatch.delitem(sys.modules, name)
