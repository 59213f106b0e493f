"""Workers end in the middle of training, and the run goes on: the result is bitwise that of a run in which nothing happened."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from running import SCRIPTS, Run, run

RECOVERING = SCRIPTS / "recovering.py"


def trained(
    folder: Path,
    backend: str,
    data: str,
    *ends: str,
    flags: tuple[str, ...] = ("--max-restarts", "9"),
    workers: int = 2,
) -> Run:
    """A run of the script, in a folder of its own."""
    folder.mkdir()
    flags = ("-n", str(workers), "--oversubscribe", *flags)
    framework = {"TF_USE_LEGACY_KERAS": "1"} if backend == "keras 2" else {"KERAS_BACKEND": backend}
    env = {**framework, "OMP_NUM_THREADS": "1"}
    return run(
        folder, *flags, RECOVERING, folder / "out", data, *ends, within=400.0, env=env, forked=True
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of a run to which nothing happens, of a backend and kind of data; each is trained once for all who compare with it."""

    def train(backend: str, data: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        ended = trained(folder, backend, data)
        assert ended.code == 0, ended.stderr
        assert not (folder / "run" / "snapshots").exists()
        return folder

    return functools.cache(train)


def check_equal(one: Path, other: Path) -> None:
    """Weights to the last bit, and all that was logged."""
    first, second = (dict(np.load(folder / "out" / "weights.npz")) for folder in (one, other))
    assert [first[name].tobytes() for name in first] == [second[name].tobytes() for name in second]
    assert (one / "out" / "results.json").read_text() == (
        other / "out" / "results.json"
    ).read_text()
    assert (one / "out" / "log.csv").read_text() == (other / "out" / "log.csv").read_text()


# What ends, on which rank, after which batch: 14 batches in an epoch, 3 epochs in the first `fit`, 2 in the second.
ENDS = {
    "arrays": ("SIGKILL:1:5", "exit:0:20"),
    "planned": ("SIGSEGV:0:18",),
    "pipeline": ("SIGABRT:0:17",),
    "sequence": ("SIGKILL:1:37",),
}
OTHERS_END = ("SIGABRT:0:47",)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("backend", "data"),
    [
        ("tensorflow", "arrays"),
        *(
            pytest.param("tensorflow", data, marks=pytest.mark.long)
            for data in ("planned", "pipeline", "filtered", "generator")
        ),
        pytest.param("jax", "arrays", marks=pytest.mark.long),
        ("torch", "sequence"),
        *(pytest.param("torch", data, marks=pytest.mark.long) for data in ("arrays", "planned")),
        pytest.param("jax", "sequence", marks=pytest.mark.long),
        pytest.param("keras 2", "arrays", marks=pytest.mark.long),
        pytest.param("keras 2", "pipeline", marks=pytest.mark.long),
    ],
)
def test_the_result_is_as_if_nothing_had_happened(
    whole: Callable[[str, str], Path], tmp_path: Path, backend: str, data: str
) -> None:
    is_tensorflow = backend in ("tensorflow", "keras 2")
    ends = ENDS.get(data, OTHERS_END) if is_tensorflow or data == "sequence" else OTHERS_END
    interrupted = trained(tmp_path / "interrupted", backend, data, *ends)
    assert interrupted.code == 0, interrupted.stderr + interrupted.logs
    assert interrupted.stderr.count("goes on from") == len(ends), interrupted.stderr
    check_equal(whole(backend, data), tmp_path / "interrupted")
    generations = list((tmp_path / "interrupted" / "run").glob("generation-*/logs"))
    assert len(generations) == len(ends), generations
    interrupted.check_nothing_left()


