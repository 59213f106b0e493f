"""What a request for a tuning job asks for, what its trials find, and what it decides to do next."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos_jobs.observation.metrics import Metrics
from syrtos_jobs.tuning import pruning, requests, search, space, suggestion, trials, warm_start
from syrtos_jobs.tuning.decision import SearchDecision, decide
from syrtos_jobs.tuning.search import Search
from syrtos_jobs.tuning.trials import SearchTrial

REQUEST: dict[str, Any] = {
    "HyperParameterTuningJobName": "tune",
    "HyperParameterTuningJobConfig": {
        "Strategy": "Bayesian",
        "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "accuracy"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 10, "MaxParallelTrainingJobs": 2},
        "ParameterRanges": {
            "ContinuousParameterRanges": [
                {"Name": "x", "MinValue": "0", "MaxValue": "1", "ScalingType": "Linear"}
            ]
        },
    },
    "TrainingJobDefinition": {
        "StaticHyperParameters": {"epochs": "3"},
        "AlgorithmSpecification": {
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "other", "Regex": "other (.*)"}],
        },
        "CheckpointConfig": {"S3Uri": "s3://b/checkpoints/"},
        "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
    },
}


WARM = {
    "WarmStartType": "TransferLearning",
    "ParentHyperParameterTuningJobs": [
        {"HyperParameterTuningJobName": name} for name in ("a", "b", "a")
    ],
}


def asked(**config: Any) -> dict[str, Any]:
    request = copy.deepcopy(REQUEST)
    request["HyperParameterTuningJobConfig"] |= config
    return request


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({**asked(Strategy="Hyperband"), "WarmStartConfig": WARM}, "for the strategies Bayesian and Random"),
        ({**REQUEST, "TrainingJobDefinitions": [{}]}, "does not support TrainingJobDefinitions"),
        ({**REQUEST, "Autotune": {"Mode": "Enabled"}}, "does not support Autotune"),
        ({k: v for k, v in REQUEST.items() if k != "TrainingJobDefinition"}, "needs a TrainingJobDefinition"),
        (asked(ParameterRanges={"AutoParameters": [{"Name": "x"}]}), "does not support AutoParameters"),
        (asked(ParameterRanges={}), "nothing to tune"),
        (asked(ParameterRanges={"CategoricalParameterRanges": [{"Name": "epochs", "Values": ["1"]}]}), "Both: epochs"),
        (asked(Strategy="Grid"), "x is continuous"),
        (asked(Strategy="Hyperband", TrainingJobEarlyStoppingType="Auto"), "Hyperband ends trials itself"),
        (asked(StrategyConfig={"HyperbandStrategyConfig": {"MinResource": 1}}), "is for the strategy Hyperband"),
        (asked(Strategy="Hyperband", StrategyConfig={"HyperbandStrategyConfig": {"MinResource": 9, "MaxResource": 3}}), "at most MaxResource"),
        (asked(ResourceLimits={"MaxParallelTrainingJobs": 1}), "would never end"),
        (asked(HyperParameterTuningJobObjective=None), "needs a HyperParameterTuningJobObjective"),
        (asked(TuningJobCompletionCriteria={"ConvergenceDetected": {"CompleteOnConvergence": "Enabled"}}), "does not support ConvergenceDetected"),
    ],
)  # fmt: skip
def test_what_is_refused(request_: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        search.read(request_, 0)


def test_a_trials_request() -> None:
    found = requests.of_trial(REQUEST, "accuracy", "tune-001-abc", {"x": "0.5"})
    assert found["HyperParameters"] == {
        "epochs": "3",
        "_tuning_objective_metric": "accuracy",
        "x": "0.5",
    }
    assert found["CheckpointConfig"]["S3Uri"] == "s3://b/checkpoints/tune-001-abc"
    assert found["TuningJobArn"].endswith(":hyper-parameter-tuning-job/tune")
    assert [one["Name"] for one in found["AlgorithmSpecification"]["MetricDefinitions"]] == [
        "other",
        "accuracy",
    ]
    kept = requests.of_trial(REQUEST, "other", "tune-001-abc", {})
    assert kept["AlgorithmSpecification"]["MetricDefinitions"] == [
        {"Name": "other", "Regex": "other (.*)"}
    ]


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
        (
            "accuracy",
            "29/29 - 0s - 12ms/step - accuracy: 0.9123 - loss: 0.3 - val_accuracy: 0.5",
            0.9123,
        ),
        (
            "val_accuracy",
            "29/29 - 0s - 12ms/step - accuracy: 0.9123 - loss: 0.3 - val_accuracy: 0.5",
            0.5,
        ),
        ("loss", "1/9 ━━━ loss: 0.9\b\b\b9/9 ━━━ loss: 0.2500 - val_loss: 7", 0.25),
        ("loss", "loss=1e-05", 1e-5),
        ("loss", "loss = -.5", -0.5),
        ("validation:mae", "validation:mae: 3", 3.0),
        ("loss", "val_loss: 1 my-loss: 2 losses: 3", None),
        ("loss", "loss: 3. Done", 3.0),
        ("loss", "loss=0.5, accuracy=1", 0.5),
        ("best", "best: 1.2.3", None),
        ("best", "best = 12:30", None),
        ("best", "best: 2024-01-31", None),
        ("best", "best: 5ms", None),
        ("best", "best: information", None),
    ],
)
def test_metrics_are_found_by_name(metric: str, line: str, value: float | None) -> None:
    found = Metrics([{"Name": metric, "Regex": requests.default_regex(metric)}]).take([line])
    assert found == ([] if value is None else [(metric, value)])


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "1e999"])
def test_a_metric_that_diverges_has_no_value(text: str) -> None:
    found = Metrics([{"Name": "loss", "Regex": requests.default_regex("loss")}])
    found.take(["loss: 0.0010", f"9/9 - loss: {text} - val_loss: 1"])
    assert found.values == {}


def of(**facts: Any) -> Search:
    parameters = space.read(REQUEST["HyperParameterTuningJobConfig"]["ParameterRanges"])
    defaults: dict[str, Any] = {
        "space": parameters,
        "strategy": "Bayesian",
        "metric": "m",
        "maximize": False,
        "trials": 6,
        "parallel": 2,
    }
    return Search(name="s", **(defaults | facts))


def done(
    number: int, objective: float | None, status: str = "Completed", **facts: Any
) -> SearchTrial:
    ended = None if status == "InProgress" else float(number)
    return SearchTrial(
        number=number,
        name=f"s-{number}",
        tuned={"x": repr(number / 100)},
        status=status,
        objective=objective,
        ended=ended,
        **facts,
    )


def test_counters_and_the_best() -> None:
    some = [
        done(1, 0.5), done(2, 0.2, "Stopped"), done(3, 0.1, "Failed", failure="AlgorithmError: x"), done(4, 0.0, "InProgress"),
        done(5, None), done(6, None, "Stopped"), done(7, None, "Failed", failure="InternalServerError: x"), done(8, 0.2),
    ]  # fmt: skip
    assert trials.status_counters(some) == {
        "Completed": 3,
        "InProgress": 1,
        "RetryableError": 1,
        "NonRetryableError": 1,
        "Stopped": 2,
    }
    assert trials.objective_counters(some) == {"Succeeded": 3, "Pending": 1, "Failed": 4}
    assert trials.best(of(), some) == some[1]
    assert trials.best(of(maximize=True), some) == some[0]
    assert trials.best(of(), some[2:4]) is None
    assert trials.not_improving(of(), some) == 1


def test_decisions() -> None:
    running = done(3, None, "InProgress")
    assert decide(of(), [], False, 0) == SearchDecision(start=2)
    assert decide(of(), [done(1, 1.0), running], False, 0) == SearchDecision(start=1)
    assert decide(of(trials=2), [done(1, 1.0), running], False, 0) == SearchDecision()
    assert decide(
        of(trials=2), [done(1, 1.0), done(2, None, "Failed")], False, 0
    ) == SearchDecision(status="Completed")
    assert decide(of(), [running], True, 0) == SearchDecision(stop=True)
    assert decide(of(), [done(1, 1.0)], True, 0) == SearchDecision(status="Stopped")
    assert decide(of(), [], True, 0) == SearchDecision(status="Stopped")


def test_completion_criteria() -> None:
    some = [done(1, 0.5), done(2, 0.6), done(3, 0.7), done(4, None, "InProgress")]
    assert decide(of(target=0.5), some, False, 0) == SearchDecision(stop=True)
    assert decide(of(target=0.5), some[:3], False, 0) == SearchDecision(status="Completed")
    assert decide(of(target=0.4), some, False, 0).start == 1
    assert decide(of(target=0.7, maximize=True), some, False, 0) == SearchDecision(stop=True)
    assert decide(of(seconds=120), some, False, 121) == SearchDecision(stop=True)
    assert decide(of(seconds=120), some[3:], False, 119).start == 1
    assert decide(of(seconds=120), [], False, 121).status == "Failed"
    assert decide(of(patience=2), some, False, 0) == SearchDecision(stop=True)
    assert decide(of(patience=3), some, False, 0).start == 1


def test_a_search_whose_trials_all_fail_gives_up() -> None:
    failed = [done(k, None, "Failed", failure=f"AlgorithmError: {k}") for k in range(1, 6)]
    assert decide(of(trials=99), failed[:4], False, 0) == SearchDecision(start=2)
    found = decide(of(trials=99), failed, False, 0)
    assert found.status == "Failed"
    assert "No training job succeeded after 5 attempts" in found.reason
    assert "AlgorithmError: 5" in found.reason
    running = done(6, None, "InProgress")
    assert (
        decide(of(trials=99), [*failed, running], False, 0) == SearchDecision()
    )  # which may succeed yet
    assert decide(
        of(trials=99),
        [*failed, dataclasses.replace(running, status="Completed", objective=1.0)],
        False,
        0,
    ) == SearchDecision(start=2)
    assert decide(of(trials=1), failed[:1], False, 0).reason.startswith(
        "No training job succeeded after 1 attempt."
    )


@given(
    st.lists(st.sampled_from(["InProgress", "Completed", "Failed", "Stopped"]), max_size=8),
    st.booleans(),
    st.integers(1, 8),
    st.integers(1, 4),
)
def test_a_search_always_gets_to_an_end(
    statuses: list[str], stopping: bool, most: int, parallel: int
) -> None:
    """Whatever its trials do: it never has too many, and ends when none is left to start or to wait for."""
    wanted = of(trials=most, parallel=parallel)
    some = [
        done(k, 1.0 if status == "Completed" else None, status)
        for k, status in enumerate(statuses[:most], 1)
    ]
    found = decide(wanted, some, stopping, 0)
    active = sum(trial.active for trial in some)
    assert len(some) + found.start <= most
    assert active + found.start <= max(parallel, active)
    assert not (found.status and active)
    assert found.start or found.status or active


def test_a_search_is_the_same_with_the_same_seed_and_after_a_restart() -> None:
    for strategy in ("Random", "Bayesian", "Hyperband"):
        wanted = of(strategy=strategy, seed=5)
        some: list[SearchTrial] = []
        for k in range(1, 16):
            tuned = suggestion.suggest(wanted, some, k)
            assert tuned == suggestion.suggest(wanted, copy.deepcopy(some), k)
            some.append(done(k, abs(float(tuned["x"]) - 0.3)))
            some[-1] = dataclasses.replace(some[-1], tuned=tuned)
        assert suggestion.suggest(of(strategy=strategy, seed=6), [], 1) != some[0].tuned


def test_bayesian_search_comes_closer_than_random_search() -> None:
    far = {}
    for strategy in ("Random", "Bayesian"):
        distances = []
        for seed in range(3):
            wanted, some = of(strategy=strategy, seed=seed), list[SearchTrial]()
            for k in range(1, 41):
                tuned = suggestion.suggest(wanted, some, k)
                some.append(dataclasses.replace(done(k, abs(float(tuned["x"]) - 0.3)), tuned=tuned))
            distances.append(sum(trial.objective or 0.0 for trial in some[20:]) / 20)
        far[strategy] = sum(distances) / 3
    assert far["Bayesian"] < far["Random"] / 2


def test_a_warm_start_is_read() -> None:
    found = search.read({**REQUEST, "WarmStartConfig": WARM}, 0)
    assert (found.parents, found.transfer) == (("a", "b"), True)
    assert (
        search.read(
            {**REQUEST, "WarmStartConfig": {**WARM, "WarmStartType": "IdenticalDataAndAlgorithm"}},
            0,
        ).transfer
        is False
    )
    assert search.read(REQUEST, 0).parents == ()


def test_a_search_that_knows_an_earlier_one_begins_near_its_best() -> None:
    distances: dict[int, float] = {}
    for count in (0, 40):
        before = [
            dataclasses.replace(done(k, abs(k / 40 - 0.3)), tuned={"x": repr(k / 40)})
            for k in range(1, count + 1)
        ]
        first = [float(suggestion.suggest(of(seed=seed), [], 1, before)["x"]) for seed in range(20)]
        distances[count] = sum(abs(x - 0.3) for x in first) / 20
    assert distances[40] < distances[0] / 2


@pytest.mark.parametrize("strategy", ["Random", "Bayesian"])
def test_points_of_an_earlier_search_are_not_drawn_again(strategy: str) -> None:
    wanted = of(strategy=strategy, seed=3)
    points = [suggestion.suggest(wanted, [], k) for k in range(1, 4)]
    before = [dataclasses.replace(done(k, 1.0), tuned=point) for k, point in enumerate(points, 1)]
    assert suggestion.suggest(wanted, [], 1, before) not in points


def test_the_best_points_of_each_earlier_search_are_tried_first() -> None:
    points = {
        1: (0.9, "a"),
        2: (0.1, "a"),
        3: (0.5, "a"),
        4: (0.2, "a"),
        5: (0.3, "b"),
        6: (0.1, "b"),
    }
    before = [dataclasses.replace(done(k, x), tuned={"x": repr(x)}) for k, (x, _) in points.items()]
    parents = {trial.name: points[trial.number][1] for trial in before}
    found = warm_start.tried_first(of(trials=20), before, parents)
    assert [float(one["x"]) for one in found] == [0.1, 0.2, 0.3, 0.5]
    assert [float(one["x"]) for one in warm_start.tried_first(of(trials=5), before, parents)] == [
        0.1,
        0.2,
    ]
    assert warm_start.tried_first(of(), [], {}) == []


def test_a_grid_tries_what_was_not_tried() -> None:
    parameters = space.read(
        {"CategoricalParameterRanges": [{"Name": "c", "Values": ["a", "b", "c"]}]}
    )
    wanted = of(strategy="Grid", space=parameters, trials=3)
    tried = [dataclasses.replace(done(k, 1.0), tuned={"c": c}) for k, c in ((1, "a"), (3, "c"))]
    assert suggestion.suggest(wanted, tried, 2) == {"c": "b"}


def series(number: int, *values: float) -> tuple[tuple[float, float], ...]:
    return tuple((1000.0 * k + number, value) for k, value in enumerate(values))


def test_hyperband_ends_the_worse_trials_at_rungs_and_never_the_best() -> None:
    wanted = of(strategy="Hyperband", resource=(1, 27))
    some = [done(k, None, "InProgress", values=series(k, *[k / 100] * 3)) for k in range(1, 28)]
    ended = [trial.number for trial in pruning.hopeless(wanted, some)]
    assert 9 <= len(ended) < 27
    assert 1 not in ended
    assert sum(ended) / len(ended) > 14  # the worse half, mostly
    best = of(strategy="Hyperband", resource=(1, 27), maximize=True)
    assert sum(trial.number for trial in pruning.hopeless(best, some)) / len(ended) != sum(
        ended
    ) / len(ended)


def test_hyperband_ends_a_trial_beyond_the_largest_resource_alone() -> None:
    wanted = of(strategy="Hyperband", resource=(1, 3))
    assert pruning.hopeless(wanted, [done(1, None, "InProgress", values=series(1, 1, 1, 1))]) == []
    assert (
        len(pruning.hopeless(wanted, [done(1, None, "InProgress", values=series(1, 1, 1, 1, 1))]))
        == 1
    )


def test_hyperband_learns_from_a_finished_trial_how_long_one_is() -> None:
    wanted = of(strategy="Hyperband")
    running = [done(k, None, "InProgress", values=series(k, k / 10)) for k in range(2, 20)]
    assert pruning.hopeless(wanted, running) == []
    assert pruning.hopeless(wanted, [done(1, 0.0, values=series(1, *[0.0] * 9)), *running])


def test_the_median_rule() -> None:
    wanted = of(early_stopping=True)
    finished = [done(k, k / 10, values=series(k, *[k / 10] * 5)) for k in range(1, 6)]
    good, bad = (
        done(6, None, "InProgress", values=series(6, *[value] * 3)) for value in (0.25, 0.45)
    )
    assert pruning.hopeless(wanted, [*finished, good]) == []
    assert pruning.hopeless(wanted, [*finished, bad]) == [bad]
    assert pruning.hopeless(wanted, [*finished[:3], bad]) == []  # too few to have a median
    assert pruning.hopeless(of(early_stopping=True, maximize=True), [*finished, good]) == [good]
    assert pruning.hopeless(of(), [*finished, bad]) == []
