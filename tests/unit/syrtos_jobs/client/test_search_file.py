"""SEARCH.yaml: what it may say, what its tuning job is then asked for, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from syrtos.errors import ConfigurationError
from syrtos_jobs.client import job_file, search_file

GOOD = """
entry_point: train.py
hyperparameters: {epochs: 3}
inputs: {train: data}
objective: {maximize: val_accuracy}
parameters:
  lr: {min: 1e-4, max: 1e-1, scale: log}
  dropout: {min: 0.0, max: 0.5}
  layers: {min: 1, max: 4}
  activation: [relu, tanh]
  flag: [true, null]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "search.yaml"
    path.write_text(text)
    return path


def test_an_earlier_search_is_learnt_from(folder: Path) -> None:
    found = search_file.read(written(folder, GOOD + "warm_start: first-1a2b3c\n"))
    wanted = found.request({"HyperParameters": {}, "AlgorithmSpecification": {}})["WarmStartConfig"]
    assert wanted["ParentHyperParameterTuningJobs"] == [
        {"HyperParameterTuningJobName": "first-1a2b3c"}
    ]
    assert wanted["WarmStartType"] == "IdenticalDataAndAlgorithm"
    assert search_file.read(written(folder, GOOD + "warm_start: [a, b]\n")).parents == ("a", "b")


def test_a_search(folder: Path) -> None:
    found = search_file.read(
        written(
            folder,
            GOOD + "strategy: hyperband\nresource: {max: 9}\njobs: 5\nparallel: 2\nseed: 0\n",
        )
    )
    assert found.config == {
        "Strategy": "Hyperband",
        "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "val_accuracy"},
        "ResourceLimits": {"MaxParallelTrainingJobs": 2, "MaxNumberOfTrainingJobs": 5},
        "ParameterRanges": {
            "ContinuousParameterRanges": [
                {
                    "Name": "lr",
                    "MinValue": "1e-4",
                    "MaxValue": "1e-1",
                    "ScalingType": "Logarithmic",
                },
                {"Name": "dropout", "MinValue": "0.0", "MaxValue": "0.5", "ScalingType": "Auto"},
            ],
            "IntegerParameterRanges": [
                {"Name": "layers", "MinValue": "1", "MaxValue": "4", "ScalingType": "Auto"}
            ],
            "CategoricalParameterRanges": [
                {"Name": "activation", "Values": ['"relu"', '"tanh"']},
                {"Name": "flag", "Values": ["true", "null"]},
            ],
        },
        "TrainingJobEarlyStoppingType": "Off",
        "RandomSeed": 0,
        "StrategyConfig": {"HyperbandStrategyConfig": {"MaxResource": 9}},
    }
    assert found.job == {"entry_point": str(folder / "train.py"), "hyperparameters": {"epochs": 3}}


def test_the_best_as_a_file_for_submit(folder: Path) -> None:
    found = search_file.read(written(folder, GOOD))
    path = folder / "best.yaml"
    path.write_text(
        yaml.safe_dump(
            found.with_values(
                {
                    "lr": "0.01",
                    "activation": '"relu"',
                    "flag": "true",
                    "layers": "2",
                    "dropout": "0.25",
                }
            )
        )
    )
    job = job_file.read(path)
    assert job["entry_point"] == str(folder / "train.py")
    assert job["inputs"] == {"train": "data"}
    assert job["hyperparameters"] == {
        "epochs": 3,
        "lr": 0.01,
        "activation": "relu",
        "flag": True,
        "layers": 2,
        "dropout": 0.25,
    }


def test_a_name_stands_for_the_file_and_its_script(folder: Path) -> None:
    name = search_file.read(written(folder, GOOD)).name
    assert name == search_file.read(written(folder, GOOD + "\n# a comment\n")).name
    assert name.startswith("search-")
    assert len(name) <= 32
    assert name != search_file.read(written(folder, GOOD + "seed: 3\n")).name
    (folder / "train.py").write_text("print(2)")
    assert name != search_file.read(written(folder, GOOD)).name


