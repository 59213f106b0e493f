"""What goes wrong, and what `syrtos run` makes of it: the message, the exit code, the time it takes, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import HOST, SCRIPTS, Run, run

SYRTOS = Path(sys.executable).with_name("syrtos")
PLAIN, TRAINING, MISTAKES = SCRIPTS / "plain.py", SCRIPTS / "training.py", SCRIPTS / "mistakes.py"
CORES = len(os.sched_getaffinity(0))

# Seconds in which a run must end once something has failed.
PROMISED = 10.0
# Seconds within which a start with TensorFlow must have come to its first step, on a busy machine.
START = 90.0


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that would be fine."""
    path = tmp_path / "train.py"
    path.write_text("print('it ran')\n")
    return path


# -- refused before anything is started ------------------------------------------------------------


def check_refused(ended: Run, *texts: str) -> None:
    assert ended.code == 2, ended.stderr
    assert ended.stderr.startswith("syrtos: "), ended.stderr
    assert all(text in ended.stderr for text in texts), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "it ran" not in ended.stdout


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers(tmp_path: Path, script: Path, workers: int) -> None:
    check_refused(
        run(tmp_path, "-n", str(workers), script), "`-n` must be 1 or more", f"Received: {workers}"
    )


def test_more_workers_than_cores(tmp_path: Path, script: Path) -> None:
    check_refused(
        run(tmp_path, "-n", str(CORES + 1), script),
        f"{CORES + 1} workers",
        f"`-n {CORES}`",
        "--oversubscribe",
    )


def test_more_workers_than_cores_on_request(tmp_path: Path, script: Path) -> None:
    ended = run(tmp_path, "-n", str(CORES + 1), "--oversubscribe", script)
    assert (ended.code, ended.stdout) == (0, "it ran\n"), ended.stderr


def test_missing_script(tmp_path: Path) -> None:
    check_refused(
        run(tmp_path, "-n", "2", "nowhere.py"), "There is no script nowhere.py", str(tmp_path)
    )


def test_script_is_a_folder(tmp_path: Path) -> None:
    check_refused(run(tmp_path, "-n", "2", tmp_path), f"{tmp_path} is a folder")


def test_script_is_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_refused(run(tmp_path, "-n", "2", pipe), f"{pipe} is a pipe", "write it to a file")


def test_unreadable_script(tmp_path: Path, script: Path) -> None:
    script.chmod(0)
    check_refused(run(tmp_path, "-n", "2", script), f"{script} can't be read", "chmod +r")


