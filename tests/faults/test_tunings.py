"""Tuning jobs of a service, whose trials are scripts of the shell: how they end, and what they survive."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import served_jobs as jobs
from botocore.exceptions import ClientError
from served_jobs import served
from served_tunings import described, final, request, trials, until

pytestmark = pytest.mark.slow

_COUNTS = "TrainingJobStatusCounters"


def test_a_killed_service_goes_on_where_it_was(tmp_path: Path) -> None:
    """With the finished trials, with those that run, and with the same suggestions as a service that nobody kills."""
    script = 'sleep 0.5; echo "loss: $x"; sleep 0.5'
    home = tmp_path / "killed"
    process, url = jobs.serve(home, capacity=2)
    asked = request(tmp_path, "tune", script, trials=6, parallel=2, Strategy="Bayesian")
    jobs.client(home, url, "sagemaker").create_hyper_parameter_tuning_job(**asked)
    before: list[str] = []
    for count in (1, 3):
        until(
            jobs.client(home, url, "sagemaker"),
            "tune",
            lambda found, count=count: found[_COUNTS]["Completed"] >= count,
        )
        found = trials(jobs.client(home, url, "sagemaker"), "tune")
        before = [trial["TrainingJobName"] for trial in found]
        jobs.kill(process)
        process, url = jobs.serve(home, capacity=2)
    try:
        ended = final(jobs.client(home, url, "sagemaker"), "tune")
        after = trials(jobs.client(home, url, "sagemaker"), "tune")
    finally:
        jobs.kill(process)
        jobs.end_all(home)
    assert ended["HyperParameterTuningJobStatus"] == "Completed"
    assert ended[_COUNTS]["Completed"] == ended["ObjectiveStatusCounters"]["Succeeded"] == 6
    assert {*before} <= {trial["TrainingJobName"] for trial in after}
    assert [trial["TrainingJobName"].split("-")[1] for trial in after] == [
        f"{k:03d}" for k in range(1, 7)
    ]
    values = {
        trial["TrainingJobName"]: trial["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]
        for trial in after
    }
    assert all(
        values[trial["TrainingJobName"]] == float(trial["TunedHyperParameters"]["x"])
        for trial in after
    )
    assert ended["BestTrainingJob"]["TrainingJobName"] == min(values, key=lambda name: values[name])


def six_trials(folder: Path, script: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What Describe says of a random search of six trials that has ended, and its trials."""
    with served(folder / "home", capacity=2) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_hyper_parameter_tuning_job(
            **request(folder, "some", script, trials=6, parallel=2)
        )
        return final(sagemaker, "some"), trials(sagemaker, "some")


def test_a_trial_that_fails_counts_and_the_others_go_on(tmp_path: Path) -> None:
    script = 'echo "loss: 1"; [ $kind = two ] || exit 3'
    found, some = six_trials(tmp_path, script)
    kinds = [trial["TunedHyperParameters"]["kind"] for trial in some]
    assert found["HyperParameterTuningJobStatus"] == "Completed"
    assert found[_COUNTS] | {"InProgress": 0} == found[_COUNTS]
    assert (
        found[_COUNTS]["NonRetryableError"]
        == found["ObjectiveStatusCounters"]["Failed"]
        == kinds.count("one")
        > 0
    )
    assert found[_COUNTS]["Completed"] == kinds.count("two") > 0
    assert all(
        ("FailureReason" in trial) == (trial["TunedHyperParameters"]["kind"] == "one")
        for trial in some
    )


def test_a_search_without_any_result_fails_and_says_what_was_printed(tmp_path: Path) -> None:
    with served(tmp_path / "home", capacity=2) as client:
        sagemaker = client("sagemaker")
        fails = request(tmp_path, "fails", "echo broken >&2; exit 1", trials=9, parallel=2)
        silent = request(
            tmp_path,
            "silent",
            'echo "val_loss: 0.5 accuracy=1e-3"; echo "at 12:30"',
            trials=2,
            parallel=2,
        )
        sagemaker.create_hyper_parameter_tuning_job(**fails)
        found = final(sagemaker, "fails")
        sagemaker.create_hyper_parameter_tuning_job(**silent)
        other = final(sagemaker, "silent")
    assert (
        found["HyperParameterTuningJobStatus"] == other["HyperParameterTuningJobStatus"] == "Failed"
    )
    assert 5 <= found[_COUNTS]["NonRetryableError"] <= 6  # it gives up
    assert "after" in found["FailureReason"]
    assert "broken" in found["FailureReason"]
    assert (
        "No training job printed the metric loss (printed: val_loss, accuracy)"
        in other["FailureReason"]
    )
    assert "BestTrainingJob" not in other