def fill(folder: Path) -> None:
    """Writes until the disk of a folder is full."""
    with (folder / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


@pytest.fixture
def lost_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """The folder ``lost`` with the run directory of a run, and what makes it one that takes no more."""
    run_dir = tmp_path / "lost" / "run"
    run_dir.mkdir(parents=True)
    if request.param == "removed":
        yield lambda: shutil.rmtree(run_dir)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(run_dir)]
    subprocess.run(mount, check=True)
    yield lambda: fill(run_dir)
    subprocess.run(["umount", "-l", str(run_dir)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost_disk", "backend"),
    [
        pytest.param("full", "tensorflow", marks=pytest.mark.root),
        ("removed", "tensorflow"),
        pytest.param("full", "jax", marks=[pytest.mark.root, pytest.mark.long]),
    ],
    indirect=["lost_disk"],
)
def test_a_run_goes_on_from_memory_without_its_disk_and_its_reader(
    whole: Callable[[str, str], Path], tmp_path: Path, lost_disk: Callable[[], None], backend: str
) -> None:
    folder = tmp_path / "lost"
    (folder / "stdout").symlink_to("/dev/full")
    flags = ("-n", "2", "--oversubscribe", "--max-restarts", "9", RECOVERING, folder / "out")
    env = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend, "PACE": "0.05"}
    run = Run(folder, *flags, "arrays", "SIGKILL:1:30", env=env, forked=True)
    times = folder / "out" / "times.txt"
    run.until(lambda: (times.exists() and times.read_text().count("\n") > 15) or run.ended(), 200.0)
    lost_disk()
    (folder / "out" / "hurry").touch()
    run.ends(within=400.0)
    assert run.code == 0, run.stderr + run.logs
    assert "goes on from step" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.count("This could not be recorded, and the run went on without: ") == 1
    check_equal(whole(backend, "arrays"), folder)
    run.check_nothing_left()


@pytest.mark.needs("tensorflow")
def test_an_error_of_the_script_is_a_reason_too(tmp_path: Path) -> None:
    ended = trained(tmp_path / "run", "tensorflow", "arrays", "raise:1:5")
    assert ended.code == 0, ended.stderr
    assert "rank 1 failed: RuntimeError: once only. Generation 2 goes on from step" in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_one_worker_goes_on_too(tmp_path: Path, backend: str) -> None:
    """Without a word of the user; JAX and torch leave out most of what several workers need."""
    for name, ends in (("whole", ()), ("interrupted", ("SIGKILL:0:20",))):
        ended = trained(tmp_path / name, backend, "arrays", *ends, flags=(), workers=1)
        assert ended.code == 0, ended.stderr
        assert ended.stderr.count("goes on from") == len(ends), ended.stderr
    check_equal(tmp_path / "whole", tmp_path / "interrupted")