@pytest.mark.root
def test_shared_memory_that_is_too_small(tmp_path: Path, script: Path) -> None:
    """MPI would end workers by SIGBUS, as in a container without `--shm-size`."""
    small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", small, "sh", SYRTOS, "run", "-n", "2", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "unshare" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"a small /dev/shm can't be mounted here: {ended.stderr}")
    assert ended.returncode == 2
    assert "/dev/shm has 0.1 MB free" in ended.stderr
    assert "--shm-size" in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """The file that takes processes into a control group of 128 MB."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", root, f"syrtos-test-{os.getpid()}")
        try:
            group.mkdir()
            (group / limit).write_text(str(128 << 20))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        yield group / "cgroup.procs"
        group.rmdir()
        return
    pytest.skip("no control group for memory can be made here")


@pytest.mark.root
def test_a_worker_that_is_killed_for_lack_of_memory(tmp_path: Path, small_memory: Path) -> None:
    script = tmp_path / "hog.py"
    script.write_text(
        "import os, syrtos\n"
        "syrtos.init()\n"
        "if syrtos.rank() == 1:\n"
        f"    open({str(small_memory)!r}, 'w').write(str(os.getpid()))\n"
        "    all = [bytes(1 << 20) + b'x' for number in range(2000)]\n"
        "syrtos.barrier()\n"
    )
    ended = run(tmp_path, "-n", "2", "--max-restarts", "0", script)
    assert ended.code == 137, ended.stderr
    assert "rank 1" in ended.stderr
    assert "ended by SIGKILL" in ended.stderr
    assert re.search(r"Linux has killed \d+ process\w* of this machine for lack", ended.stderr)
    assert "dmesg" not in ended.stderr


def test_a_limit_that_the_launcher_meets_is_named(tmp_path: Path, script: Path) -> None:
    ended = subprocess.run(
        [SYRTOS, "run", "-n", "2", "--run-dir", "run", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)),
    )
    assert ended.returncode == 1
    assert "limited to 24 open files: raise that with `ulimit -n 65536`" in ended.stderr
    assert "Traceback" not in ended.stderr


# -- one rank fails --------------------------------------------------------------------------------


def test_exception_on_one_rank(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, "fail", within=PROMISED)
    ended.check_failure(
        1, 1, "Traceback (most recent call last)", 'raise ValueError("the moon is full")'
    )
    report = ended.stderr.split("failed first:")[1].strip()
    assert report.startswith(f'Traceback (most recent call last):\n  File "{PLAIN}"'), (
        "frames of syrtos first"
    )
    assert "the moon is full" in ended.log(1)
    left = json.loads(ended.log_path(1).with_suffix(".failure").read_text())
    assert (left["rank"], left["host"], left["code"]) == (1, HOST, 1)
    assert left["text"].strip() == report.split("\n\nIts output is in")[0]
    assert not ended.log_path(0).with_suffix(".failure").exists()
    ended.check_nothing_left()


def test_failures_of_an_earlier_run_in_the_same_folder_are_forgotten(
    tmp_path: Path, script: Path
) -> None:
    run(tmp_path, "-n", "2", PLAIN, "leave_with_3").check_failure(1, 3, "exit code 3")
    script.write_text(
        "import os, time\nif os.environ['PMI_RANK'] == '0':\n    os._exit(4)\ntime.sleep(60)\n"
    )
    ended = run(tmp_path, "-n", "2", script, within=PROMISED)
    assert ended.code == 4
    assert "failed first" not in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("role", "code", "text"),
    [("leave_with_3", 3, "exit code 3"), ("leave_with_words", 1, "no such")],
)
def test_sys_exit_on_one_rank(tmp_path: Path, role: str, code: int, text: str) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, role, within=PROMISED)
    ended.check_failure(1, code, text)
    ended.check_nothing_left()


@pytest.mark.parametrize("attempt", range(3))
def test_the_one_of_three_that_vanished_is_named(tmp_path: Path, attempt: int) -> None:
    """MPI's launcher kills the others at once, and its banner may name one of those."""
    ended = run(tmp_path, "-n", "3", "--oversubscribe", PLAIN, "vanish", within=PROMISED)
    ended.check_failure(
        1, 3, "ended first: its process (number ", "ended with exit code 3 before its script"
    )
    ended.check_nothing_left()


@pytest.mark.parametrize(
    ("role", "code", "text"),
    [
        ("vanish_with_0", 1, "ended with exit code 0 before its script had come to its end"),
        ("exit_in_a_library", 1, "ended with exit code 0 before its script had come to its end"),
        ("abort", 134, "was ended by SIGABRT (signal 6).\n  Fatal Python error: Aborted\n"),
        ("segfault", 139, "was ended by SIGSEGV (signal 11)"),
        ("terminate", 143, "was ended by SIGTERM (signal 15)"),
        ("interrupt", 130, "was ended by SIGINT (signal 2)"),
    ],
)
def test_a_rank_that_ends_without_a_word_is_no_success_and_no_stop(
    tmp_path: Path, role: str, code: int, text: str
) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, role, within=START)
    ended.check_failure(1, code, "rank 1 on", text)
    assert "stopped by" not in ended.stderr, ended.stderr
    ended.check_nothing_left()