def test_a_trial_that_diverges_has_no_objective_and_is_never_best(tmp_path: Path) -> None:
    script = 'echo "loss: 0.0010"; if [ $kind = two ]; then echo "loss: nan"; echo "loss: inf"; else echo "loss: 5"; fi'
    found, some = six_trials(tmp_path, script)
    succeeded = {trial["TunedHyperParameters"]["kind"]: trial["ObjectiveStatus"] for trial in some}
    assert succeeded == {"one": "Succeeded", "two": "Failed"}
    assert found["BestTrainingJob"]["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == 5
    assert all(trial["TrainingJobStatus"] == "Completed" for trial in some)


def test_stopping_ends_running_trials_and_keeps_results(tmp_path: Path) -> None:
    quick = f'echo "loss: $x"; mkdir {tmp_path}/first 2>/dev/null || sleep 300'  # one trial ends by itself
    with served(tmp_path / "home", capacity=2) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_hyper_parameter_tuning_job(
            **request(tmp_path, "stop", quick, trials=9, parallel=2)
        )
        until(
            sagemaker,
            "stop",
            lambda found: found[_COUNTS]["Completed"] == 1 and len(trials(sagemaker, "stop")) == 3,
        )
        with pytest.raises(ClientError, match="stop it first"):
            sagemaker.delete_hyper_parameter_tuning_job(HyperParameterTuningJobName="stop")
        done = next(
            trial["TrainingJobName"]
            for trial in trials(sagemaker, "stop")
            if trial["TrainingJobStatus"] == "Completed"
        )
        with pytest.raises(ClientError, match="belongs to tuning job stop"):
            sagemaker.delete_training_job(TrainingJobName=done)
        began = time.monotonic()
        sagemaker.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName="stop")
        assert described(sagemaker, "stop")["HyperParameterTuningJobStatus"] in (
            "Stopping",
            "Stopped",
        )
        found, some = final(sagemaker, "stop"), trials(sagemaker, "stop")
        assert time.monotonic() - began < 200  # the trials would sleep for 300 s
        with pytest.raises(ClientError, match="in status Stopped"):
            sagemaker.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName="stop")
        sagemaker.delete_hyper_parameter_tuning_job(HyperParameterTuningJobName="stop")
        with pytest.raises(ClientError, match="can't find a tuning job"):
            described(sagemaker, "stop")
        assert (
            sagemaker.describe_training_job(TrainingJobName=done)["TrainingJobStatus"]
            == "Completed"
        )
    assert found["HyperParameterTuningJobStatus"] == "Stopped"
    assert (found[_COUNTS]["Completed"], found[_COUNTS]["InProgress"]) == (1, 0)
    assert found[_COUNTS]["Stopped"] == len(some) - 1
    assert "BestTrainingJob" in found