@pytest.mark.slow
def test_restarts_that_nobody_has_asked_for(
    whole: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Workers that are lost are started again, and an error of the script ends the run; what it has kept is no reason to refuse the next one."""
    ended = trained(tmp_path / "run", "tensorflow", "arrays", "SIGKILL:1:5", "raise:0:20", flags=())
    assert ended.code == 1, ended.stderr
    assert ended.stderr.count(". Generation 2 goes on from step") == 1, ended.stderr
    assert "RuntimeError: once only" in ended.stderr
    assert "goes on from step" in ended.stderr.splitlines()[-1]
    again = run(
        tmp_path / "run", "-n", "2", "--oversubscribe", RECOVERING, tmp_path / "run" / "out", "arrays", within=400.0,
        env={"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}, forked=True,
    )  # fmt: skip
    assert again.code == 0, again.stderr
    assert "had not finished: this one begins anew" in again.stderr
    check_equal(whole("tensorflow", "arrays"), tmp_path / "run")


@pytest.mark.slow
def test_a_flipped_bit_is_repaired(whole: Callable[[str, str], Path], tmp_path: Path) -> None:
    flags = ("--on-divergence", "repair")
    ended = trained(tmp_path / "run", "tensorflow", "arrays", "flip:1:9", flags=flags)
    assert ended.code == 0, ended.stderr
    assert "DivergenceError: The replicas have diverged" in ended.stderr
    check_equal(whole("tensorflow", "arrays"), tmp_path / "run")


@pytest.mark.slow
def test_what_always_fails_at_the_same_place_is_given_up(tmp_path: Path) -> None:
    ended = trained(tmp_path / "run", "tensorflow", "arrays", "always")
    assert ended.code == 128 + signal.SIGKILL
    assert (
        "no restart: 3 generations have ended at the same place, so another would too"
        in ended.stderr
    )
    # a machine that is busy commits fewer steps, and the second generation may come further than the first
    assert ended.stderr.count("Generation") >= 2
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_run_is_resumed_after_its_launcher_has_ended(
    whole: Callable[[str, str], Path], tmp_path: Path, how: signal.Signals
) -> None:
    """Stopped, it writes its last snapshot; killed, there is what was copied to the run directory by then, or nothing."""
    folder = tmp_path / "stopped"
    (folder / "out").mkdir(parents=True)
    flags = ("-n", "2", "--oversubscribe", "--max-restarts", "3")
    command = (*flags, RECOVERING, folder / "out", "arrays", "SIGSTOP:1:30", "SIGSTOP:0:30")
    stopped = Run(folder, *command, forked=False)
    stopped.until_exist("out/SIGSTOP-0-30", "out/SIGSTOP-1-30", within=120.0)
    time.sleep(0.5)
    stopped.send(how)
    stopped.ends(within=30.0)
    kept = folder / "run" / "snapshots"
    assert list(kept.glob("snapshot-*")) or how == signal.SIGKILL
    if how == signal.SIGTERM:  # as a scheduler does, which starts the same command again
        assert stopped.code == 75, stopped.stderr
        resumed = run(folder, *command, within=300.0, forked=True)
        assert "the same run was stopped in" in resumed.stderr
    else:
        resumed = run(folder, resume=True, within=300.0, forked=True)
    assert resumed.code == 0, resumed.stderr + resumed.logs
    assert "goes on from step" in resumed.stderr or how == signal.SIGKILL
    check_equal(whole("tensorflow", "arrays"), folder)
    assert json.loads((folder / "run" / "run.json").read_text())["end"] == ["FINISHED", 0]
    again = run(folder, resume=True, within=60.0)
    assert again.code == 2
    assert "has finished: there is nothing to resume" in again.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["tensorflow", *(pytest.param(other, marks=pytest.mark.long) for other in ("jax", "torch"))])  # fmt: skip
def test_a_script_with_other_batches_is_refused(tmp_path: Path, backend: str) -> None:
    """Only a person's word lets it go on, from the beginning of the epoch."""
    env = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    command = ("-n", "2", "--oversubscribe", "--max-restarts", "3", SCRIPTS / "other_batches.py")
    stopped = Run(tmp_path, *command, env={**env, "WAITS": "25"}, forked=True)
    stopped.until_exist("waits", within=120.0)
    stopped.send(signal.SIGTERM)
    assert stopped.ends(within=60.0).code == 75, stopped.stderr
    shutil.copytree(tmp_path / "run", tmp_path / "kept")

    def resume(*words: str, **variables: str) -> Run:
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "kept", tmp_path / "run")
        return run(tmp_path, *words, env={**env, **variables}, forked=True, resume=True, within=180.0)  # fmt: skip

    for changed, says in (
        (
            {"BATCH": "32", "STEPS": "5"},
            "A step of `fit` trains on 32 rows, and trained on 16 when",
        ),
        ({"STEPS": "8"}, "An epoch of `fit` has 8 steps, and had 10 when"),
    ):
        refused = resume(**changed)
        assert refused.code == 1
        assert says in refused.stderr
        assert "`syrtos resume RUN_DIR --force`" in refused.stderr
        assert "no restart: the script does not go with its snapshot." in refused.stderr
        assert f"have changed since the run was begun: {', '.join(changed)}, WAITS." in refused.stderr  # fmt: skip
    place = re.search(r"from step (\d+) \((in|the end of) epoch (\d)\)", stopped.stderr)
    assert place, stopped.stderr
    epoch = int(place[3]) + (place[2] != "in")
    forced = resume("--force", BATCH="32", STEPS="5")
    assert forced.code == 0, forced.stderr
    assert (
        f"trained on 16 before: it goes on from the beginning of epoch {epoch}\n" in forced.stderr
    )
    assert forced.stdout == f"made {int(place[1]) + 5 * (5 - epoch)} in epochs [0, 1, 2, 3]\n"
    as_before = resume()
    assert as_before.stdout == "made 40 in epochs [0, 1, 2, 3]\n"