def test_a_rank_that_leaves_in_a_function_of_atexit(tmp_path: Path, script: Path) -> None:
    """It has finished; the other worker, which waits for it at its own end, ends too."""
    script.write_text(
        "import atexit, os, syrtos\nif syrtos.rank() == 0:\n    atexit.register(os._exit, 0)\n"
    )
    ended = run(tmp_path, "-n", "2", script, within=START)
    assert ended.code == 0, ended.stderr
    ended.check_nothing_left()


def test_the_log_says_where_exit_was_called(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, "vanish_with_0", within=START)
    assert f'"{PLAIN}", line ' in ended.log(1)


def test_a_folder_that_two_ranks_make(tmp_path: Path) -> None:
    """Is made once, and a worker that makes it a second time fails as one process does."""
    ended = run(tmp_path, "-n", "2", PLAIN, "make_folders", within=START)
    assert (tmp_path / "made-0").exists()
    assert (tmp_path / "made-1").exists(), ended.stderr
    ended.check_failure(1, 1, "FileExistsError", "'one'")


def test_a_folder_that_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    ended = run(tmp_path, "-n", "2", PLAIN, "make_folder_again", within=START)
    assert ended.code == 1
    assert "FileExistsError" in ended.stderr


def test_a_forked_child_does_not_speak_for_its_rank(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, "fork", within=START)
    assert (tmp_path / "waited-1").exists()
    ended.check_failure(1, 5, "exit code 5")
    ended.check_nothing_left()


def test_a_worker_that_replaces_itself_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, "be_replaced", within=START)
    assert (tmp_path / "waited-1").exists(), ended.stderr
    assert ended.code == 1
    assert "would replace this worker by a program that trains alone" in ended.stderr
    assert 'os.execvp(sys.executable, [sys.executable, "-c", "pass"])' in ended.stderr


def test_children_that_compute_in_the_place_of_workers_are_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", PLAIN, "compute_in_a_child", within=START)
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("no worker has trained, and processes that the script") == 1
    ended = run(tmp_path, "-n", "1", PLAIN, "compute_in_a_child", within=START)
    assert "no worker has trained" not in ended.stderr


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path, script: Path) -> None:
    script.write_text("def f(:\n")
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True)
    ended = run(tmp_path, "-n", "2", script, within=PROMISED)
    assert (ended.code, ended.stderr) == (plain.returncode, plain.stderr)
    assert not (tmp_path / "run").exists(), "the run had begun"


def train_until_fault(folder: Path, *options: str, fault: str, forked: bool = True) -> Run:
    """Time counts from the first steps."""
    started = Run(
        folder, "-n", "2", "--max-restarts", "0", *options, TRAINING, fault, forked=forked
    )
    started.until_exist("begun-0", within=START)
    started.mark_time()
    return started


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Rank 1 gets a SIGKILL in the middle of training."""
    return train_until_fault(tmp_path_factory.mktemp("killed"), fault="kill", forked=False).ends(
        PROMISED
    )


def test_killed_worker(killed: Run) -> None:
    killed.check_failure(
        1, 128 + signal.SIGKILL, "ended first: its process (number ", "SIGKILL (signal 9)", "dmesg"
    )
    killed.check_nothing_left()


@pytest.mark.slow
def test_exception_while_training(tmp_path: Path) -> None:
    ended = train_until_fault(tmp_path, fault="exception").ends(PROMISED)
    ended.check_failure(1, 1, "Traceback", "fault injected")
    ended.check_nothing_left()


@pytest.fixture(scope="module")
def vanished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Rank 1 ends by `os._exit(3)` in the middle of training."""
    return train_until_fault(tmp_path_factory.mktemp("vanished"), fault="exit").ends(PROMISED)


@pytest.mark.slow
def test_worker_that_vanishes(vanished: Run) -> None:
    vanished.check_failure(
        1,
        3,
        "ended first: its process (number ",
        "ended with exit code 3 before its script",
        "os._exit",
    )
    vanished.check_nothing_left()