def test_a_grid_tries_each_combination_once(tmp_path: Path) -> None:
    ranges = {
        "IntegerParameterRanges": [{"Name": "x", "MinValue": "1", "MaxValue": "2"}],
        "CategoricalParameterRanges": [{"Name": "kind", "Values": ["one", "two"]}],
    }
    asked = request(
        tmp_path,
        "grid",
        'echo "loss: $x"',
        trials=None,
        parallel=2,
        Strategy="Grid",
        ParameterRanges=ranges,
    )
    with served(tmp_path / "home", capacity=2) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_hyper_parameter_tuning_job(**asked)
        assert final(sagemaker, "grid")["HyperParameterTuningJobStatus"] == "Completed"
        tried = [
            (trial["TunedHyperParameters"]["kind"], trial["TunedHyperParameters"]["x"])
            for trial in trials(sagemaker, "grid")
        ]
        worst = sagemaker.list_training_jobs_for_hyper_parameter_tuning_job(
            HyperParameterTuningJobName="grid",
            SortBy="FinalObjectiveMetricValue",
            SortOrder="Descending",
            MaxResults=2,
        )
        with pytest.raises(ClientError, match="x is continuous"):
            sagemaker.create_hyper_parameter_tuning_job(
                **request(tmp_path, "no-grid", "true", Strategy="Grid")
            )
    assert tried == [("one", "1"), ("one", "2"), ("two", "1"), ("two", "2")]
    assert [
        t["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]
        for t in worst["TrainingJobSummaries"]
    ] == [
        2.0,
        2.0,
    ]
    assert worst["NextToken"] == "2"


@pytest.mark.long
def test_hyperband_ends_bad_trials_early(tmp_path: Path) -> None:
    script = 'for k in 1 2 3 4 5 6 7 8 9; do echo "loss: $x"; sleep 0.4; done'
    config = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    asked = request(
        tmp_path, "band", script, trials=8, parallel=2, Strategy="Hyperband", StrategyConfig=config
    )
    with served(tmp_path / "home", capacity=2) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_hyper_parameter_tuning_job(**asked)
        found, some = final(sagemaker, "band"), trials(sagemaker, "band")
    assert found["HyperParameterTuningJobStatus"] == "Completed"
    assert found[_COUNTS]["Stopped"] >= 1
    assert (
        found[_COUNTS]["Completed"] + found[_COUNTS]["Stopped"]
        == 8
        == found["ObjectiveStatusCounters"]["Succeeded"]
    )
    ends = {
        status: [
            float(t["TunedHyperParameters"]["x"]) for t in some if t["TrainingJobStatus"] == status
        ]
        for status in ("Completed", "Stopped")
    }
    assert min(ends["Completed"]) < min(ends["Stopped"])
    assert found["BestTrainingJob"]["TrainingJobStatus"] == "Completed"


def test_a_search_ends_at_its_target(tmp_path: Path) -> None:
    script = f'echo "loss: 0.1"; mkdir {tmp_path}/first 2>/dev/null || sleep 300'
    criteria = {"TargetObjectiveMetricValue": 0.2}
    asked = request(
        tmp_path, "target", script, trials=9, parallel=2, TuningJobCompletionCriteria=criteria
    )
    with served(tmp_path / "home", capacity=2) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_hyper_parameter_tuning_job(**asked)
        found = final(sagemaker, "target", 60)
    assert found["HyperParameterTuningJobStatus"] == "Completed"
    assert found[_COUNTS]["Completed"] == 1
    assert found[_COUNTS]["Stopped"] in (1, 2)


def warm_start(*parents: str, kind: str = "IdenticalDataAndAlgorithm") -> dict[str, Any]:
    names = [{"HyperParameterTuningJobName": name} for name in parents]
    return {"WarmStartType": kind, "ParentHyperParameterTuningJobs": names}


@pytest.mark.long
def test_earlier_searches_are_learnt_from(tmp_path: Path) -> None:
    """What was found counts in a search of the same data, and is tried first in one of other data."""
    script = 'echo "loss: $x"'
    with served(tmp_path / "home", capacity=2) as client:
        sagemaker = client("sagemaker")

        def searched(
            name: str, script: str, **facts: Any
        ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            warm = {"WarmStartConfig": facts.pop("warm")} if "warm" in facts else {}
            sagemaker.create_hyper_parameter_tuning_job(
                **request(tmp_path, name, script, **facts), **warm
            )
            return final(sagemaker, name), trials(sagemaker, name)

        _, first = searched("first", script, trials=12, parallel=2)
        best = min(first, key=lambda trial: float(trial["TunedHyperParameters"]["x"]))
        found, some = searched(
            "same", 'echo "loss: 5"', trials=2, Strategy="Bayesian", warm=warm_start("first")
        )
        assert found["WarmStartConfig"] == warm_start("first")
        assert found["OverallBestTrainingJob"]["TrainingJobName"] == best["TrainingJobName"]
        assert found["OverallBestTrainingJob"]["TuningJobName"] == "first"
        assert found["BestTrainingJob"]["TrainingJobName"] == some[0]["TrainingJobName"]
        # of a search that has itself learnt from another
        found, some = searched(
            "third", script, trials=2, warm=warm_start("same", kind="TransferLearning")
        )
        assert some[0]["TunedHyperParameters"] == best["TunedHyperParameters"]
        assert "OverallBestTrainingJob" not in found
        # what the third was told of other data does not count here
        found, _ = searched("fourth", script, trials=1, warm=warm_start("third"))
        assert found["OverallBestTrainingJob"]["TuningJobName"] in ("third", "fourth")
        elsewhere = [{"Name": "x", "MinValue": "2", "MaxValue": "3"}]
        with pytest.raises(ClientError, match="nothing to learn from first"):
            searched(
                "far",
                script,
                warm=warm_start("first"),
                ParameterRanges={"ContinuousParameterRanges": elsewhere},
            )
        maximized = {"HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "loss"}}
        with pytest.raises(ClientError, match="first: minimize loss; now: maximize loss"):
            searched("other", script, warm=warm_start("first"), **maximized)


def test_requests_that_are_refused(tmp_path: Path) -> None:
    def error(asked: dict[str, Any]) -> str:
        with pytest.raises(ClientError) as raised:
            sagemaker.create_hyper_parameter_tuning_job(**asked)
        return str(raised.value)

    with served(tmp_path / "home", capacity=1) as client:
        sagemaker = client("sagemaker")
        asked = request(tmp_path, "one", "true", trials=1)
        sagemaker.create_hyper_parameter_tuning_job(**asked)
        assert "ResourceInUse" in error(asked)
        assert "ValidationException" in error(
            asked | {"HyperParameterTuningJobName": "under_score"}
        )
        warm = {"HyperParameterTuningJobName": "warm"}
        assert "has not ended yet" in error(asked | warm | {"WarmStartConfig": warm_start("one")})
        assert "There is no tuning job nowhere to learn from" in error(
            asked | warm | {"WarmStartConfig": warm_start("nowhere")}
        )
        big = request(tmp_path, "big", "true")
        big["TrainingJobDefinition"]["ResourceConfig"]["InstanceCount"] = 2
        assert "ResourceLimitExceeded" in error(big)
        assert "satisfy enum value set" in error(
            request(tmp_path, "other", "true", Strategy="Annealing")
        )
        arn = described(sagemaker, "one")["HyperParameterTuningJobArn"]
        sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "digits"}])
        assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "digits"}]
        listed = sagemaker.list_hyper_parameter_tuning_jobs(
            NameContains="on", StatusEquals="InProgress"
        )
        assert [
            one["HyperParameterTuningJobName"] for one in listed["HyperParameterTuningJobSummaries"]
        ] == ["one"]