_BY_THEMSELVES = (
    {"SYRTOS_NEW_INTERPRETERS": "first"},
    ["a new interpreter", "forked from keras tensorflow 1"],
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "expected"),
    [
        ({}, ["forked from keras tensorflow 1"] * 2),
        pytest.param(*_BY_THEMSELVES, marks=pytest.mark.long),
    ],
)
def test_all_generations_are_forked_from_a_process_that_has_imported_the_frameworks(
    tmp_path: Path, killed: dict[str, str], expected: list[str]
) -> None:
    """With the variables that the script sets before it imports them; to the same result as where each worker imports by itself."""
    env = {"KERAS_BACKEND": "tensorflow", "OMP_NUM_THREADS": "2"}
    weights, generations = {}, {}
    for way, more in {"whole": {"SYRTOS_NEW_INTERPRETERS": "1"}, "killed": killed}.items():
        folder = tmp_path / way
        folder.mkdir()
        words = [
            "-n",
            "2",
            "--max-restarts",
            "2",
            SCRIPTS / "standby.py",
            folder,
            *(["whole"] if way == "whole" else []),
        ]
        ended = run(folder, *words, within=300.0, env=env | more)
        assert ended.code == 0, ended.stderr
        ended.check_nothing_left()
        weights[way] = [array.tobytes() for array in np.load(folder / "weights.npz").values()]
        generations[way] = (folder / "generations.txt").read_text().splitlines()
    assert list(generations.values()) == [["a new interpreter"], expected]
    assert weights["killed"] == weights["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.long)])
def test_workers_of_other_backends_are_forked_too(tmp_path: Path, backend: str) -> None:
    ended = run(
        tmp_path, "-n", "2", "--max-restarts", "2", SCRIPTS / "standby.py", tmp_path, "whole",
        within=300.0, env={"KERAS_BACKEND": backend},
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    assert (tmp_path / "generations.txt").read_text() == f"forked from keras {backend} 1\n"


# -- the process that workers are forked from is stopped ---------------------------------------------


def helper_stopped(folder: Path) -> Run:
    """A run whose rank 1 was killed after it has stopped the process that workers are forked from."""
    started = Run(folder, "-n", "2", "--max-restarts", "1", SCRIPTS / "plain.py", "stop_helper")
    started.until_exist("stopped", within=60.0)
    command = Path(f"/proc/{(folder / 'stopped').read_text()}/cmdline").read_text()
    assert "zygote.py" in command
    started.until(lambda: "Generation 2" in started.stderr, within=60.0)
    return started


def test_a_run_goes_on_without_the_process_that_workers_were_forked_from(tmp_path: Path) -> None:
    ended = helper_stopped(tmp_path).ends(within=60.0)
    assert ended.code == 0, ended.stderr
    assert "ended by SIGKILL" in ended.stderr
    assert "the process that imports for them was stopped for 10 s" in ended.stderr
    ended.check_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_waits_for_that_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    waiting = helper_stopped(tmp_path)
    waiting.send(number)
    ended = waiting.ends(within=8.0)  # less than it waits for
    assert ended.code == 128 + number, ended.stderr
    assert "new interpreters" not in ended.stderr
    assert "Traceback" not in ended.stderr
    ended.check_nothing_left()


@pytest.mark.needs("torch")
def test_on_torch_all_may_draw_from_one_generator(tmp_path: Path) -> None:
    """Wherever the snapshot lies: in an epoch, at its end, and at the beginning of one."""

    def digest(folder: str, every: int, step: int) -> str:
        (tmp_path / folder).mkdir()
        words = (SCRIPTS / "drawing.py", str(every), str(step), tmp_path / folder / "mark")
        env = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
        ended = run(tmp_path / folder, "-n", "2", *words, within=200.0, env=env, forked=True)
        assert ended.code == 0, ended.stderr
        assert ended.stderr.count("goes on from step") == (step > 0), ended.stderr
        return ended.stdout

    # epochs end after steps 7, 14, 21 and 28
    undisturbed = digest("undisturbed", 3, 0)
    for number, (every, step) in enumerate(((3, 17), (5, 17), (14, 16))):
        assert digest(str(number), every, step) == undisturbed