@pytest.mark.slow
def test_hang_while_training(tmp_path: Path) -> None:
    ended = train_until_fault(tmp_path, "--timeout", "5", fault="hang").ends(5 + PROMISED)
    ended.check_failure(
        1, 1, "StalledError", "rank 0 has waited 5 s", "The stack of every rank is in its log"
    )
    assert re.search(
        r"syrtos: rank 1 on .* did not come to an exchange, .* it is busy with something else, or hangs",
        ended.stderr,
    )
    assert re.search(r'^  File ".*faults\.py", line \d+ in ', ended.stderr, re.MULTILINE), (
        ended.stderr
    )
    assert "watchdog.py" in ended.log(0)
    assert "training.py" in ended.log(1)
    assert "faults.py" in ended.log(1), ended.log(1)
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("stand_still", "it is stopped, by SIGSTOP or the like"),
        ("hold_the_gil", "it is without a sign of life: for .. s it has run no Python code"),
    ],
)
def test_a_worker_in_which_nothing_runs_ends_the_run_long_before_the_timeout(
    tmp_path: Path, role: str, text: str
) -> None:
    ended = run(tmp_path, "-n", "2", "--timeout", "600", PLAIN, role, within=30 + PROMISED)
    assert ended.code == 1, ended.stderr
    assert re.search(
        f"syrtos: rank 1 on .* did not come to an exchange, and others waited for it: {text}",
        ended.stderr,
    )
    assert "run/logs/rank-1.log" in ended.stderr
    ended.check_nothing_left()


@pytest.mark.slow
def test_a_worker_that_waits_in_python_may_do_so_until_the_timeout(tmp_path: Path) -> None:
    """It may upload a file."""
    ended = run(
        tmp_path, "-n", "2", "--timeout", "50", PLAIN, "wait_for_ever", within=50 + PROMISED
    )
    ended.check_failure(1, 1, "rank 0 has waited 50 s", "or hangs, at plain.py:", ", in `<lambda>`")
    ended.check_nothing_left()


@pytest.mark.slow
def test_a_thread_that_outlives_its_script_is_named(tmp_path: Path) -> None:
    """As in plain Python, the process ends with it."""
    (tmp_path / "train.py").write_text(
        "import threading, time, syrtos\nsyrtos.init()\nif syrtos.rank():\n"
        "    threading.Thread(target=time.sleep, args=(15,), name='uploads').start()\n"
    )
    ended = run(tmp_path, "-n", "2", tmp_path / "train.py", within=60.0, forked=True)
    assert ended.code == 0, ended.stderr
    assert "rank 1 has come to the end of its script, and waits for" in ended.stderr
    assert "threads to end: uploads" in ended.stderr
    ended.check_nothing_left()


# -- numbers that are not finite -------------------------------------------------------------------

# Batches that every worker computes whole.
_WHOLE = {("tensorflow", "few_rows"), ("tensorflow", "eagerly")}
_NOT_FINITE = {
    "on_rank_1": (
        "Update 3 (batch 3 of epoch 1) was stopped: the gradient of `",
        "dense/kernel`, and of 1 more",
        "in the share of rank 1,",
    ),
    "eagerly": ("Update 1 (batch 1 of epoch 1) was stopped", "in the share of rank 0,"),
    "on_both": ("Update 1 (batch 1 of epoch 1) was stopped", "in the shares of ranks 0, 1,"),
    "rows": (
        "Update 2 (batch 2 of epoch 1) was stopped: the gradient of `",
        "rows/embeddings`, and of 2 more",
        "in the share of rank 0,",
    ),
    "accumulated": ("Update 1 (batch 2 of epoch 1) was stopped", "in the share of rank 0,"),
    "without_gradient": ("the gradient of `", "dense/kernel`"),
    "few_rows": ("Update 2 (batch 2 of epoch 1) was stopped", "in the share of rank 1,"),
    "planned": (
        "Update 3 (batch 3 of epoch 1) was stopped",
        "in the share of rank 1 (made of 8 records, in one or more of which the cause may be: 40 (array, at 40), 41",
        "42 (array, at 42), ...; all are listed in ",
    ),
    "scaled": ("trained",),
    "finite": ("trained",),
}


