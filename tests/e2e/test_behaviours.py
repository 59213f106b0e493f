"""What a user expects of a run, each checked by every worker from inside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import registry

import forking
from named_checks import CheckedRun
from syrtos.cli.summary import print_summary

BIN = Path(sys.executable).parent
SCRIPT = str(Path(__file__).parent / "scripts" / "behaviours.py")
ROOT = Path(__file__).parents[2]


WITHOUT_FLAGS = (
    # before the script chooses a strategy
    "loop_in_a_graph", "draws_in_a_loop", "loop_on_own_batches", "loops_on_rows_of_a_table", "functions_keep_their_traces",
    "loops_of_old_optimizers", "loop_whose_batches_begin_to_differ", "loop_on_an_iterator_of_its_own",
    "dropout", "noise_of_a_step", "batchnorm", "files", "own_folders", "fresh_seeds", "threads", "backup", "own_iterator",
    "draws_by_a_constant_seed", "draws_for_rows", "predictions_of_all_kinds", "draws_for_a_batch", "one_wants_to_stop", "different_weights",
    "different_weights_without_fit", "own_callback_list", "custom_strategy_loop", "values_of_a_strategy",
    "errors_name_lines_of_the_script", "libraries_that_write_beside_rank_0",
    "division_that_fails", "iterators_that_are_not_tuned", "evaluated_before_weights_are_loaded", "imports_that_are_put_off", "metrics_begin_as_they_are_made",
)  # fmt: skip
OF_LEARNING_RATES = (
    "learning_rate", "learning_rate_accumulated", "learning_rate_unknown_length", "learning_rate_resumed", "learning_rate_of_a_loaded_model",
)  # fmt: skip


def run(folder: Path, names: Sequence[str], *flags: str, workers: int = 2) -> CheckedRun:
    words = forking.syrtos_run(
        folder / "run", workers, SCRIPT, ",".join(names), folder, flags=flags
    )
    return CheckedRun(forking.run(words), names)


@pytest.fixture(scope="module")
def without_flags(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckedRun:
    names = registry.chosen(request, "test_behaviours_without_flags")
    return run(tmp_path_factory.mktemp("without_flags"), names, workers=3)


@pytest.fixture(scope="module")
def with_a_warm_up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckedRun:
    names = registry.chosen(request, "test_learning_rate_warms_up")
    return run(
        tmp_path_factory.mktemp("warm_up"), names, "--scale-lr", "linear", "--warmup-epochs", "2"
    )


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", WITHOUT_FLAGS)
def test_behaviours_without_flags(without_flags: CheckedRun, name: str) -> None:
    without_flags.check(name)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--sync-batchnorm",)])
def test_batchnorm_is_that_of_one_process(tmp_path: Path, flags: tuple[str, ...]) -> None:
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        run(tmp_path / str(workers), ["batchnorm"], *flags, workers=workers).check_all()
    one, two = (dict(np.load(tmp_path / str(n) / "batchnorm.npz")) for n in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_LEARNING_RATES)
def test_learning_rate_warms_up(with_a_warm_up: CheckedRun, name: str) -> None:
    with_a_warm_up.check(name)


@pytest.mark.slow
def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One progress display, accuracy as in one process, a summary of one screen, no syrtos in the script."""
    script = ROOT / "examples" / "digits.py"
    assert "syrtos" not in script.read_text().split('"""')[2]
    words = [str(script), "--epochs", "5"]
    plain = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=200, check=True
    )
    command = [str(BIN / "syrtos"), "run", "-n", "2", "--run-dir", str(tmp_path / "run"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    alone, together = (
        float(text.rsplit("test accuracy: ", 1)[1].split()[0])
        for text in (plain.stdout, done.stdout)
    )
    assert together >= 0.95
    assert together == pytest.approx(alone, abs=1e-3)
    assert done.stdout.count("Epoch 1/") == 1
    for word in ("workers", "steps", "samples/s", "spent on", "run directory"):
        assert word in done.stderr
    print_summary(tmp_path / "run", full=True)
    full = capsys.readouterr().err
    for word in ("compute", "exchange", "waiting", "input"):
        assert word in full
    assert len(list((tmp_path / "run" / "ledger").glob("rank-*.jsonl"))) == 2
