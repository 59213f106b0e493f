"""Values of `--with` are understood, or refused with what to write instead."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from syrtos.engines.engine import EngineRequest
from syrtos.errors import ConfigurationError
from syrtos_clusters.kubernetes.request import KubernetesRun, Mount, request_of


def wanted(folder: Path, workers: int | None = 4, **values: str) -> EngineRequest:
    script = folder / "train.py"
    if not script.exists():
        script.write_text("print('training')\n")
    return EngineRequest(
        workers=workers,
        gpus=0,
        run_dir=folder / "runs" / "20261124-101500-1a2b",
        words=("-n", "4", "train.py", "x"),
        values={"image": "i", **values},
        python="python",
        folder=folder,
        script=("train.py", "x"),
    )


def asked(folder: Path, workers: int | None = 4, **values: str) -> KubernetesRun:
    return request_of(wanted(folder, workers, **values))


def test_a_script_travels(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert found.script == ("train.py", "print('training')\n")
    assert found.command[-4:] == ("-n", "4", "/syrtos/script/train.py", "x")


def test_a_script_with_its_interpreter_travels(tmp_path: Path) -> None:
    script = ("python", "-u", "train.py")
    found = request_of(dataclasses.replace(wanted(tmp_path), words=script, script=script))
    assert found.command[-3:] == ("python", "-u", "/syrtos/script/train.py")


@pytest.mark.parametrize(
    ("words", "script"), [(("-m", "package"), ("package",)), (("train.py",), ("train.py",))]
)
def test_modules_and_scripts_of_the_image_stay_there(
    words: tuple[str, ...], script: tuple[str, ...], tmp_path: Path
) -> None:
    values = {"image": "i"} if words[0] == "-m" else {"image": "i", "script": "image"}
    found = request_of(
        dataclasses.replace(wanted(tmp_path), words=words, script=script, values=values)
    )
    assert found.script is None
    assert found.command[-len(words) :] == words
    assert found.workdir == ""


def test_a_large_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("#" * 900_001)
    with pytest.raises(
        ConfigurationError, match=r"has 900001 bytes.*at most 900000.*--with script=image"
    ):
        asked(tmp_path)


def test_a_script_that_needs_its_neighbour_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    (tmp_path / "train.py").write_text("import json\nfrom model import build\n")
    with pytest.raises(ConfigurationError, match=r"imports model, which stands beside it"):
        asked(tmp_path)


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"nowhere\.py can't be read here.*--with script=image"
    ):
        request_of(
            dataclasses.replace(wanted(tmp_path), words=("nowhere.py",), script=("nowhere.py",))
        )


@pytest.mark.parametrize(
    ("workers", "each", "pods"), [(4, 1, 4), (4, 2, 2), (4, 4, 1), (None, 3, 1)]
)
def test_workers_are_divided(workers: int | None, each: int, pods: int, tmp_path: Path) -> None:
    found = asked(tmp_path, workers, **{"workers-per-pod": str(each)})
    assert (found.pods, found.slots) == (pods, each)


def test_without_a_number_one_pod_has_its_workers(tmp_path: Path) -> None:
    found = request_of(
        dataclasses.replace(
            wanted(tmp_path, None, **{"workers-per-pod": "3"}),
            words=("train.py",),
            script=("train.py",),
        )
    )
    assert found.command[-3:] == ("-n", "3", "/syrtos/script/train.py")


@pytest.mark.parametrize(("workers", "fits"), [(5, "4 or 6"), (1, "2 or 4")])
def test_workers_that_can_not_be_divided(workers: int, fits: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"into pods of 2.*Ask for {fits} workers"):
        asked(tmp_path, workers, **{"workers-per-pod": "2"})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"image": ""}, "needs an image"),
        ({"imgae": "x"}, "Did you mean `image`"),
        ({"kind": "Pod"}, "must be JobSet, Job, TrainJob"),
        ({"workers-per-pod": "0"}, "must be a number, 1 or more"),
        ({"claim": "runs"}, "is written NAME:/path"),
        ({"claim": "runs:/"}, "is written NAME:/path"),
        ({"script": "local"}, "can only be `image`"),
        ({"name": "Digits"}, "small letters"),
        ({"name": "a" * 41}, "at most 40"),
    ],
)
def test_wrong_values(values: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        request_of(dataclasses.replace(wanted(tmp_path), values={"image": "i", **values}))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("digits", "digits"),
        ("20261124-101500-1a2b", "syrtos-20261124-101500-1a2b"),
        ("My run_2!", "my-run-2"),
        ("ü", "syrtos"),
    ],
)
def test_names(folder: str, name: str, tmp_path: Path) -> None:
    assert request_of(dataclasses.replace(wanted(tmp_path), run_dir=tmp_path / folder)).name == name


def test_long_names_stay_different(tmp_path: Path) -> None:
    one, two = (
        request_of(
            dataclasses.replace(wanted(tmp_path), run_dir=tmp_path / ("long-" * 20 + end))
        ).name
        for end in "ab"
    )
    assert one != two
    assert max(len(one), len(two)) <= 40


def test_the_run_directory_stands_in_a_claim(tmp_path: Path) -> None:
    name = "20261124-101500-1a2b"
    assert asked(tmp_path).run_dir == f"/syrtos/work/{name}"
    assert not asked(tmp_path).is_kept
    two = asked(tmp_path, claim="runs:/runs/,data:/data")
    assert two.mounts == (Mount("runs", "/runs"), Mount("data", "/data"))
    assert (two.run_dir, two.workdir, two.is_kept) == (f"/runs/{name}", "/runs", True)
    assert asked(tmp_path, claim=f"data:/data,home:{tmp_path}").run_dir == f"{tmp_path}/runs/{name}"


def test_variables_may_hold_commas_and_equal_signs(tmp_path: Path) -> None:
    assert asked(tmp_path, env="A=1,2,B=x=y,C=").variables() == {"A": "1,2", "B": "x=y", "C": ""}
    with pytest.raises(ConfigurationError, match="is written NAME=VALUE"):
        asked(tmp_path, env="A").variables()


def test_amounts(tmp_path: Path) -> None:
    assert asked(tmp_path, memory="1.5Gi").quantity("memory") == "1.5Gi"
    with pytest.raises(ConfigurationError, match="an amount as Kubernetes writes it"):
        asked(tmp_path, memory="16GB").quantity("memory")
    with pytest.raises(ConfigurationError, match="must be a number"):
        asked(tmp_path, grace="soon").number("grace", 60)