@pytest.mark.parametrize(
    "backend",
    [
        "tensorflow",
        pytest.param("torch", marks=pytest.mark.long),
        pytest.param("jax", marks=pytest.mark.long),
    ],
)
def test_a_gradient_that_is_not_finite_is_not_applied(tmp_path: Path, backend: str) -> None:
    cases = [
        case
        for case in _NOT_FINITE
        if (backend, case) not in (("torch", "eagerly"), ("jax", "rows"))
    ]
    command = ("-n", "2", "--on-nan", "stop", SCRIPTS / "not_finite.py", *cases)
    env = {"KERAS_BACKEND": backend}
    ended = run(tmp_path, *command, within=START, env=env, forked=True)
    assert ended.code == 0, ended.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"told-{rank}.json").read_text())
        texts = {
            case: _NOT_FINITE[case][: 1 if backend == "jax" or (backend, case) in _WHOLE else None]
            for case in cases
        }  # there no rank is named
        wrong = {
            case: found[case]
            for case in cases
            if not all(text in found[case] for text in texts[case])
        }
        assert not wrong
    listed = json.loads(next(tmp_path.rglob("not-finite-rank-1.jsonl")).read_text())
    rows = (
        range(32, 48) if backend == "jax" else range(40, 48)
    )  # there all workers compute the whole batch
    assert listed["batch"] == "batch 3 of epoch 1"
    assert [record["index"] for record in listed["records"]] == list(rows)


_LEFT_OUT = ("plain", "rank_0", "own_step", "eagerly", "accumulated", "decay", "several_steps")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "left_out"),
    [
        ("tensorflow", ("plain", "own_step")),
        *(
            pytest.param(name, _LEFT_OUT, marks=pytest.mark.long)
            for name in ("tensorflow", "jax", "torch")
        ),
    ],
)
def test_a_batch_that_is_left_out_leaves_no_trace(
    tmp_path: Path, backend: str, left_out: tuple[str, ...]
) -> None:
    cases = [
        case for case in left_out if (backend, case) != ("torch", "several_steps")
    ]  # which Keras refuses there
    command = ("-n", "2", "--on-nan", "skip", SCRIPTS / "left_out.py", *cases, "always_wrong")
    env = {"KERAS_BACKEND": backend}
    ended = run(tmp_path, *command, within=2 * START, env=env, forked=True)
    assert ended.code == 0, ended.stderr
    share = "" if backend == "jax" else ", in the share of rank 1"
    assert f"is NaN or infinite{share}.\n" in ended.stderr
    assert "updates whose gradients were not finite: " in ended.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"told-{rank}.json").read_text())
        assert found.pop("always_wrong").startswith(
            "NonFiniteError: 11 updates in a row were left out"
        )
        assert found == dict.fromkeys(cases, "the same")


def test_a_loss_that_is_not_finite_is_told_once(tmp_path: Path) -> None:
    ended = run(
        tmp_path, "-n", "2", SCRIPTS / "not_finite.py", "on_rank_1", within=START, forked=True
    )
    assert ended.stderr.count("syrtos: the loss is nan since batch 3 of epoch 1. ") == 1, (
        ended.stderr
    )
    assert "weights were damaged" in (tmp_path / "told-0.json").read_text()  # as in plain Keras


# -- ranks out of step -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ending_early(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Rank 1 has fewer epochs than rank 0, and then its script ends."""
    folder = tmp_path_factory.mktemp("ending_early")
    return train_until_fault(folder, fault="end_early").ends(PROMISED)