@pytest.mark.parametrize("source", ["", "source_dir: .\n"])
def test_a_name_stands_for_the_files_that_travel_and_for_the_folder(
    tmp_path: Path, source: str
) -> None:
    def name(folder: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "train.py").write_text("import data")
        return search_file.read(written(tmp_path / folder, GOOD + source)).name

    first = name("a")
    assert first != name("b")
    (tmp_path / "a" / "runs").mkdir()
    (tmp_path / "a" / "runs" / "best.yaml").touch()
    assert name("a") == first
    (tmp_path / "a" / "lib").mkdir()
    (tmp_path / "a" / "lib" / "data.py").write_text("1")
    second = name("a")
    (tmp_path / "a" / "lib" / "data.py").write_text("2")
    assert len({first, second, name("a")}) == 3


def test_what_lies_beside_a_script_travels(folder: Path) -> None:
    for name in (".hidden", "k.txt", "data", "helper.py"):
        (folder / name).touch()
    (folder / "link").symlink_to("/etc/hostname")
    found = search_file.read(written(folder, GOOD.replace("train: data", f"train: {folder}/data")))
    assert found.job["dependencies"] == [str(folder / "helper.py"), str(folder / "k.txt")]
    assert found.alone == ""
    assert "dependencies" not in search_file.read(written(folder, GOOD + "source_dir: .\n")).job
    with (folder / "huge").open("wb") as file:
        file.truncate(65 << 20)
    found = search_file.read(written(folder, GOOD))
    assert "dependencies" not in found.job
    assert "set `source_dir: .`" in found.alone


def test_a_regular_expression_of_ones_own(folder: Path) -> None:
    text = GOOD.replace("{maximize: val_accuracy}", "{minimize: score, regex: 'score is (.*)'}")
    assert search_file.read(written(folder, text)).job["metric_definitions"] == [
        {"Name": "score", "Regex": "score is (.*)"}
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("objective:", "objectives:"), "Unknown: objectives"),
        (("objective: {maximize: val_accuracy}", ""), "needs objective"),
        (("{maximize: val_accuracy}", "val_accuracy"), "`objective` is {maximize: METRIC}"),
        (("{maximize: val_accuracy}", "{maximize: a, minimize: b}"), "`objective` is"),
        (
            ("scale: log", "scales: log"),
            "lr has a list of values, or min and max, and may have scale. Unknown: scales",
        ),
        (
            ("scale: log", "scale: logs"),
            "scale of lr is auto, linear, log, reverse_log. Received: 'logs'",
        ),
        (
            ("min: 1e-4", "min: 1"),
            "The range of lr ends before it begins: min is 1, and max is 0.1",
        ),
        (("min: 1e-4", "min: 0.0"), "logarithmic scale needs a min above 0: lr has 0"),
        (("min: 1e-4, max", "max"), "lr has a list of values, or min and max"),
        (("[relu, tanh]", "[]"), "1 to 30 values. Received for activation: 0"),
        (
            ("entry_point: train.py", "entry_point: train.py\nstrategy: annealing"),
            "`strategy` is random, grid, bayesian, hyperband. Received: 'annealing'",
        ),
        (
            ("entry_point: train.py", "entry_point: train.py\nstrategy: grid"),
            "dropout, lr is continuous",
        ),
        (
            ("entry_point: train.py", "entry_point: train.py\njobs: 0"),
            "`jobs` is a whole number of at least 1. Received: 0",
        ),
        (
            ("entry_point: train.py", "entry_point: train.py\nresource: {max: 9}"),
            "is for the strategy Hyperband",
        ),
        (("epochs: 3", "lr: 3"), "Both: lr"),
        (
            (GOOD[GOOD.index("\nparameters") :], "\nparameters: {}\n"),
            "`parameters` names at least one",
        ),
        ((GOOD, "a: ["), "can't be read"),
        ((GOOD, "a: ["), 'search.yaml", line 1'),
        (
            ("entry_point: train.py", "entry_point: train.py\nparalel: 2"),
            "Unknown: paralel (did you mean parallel?). ",
        ),
    ],
)
def test_mistakes(folder: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(ConfigurationError) as raised:
        search_file.read(written(folder, GOOD.replace(*change)))
    assert said in str(raised.value)


def test_a_grid_of_lists_and_whole_numbers_needs_no_number_of_jobs(folder: Path) -> None:
    text = "entry_point: train.py\nobjective: {minimize: loss}\nstrategy: grid\nparameters: {a: [1, 2], b: {min: 1, max: 3}}\n"
    assert search_file.read(written(folder, text)).config["ResourceLimits"] == {
        "MaxParallelTrainingJobs": 1
    }
