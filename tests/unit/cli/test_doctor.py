"""`syrtos doctor SCRIPT`: what it prints, returns and refuses; what `--fix` and `--write` change, and what they leave."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
FIT = "import keras\nx = y = keras.ops.ones(6); model = keras.Sequential()\nmodel.fit(x, y, batch_size=6)\n"
FILE = FIT + "open('a', 'w')\n"
HOROVOD = """import keras
import horovod.keras as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.1 * hvd.size()))
model.compile(optimizer, "mse")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def doctor(script: Path, *options: str) -> int:
    return main(["doctor", *options, str(script)])


def written(script: Path, text: str) -> Path:
    script.write_text(text)
    return script


@pytest.mark.parametrize(
    ("text", "code"), [(FIT, 0), (FILE, 1), ("", 0), (FIT.replace("keras\n", "keras.gone\n", 1), 1)]
)
def test_the_exit_code_says_whether_anything_is_wrong(script: Path, text: str, code: int) -> None:
    assert doctor(written(script, text)) == code


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"print 'a'\n", "Python 2"),
        (b"def f(:\n", "line 1"),
        (b"x = '\xe9'\n", "can't be read"),
        (b"# coding: gone\n", "can't be read"),
        (b"x\x00y\n", "can't be parsed"),
        (None, "can't be read"),
    ],
)
def test_what_is_no_script_is_told(
    script: Path, content: bytes | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        script.write_bytes(content)
    for options in ((), ("--fix",), ("--json",)):
        assert doctor(script, *options) == 2
        error = capsys.readouterr().err
        assert told in error
        assert str(script) in error
        assert "Traceback" not in error


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\nname = '\xe9'\n"])
def test_encodings_ends_of_lines_and_modes_are_those_of_the_file(script: Path, head: bytes) -> None:
    script.write_bytes(head + FILE.encode())
    assert doctor(script) == 1
    start = head.replace(b"\n", b"\r\n")
    script.write_bytes(start + HOROVOD.replace("\n", "\r\n").encode())
    script.chmod(0o750)
    assert doctor(script, "--write") == 0
    assert script.stat().st_mode & 0o777 == 0o750
    assert b"\n" not in script.read_bytes().replace(b"\r\n", b"")
    compile(script.read_bytes(), script, "exec")
    assert script.read_bytes().startswith(start)


def test_findings_are_lines_of_json(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(written(script, FILE), "--json", "-n", "4") == 1
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["severity"], first["rule"], first["line"], first["column"]) == (
        "wrong",
        "file-on-every-rank",
        4,
        1,
    )
    assert (second["severity"], second["rule"], second["line"]) == (
        "slow",
        "batch-not-divisible",
        3,
    )
    assert set(first) == {"severity", "path", "line", "column", "rule", "says", "fix"}


def test_findings_are_printed_with_their_place_and_counted(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(written(script, FILE), "-n", "4")
    out = capsys.readouterr().out
    assert f"{script}:4:1  wrong [file-on-every-rank]" in out
    assert out.splitlines()[-1].endswith("1 wrong, 1 slow")
    doctor(written(script, FIT), "-n", "3")
    assert "nothing found that breaks or slows it on 3 workers" in capsys.readouterr().out


def test_options_of_the_run_are_heeded(script: Path) -> None:
    written(script, FIT + "keras.optimizers.SGD(0.1)\n")
    assert doctor(script, "--batch", "per-worker") == 1
    assert doctor(script, "--batch", "per-worker", "--scale-lr", "linear") == 0


def test_arguments_of_the_script_are_not_looked_at(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(script, FIT)
    assert main(["doctor", "-n", "3", str(path), "--epochs", "3", "--batch", "31"]) == 0
    found = capsys.readouterr()
    assert "on 3 workers" in found.out
    assert "`--batch` after the script is the script's" in found.err
    assert main(["doctor", "--", str(path)]) == 0
    other = written(path.with_name("other.py"), FILE)
    assert main(["doctor", str(path), str(other)]) == 0
    assert f"{other} was taken as an argument of {path}" in capsys.readouterr().err
    for word in ("--batch=31", "-n4", "--hosts", "--write"):
        assert main(["doctor", str(path), word, "--fix"]) == 0
        assert (
            f"`{word.rstrip('=4').partition('=')[0]}` after the script" in capsys.readouterr().err
        )
    assert [*path.parent.glob("*.before")] == []


@pytest.mark.parametrize(
    "words", [["--fix"], ["--hosts", "a", "train.py"], ["-n", "0", "train.py"]]
)
def test_options_that_do_not_go_together_are_refused(words: list[str]) -> None:
    assert main(["doctor", *words]) == 2


def test_no_framework_is_imported_and_500_lines_take_less_than_a_second(script: Path) -> None:
    lines = HOROVOD + "".join(
        f"a{n} = keras.layers.Dense({n})(keras.Input(({n},)))\n" for n in range(500)
    )
    code = (
        "import sys, time; from syrtos.cli import main; began = time.process_time(); main(sys.argv[1:]); print(time.process_time() - began); "
        "print([name for name in ('keras', 'tensorflow', 'jax', 'torch', 'mpi4py') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "doctor", written(script, lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, seconds, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert float(seconds) < 1


def test_fix_shows_and_write_writes_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = script.with_name("train.py.before")
    assert doctor(written(script, HOROVOD), "--fix") == 0
    out = capsys.readouterr().out
    assert "-import horovod.keras as hvd" in out
    assert "+optimizer = keras.optimizers.SGD(learning_rate=0.1 * WORKERS)" in out
    assert script.read_text() == HOROVOD
    assert not kept.exists()
    assert doctor(script, "--write", "-n", "4") == 0
    assert kept.read_text() == HOROVOD
    after = script.read_text()
    assert "WORKERS = 4" in after
    assert doctor(script, "--write") == 0  # nothing is left to change
    assert script.read_text() == after
    written(script, HOROVOD + "pass\n")
    assert doctor(script, "--write") == 2
    assert "exists" in capsys.readouterr().err
    assert (script.read_text(), kept.read_text()) == (HOROVOD + "pass\n", HOROVOD)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)", "Adasum"),
        (
            "optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum if a else hvd.Average)",
            "op=",
        ),
        ("total = hvd.allreduce(x, op=hvd.Sum)", "Sum"),
        ("state = hvd.elastic.KerasState(model)", "KerasState"),
        ("files = np.array_split(names, hvd.size())[hvd.rank()]", "hvd.rank()"),
        ("hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=5)", "initial_lr"),
        ("model = hvd.load_model('a', custom_objects={})", "load_model"),
        ("loss = keras.losses.MeanSquaredError(reduction='sum')", "sum over the batch"),
        ("hvd.join; hvd.BroadcastGlobalVariablesHook(0)", "BroadcastGlobalVariablesHook"),
        ("e = tf.estimator.Estimator(model_fn)", "model_fn"),
        ("model.fit(x, y, samples_per_epoch=500)", "counted samples"),
        ("layer = Convolution2D(8, 3, 3)", "rows and columns"),
        ("keras.optimizers.SGD(0.1, decay=0.1); keras.callbacks.ReduceLROnPlateau()", "decay"),
        (
            "model.fit(x, y, epochs=3, callbacks=[keras.callbacks.LearningRateScheduler(f)])",
            "counts epochs",
        ),
        ("with tf.GradientTape() as tape: pass", "repeat the data set"),
    ],
)
def test_what_is_done_by_hand_is_named_and_nothing_is_written(
    script: Path, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HOROVOD + "import tensorflow as tf\n" + line + "\n"
    assert doctor(written(script, text), "--fix") == 1
    out = [
        each
        for each in capsys.readouterr().out.splitlines()
        if each.startswith("by hand") and told in each
    ]
    assert out
    assert any("line 7" in each or "of the converted script" in each for each in out)
    assert doctor(script, "--write") == 2
    assert script.read_text() == text
    assert list(script.parent.iterdir()) == [script]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.fit(x, y, epochs=3)", "model.fit(x, y, epochs=3 * WORKERS, batch_size=32 * WORKERS)"),
        ("data = data.batch(8)\nmodel.fit(data)", "data = data.batch(8 * WORKERS)\nmodel.fit(data, epochs=WORKERS)"),
        ("model.fit(x, y, steps_per_epoch=500 // hvd.size())", "model.fit(x, y, steps_per_epoch=500 // WORKERS, batch_size=32 * WORKERS)"),
        ("data = data.shard(hvd.size(), hvd.rank()).batch(8)", "data = data.batch(8 * WORKERS)"),
        ("x = x[hvd.rank()::hvd.size()]", "x = x[0::1]"),
        ("if hvd.rank() == 0 and a: print(a)", "if a: print(a)"),
        ("verbose = 1 if hvd.rank() == 0 else 0", "verbose = 1"),
        ("model.fit_generator(g, 5, 3)", "model.fit(g, steps_per_epoch=5, epochs=3)"),
        ("from keras.utils import np_utils\ny = np_utils.to_categorical(y)", "from keras import utils\ny = utils.to_categorical(y)"),
        ("opt = keras.optimizers.SGD(lr=a, decay=0.1)", "InverseTimeDecay(a, 1, 0.1)"),
        ("keras.layers.Conv2D(1, 2, border_mode='same', dim_ordering='th')", "padding='same', data_format=\"channels_first\""),
    ],
)  # fmt: skip
def test_a_line_is_converted(
    script: Path, before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = "import keras\n" if "np_utils" in before or "_generator" in before else HOROVOD
    written(script, start + before + "\n")
    doctor(script, "--write")
    assert after in script.read_text(), capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_plain_scripts_are_left_byte_by_byte(script: Path, path: Path) -> None:
    script.write_bytes(path.read_bytes())
    assert doctor(script, "--write") == 0
    assert script.read_bytes() == path.read_bytes()
    assert list(script.parent.iterdir()) == [script]


def test_scripts_of_old_apis_parse_once_they_are_converted(script: Path) -> None:
    for path in (EXAMPLES / "dialects").glob("*.py"):
        script.write_bytes(path.read_bytes())
        doctor(script, "--write")
        ast.parse(script.read_text())
        script.with_name("train.py.before").unlink(missing_ok=True)