def test_script_that_ends_early_on_one_rank_is_no_hang(ending_early: Run) -> None:
    assert ending_early.code == 1
    assert "all workers failed alike" in ending_early.stderr
    ending_early.check_nothing_left()


def test_script_that_ends_early_on_one_rank_is_named(ending_early: Run) -> None:
    assert "OutOfStepError" in ending_early.stderr, ending_early.stderr
    assert "rank 0: " in ending_early.stderr
    assert "rank 1: " in ending_early.stderr


@pytest.fixture(scope="module")
def evaluating(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Rank 1 evaluates while rank 0 trains; both have the same number of batches."""
    return run(
        tmp_path_factory.mktemp("evaluating"),
        "-n",
        "2",
        TRAINING,
        "evaluate",
        within=START,
        forked=True,
    )


@pytest.mark.slow
def test_evaluate_on_one_rank_is_no_hang(evaluating: Run) -> None:
    assert evaluating.code == 1
    assert HOST in evaluating.stderr
    assert "Error" in evaluating.stderr
    evaluating.check_nothing_left()


@pytest.mark.slow
def test_evaluate_on_one_rank_is_named(evaluating: Run) -> None:
    assert "OutOfStepError" in evaluating.stderr, evaluating.stderr
    assert "rank 0: model.fit" in evaluating.stderr, evaluating.stderr
    assert "rank 1: model.evaluate" in evaluating.stderr, evaluating.stderr


@pytest.mark.slow
def test_replicas_that_diverge(tmp_path: Path) -> None:
    ended = run(
        tmp_path, "-n", "2", "--check-every", "1", TRAINING, "diverge", within=START, forked=True
    )
    assert ended.code == 1
    for text in ("DivergenceError", "by step 4:", "second/kernel", "ranks [0] / [1]"):
        assert text in ended.stderr, ended.stderr
    ended.check_nothing_left()


# -- mistakes that every rank is told of -----------------------------------------------------------

_CAUGHT = ("empty", "lengths", "structure", "depth", "jit", "jit_of_a_loop", "strategy_of_another")


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[dict[str, Any]]]:
    """One run that makes them all, and what each rank was told."""
    folder = tmp_path_factory.mktemp("mistakes")
    ended = run(
        folder, "-n", "2", "--timeout", "20", MISTAKES, *_CAUGHT, within=START + 30, forked=True
    )
    assert ended.code == 0, ended.stderr
    return ended, told(folder)


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("mistake", "error", "texts"),
    [
        ("empty", "DataError", ["The data set is empty"]),
        ("lengths", "DataError", ["rank 0: 8 batches", "rank 1: 6 batches", "--batch per-worker"]),
        (
            "structure",
            "OutOfStepError",
            ["first/kernel (4, 3) float32", "rank 1: sequential/first/kernel (4, 4) float32"],
        ),
        (
            "depth",
            "OutOfStepError",
            ["Workers built different models", "rank 1: sequential/dense_1/kernel (1, 1) float32"],
        ),
        ("jit", "", []),
        (
            "jit_of_a_loop",
            "ConfigurationError",
            ["jit_compile=True", "computes the gradients alone"],
        ),
        (
            "strategy_of_another",
            "ConfigurationError",
            ["MirroredStrategy", "2 workers", "syrtos.keras.Strategy"],
        ),
    ],
)
def test_every_rank_is_told(
    mistakes: tuple[Run, list[dict[str, Any]]], mistake: str, error: str, texts: list[str]
) -> None:
    for each in mistakes[1]:
        assert each[mistake]["type"] == error, each[mistake]["text"]
        missing = [text for text in texts if text not in each[mistake]["text"]]
        assert not missing, each[mistake]["text"]


@pytest.mark.needs("tensorflow")
def test_compiled_steps_train(mistakes: tuple[Run, list[dict[str, Any]]]) -> None:
    assert "jit_compile=True is turned off" not in mistakes[0].stderr
    mistakes[0].check_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ("shuffle", "DataError"),
        ("lengths_unknown", "OutOfStepError"),
        ("empty_of_unknown_length", "DataError"),
    ],
)
def test_mistake_that_is_not_caught(tmp_path: Path, mistake: str, error: str) -> None:
    ended = run(
        tmp_path,
        "-n",
        "2",
        "--timeout",
        "20",
        MISTAKES,
        f"uncaught:{mistake}",
        within=START,
        forked=True,
    )
    assert ended.code == 1, ended.stderr
    assert f"errors.{error}: " in ended.stderr, ended.stderr
    assert "Graph execution error" not in ended.stderr, (
        "what TensorFlow makes of it hides what happened"
    )
    ended.check_nothing_left()


# -- environments that can't work ------------------------------------------------------------------


def test_backend_without_exchange(tmp_path: Path, script: Path) -> None:
    script.write_text("import keras\nprint('it ran')\n")
    ended = run(tmp_path, "-n", "2", script, env={"KERAS_BACKEND": "openvino"})
    assert ended.code == 1, ended.stderr
    assert (
        "ConfigurationError: KERAS_BACKEND=openvino can't exchange gradients between 2 workers"
        in ended.stderr
    )
    assert "No module named" not in ended.stderr
    assert "it ran" not in ended.stdout


@pytest.mark.parametrize("text", ["{'cluster':", "3"])
def test_malformed_tf_config(tmp_path: Path, script: Path, text: str) -> None:
    check_refused(
        run(tmp_path, "-n", "2", script, env={"TF_CONFIG": text}),
        "TF_CONFIG is no JSON object",
        text,
    )


# -- batches per worker ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def per_worker(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Rank 0 has 5 batches, rank 1 has 2."""
    folder = tmp_path_factory.mktemp("per_worker")
    ended = run(
        folder,
        "-n",
        "2",
        "--batch",
        "per-worker",
        "--timeout",
        "20",
        SCRIPTS / "per_worker.py",
        within=START + 30,
        forked=True,
    )
    assert ended.code == 0, ended.stderr
    ended.check_nothing_left()
    return told(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "steps"),
    [("known", 10), pytest.param("unknown", 10, marks=pytest.mark.long), ("generator", 5)],
)
def test_ranks_with_unequal_batches_end_together(
    per_worker: list[dict[str, Any]], case: str, steps: int
) -> None:
    first, second = (each[case] for each in per_worker)
    assert first["steps"] == second["steps"] == steps
    assert first["loss"] == second["loss"]
    assert first["weights"] == second["weights"]


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_reaches_scripts_that_tidy_up(tmp_path: Path, number: signal.Signals) -> None:
    started = Run(tmp_path, "-n", "2", PLAIN, "obey")
    started.until_exist("begun-0", "begun-1")
    started.send(number)
    ended = started.ends(PROMISED)
    assert ended.code == 128 + number, ended.stderr
    assert all((tmp_path / f"tidied-{rank}").exists() for rank in range(2))
    assert f"stopped by {number.name} (signal {number.value})" in ended.stderr
    ended.check_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_scripts_that_know_nothing_of_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    started = Run(tmp_path, "-n", "2", PLAIN, "sleep")
    started.until_exist("begun-0", "begun-1")
    started.send(number)
    ended = started.ends(PROMISED)
    assert ended.code == 128 + number, ended.stderr
    assert "Traceback" not in ended.stderr
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_a_script_ends_though_its_generator_does_not(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "2", SCRIPTS / "slow_generator.py", within=START, forked=True)
    assert ended.code == 0, ended.stderr
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_the_rank_that_got_a_signal_is_named(tmp_path: Path) -> None:
    script = SCRIPTS / "slow_generator.py"
    arguments = ("-n", "2", "--max-restarts", "0", script, "interrupt")
    ended = run(tmp_path, *arguments, within=START, forked=True)
    ended.check_failure(1, 128 + signal.SIGINT, "rank 1 on", "was ended by SIGINT (signal 2)")


def test_a_run_that_nohup_has_started_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        started = Run(tmp_path, "-n", "2", PLAIN, "sleep")
    finally:
        signal.signal(signal.SIGHUP, before)
    started.until_exist("begun-0", "begun-1")
    started.send(signal.SIGHUP)
    time.sleep(0.5)
    assert not started.ended()
    started.send(signal.SIGTERM)
    assert started.ends(PROMISED).code == 128 + signal.SIGTERM
    started.check_nothing_left()


def test_a_signal_before_the_next_generation_ends_the_run(tmp_path: Path) -> None:
    """What fails at once is started again after a pause, which grows."""
    (tmp_path / "train.py").write_text("raise ValueError('the moon is full')\n")
    started = Run(tmp_path, "-n", "2", "--max-restarts", "9", "train.py")
    started.until(lambda: "Generation 3" in started.stderr, within=PROMISED)
    started.send(signal.SIGINT)
    ended = started.ends(PROMISED)
    assert ended.code == 128 + signal.SIGINT, ended.stderr
    assert "syrtos: stopped by SIGINT" in ended.stderr
    assert "KeyboardInterrupt" not in ended.stderr
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM]
)
def test_scripts_that_ignore_a_signal_are_killed_after_the_grace_period(
    tmp_path: Path, number: signal.Signals
) -> None:
    started = Run(tmp_path, "-n", "2", "--grace", "2", PLAIN, "ignore")
    started.until_exist("begun-0", "begun-1")
    started.send(number)
    ended = started.ends(2 + PROMISED)
    assert ended.seconds > 1.9
    assert ended.code == 128 + number, ended.stderr
    assert all((tmp_path / f"signal-{number.value}-{rank}").exists() for rank in range(2))
    ended.check_nothing_left()


def test_second_signal_allows_no_more_grace(tmp_path: Path) -> None:
    started = Run(tmp_path, "-n", "2", "--grace", "60", PLAIN, "ignore")
    started.until_exist("begun-0", "begun-1")
    started.send(signal.SIGINT)
    started.until_exist("signal-2-0", "signal-2-1")
    started.send(signal.SIGINT)
    ended = started.ends(PROMISED)
    assert ended.code == 130, ended.stderr
    ended.check_nothing_left()


@pytest.mark.slow
def test_interrupted_training(tmp_path: Path) -> None:
    started = Run(tmp_path, "-n", "2", TRAINING, "long")
    started.until_exist("begun-0", "begun-1", within=START)
    started.send(signal.SIGINT)
    ended = started.ends(PROMISED + 2)
    assert ended.code == 130, ended.stderr
    ended.check_nothing_left()


def test_ctrl_c_twice_ends_as_once(tmp_path: Path) -> None:
    """The second one comes while the launcher ends what has imported, or prints."""
    started = Run(tmp_path, "-n", "2", TRAINING, "long")
    started.until_exist("begun-0", "begun-1", within=START)
    for pause in (0.3, 0.2, 0.2, 0.2, 0.0):
        started.send(signal.SIGINT)
        time.sleep(pause)
    ended = started.ends(PROMISED + 2)
    assert ended.code == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "stopped by SIGINT" in ended.stderr
    ended.check_nothing_left()


def kill_launcher(started: Run) -> Run:
    started.until_exist("begun-0", "begun-1", within=START)
    started.send(signal.SIGKILL)
    return started.ends(PROMISED)


def test_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    kill_launcher(Run(tmp_path, "-n", "2", PLAIN, "sleep")).check_nothing_left()


@pytest.mark.slow
def test_killed_launcher_of_a_training_leaves_nothing(tmp_path: Path) -> None:
    kill_launcher(Run(tmp_path, "-n", "2", TRAINING, "long")).check_nothing_left()
