"""The exact command, against golden files."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos.launch.plan import (
    PASSES_SIGNALS_ON,
    LaunchPlan,
    Machine,
    forwarded_variables,
    make_plan,
)
from syrtos.launch.program import Program
from syrtos.launch.spec import Spec, parse_hosts
from syrtos.settings import OPTIONS_VARIABLE, Options, options_from

GOLDEN = Path(__file__).parents[2] / "golden"
MACHINE = Machine(python="/venv/bin/python", cores=4)
ENVIRONMENT = {
    "PATH": "/venv/bin:/usr/bin",
    "HOME": "/home/ada",
    "KERAS_BACKEND": "tensorflow",
    "OMP_NUM_THREADS": "2",
    "PYTHONPATH": "/a folder/lib",
}
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-1",
    "AWS_SESSION_TOKEN": "s3cr3t-2",
    "HF_TOKEN": "s3cr3t-3",
    "WANDB_API_KEY": "s3cr3t-4",
    "KAGGLE_KEY": "s3cr3t-5",
    "SSH_AUTH_SOCK": "s3cr3t-6",
    "DATABASE_URL": "s3cr3t-7",
    "path": "s3cr3t-8",
    "XPATH": "s3cr3t-9",
}
TERRAFORM_SECRETS = {"TF_TOKEN_app_terraform_io": "s3cr3t-10", "TF_VAR_db_password": "s3cr3t-11"}


def spec(script: Path, **values: Any) -> Spec:
    return Spec(
        **{
            "program": Program(str(script)),
            "workers": 4,
            "options": Options(run_dir="/runs/1"),
            **values,
        }
    )


def remote_plan(script: Path, env: Mapping[str, str]) -> LaunchPlan:
    return make_plan(spec(script, hosts=parse_hosts("a:2,b:2")), MACHINE, env)


def check_golden(name: str, plan: LaunchPlan, script: Path) -> None:
    printed = str(plan).replace(str(script.parent.resolve()), "/project")
    assert printed + "\n" == (GOLDEN / name).read_text()


def test_a_local_run(script: Path) -> None:
    arguments = ("--epochs", "3", "--name", "two words")
    check_golden(
        "plan_local.txt",
        make_plan(
            spec(script, program=Program(str(script), arguments)), MACHINE, ENVIRONMENT | SECRETS
        ),
        script,
    )


def test_a_run_on_two_hosts(script: Path) -> None:
    check_golden("plan_hosts.txt", remote_plan(script, ENVIRONMENT | SECRETS), script)


def test_the_printed_plan_is_what_a_shell_would_run(script: Path) -> None:
    arguments = ("it's", "$HOME", "a b", "", "*", "back\\slash")
    plan = make_plan(spec(script, program=Program(str(script), arguments)), MACHINE, {})
    words = shlex.split(str(plan).replace(" \\\n", " "), comments=True)
    variables = [f"{name}={value}" for name, value in sorted(plan.environment.items())]
    assert words == [*variables, *plan.groups[0].command]
    assert str(plan).splitlines()[0] == "# 4 processes, joined by PMI:"
    assert words[-len(arguments) :] == list(arguments)


def test_planning_twice_gives_the_same(script: Path) -> None:
    backwards = dict(reversed(ENVIRONMENT.items()))
    assert remote_plan(script, ENVIRONMENT) == remote_plan(script, backwards)


@pytest.mark.parametrize("hosts", ["", "a:2,b:2"])
def test_options_travel_to_the_workers(script: Path, hosts: str) -> None:
    options = Options(batch="per-worker", run_dir="/runs/a b", timeout=7.5)
    plan = make_plan(
        spec(script, options=options, hosts=parse_hosts(hosts) if hosts else ()), MACHINE, {}
    )
    assert options_from(plan.environment) == options


def test_options_of_an_outer_run_do_not_leak_in(script: Path) -> None:
    outer = {OPTIONS_VARIABLE: Options(timeout=1.0).to_json()}
    plan = remote_plan(script, outer)
    assert (
        options_from(forwarded_variables(outer) | dict(plan.environment)).timeout
        == Options().timeout
    )


def test_the_script_is_named_as_it_was_typed(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts look at ``sys.argv[0]``; agents start workers of all hosts in this folder."""
    monkeypatch.chdir(script.parent)
    assert make_plan(spec(Path("train.py")), MACHINE, {}).groups[0].command[-1] == "train.py"


def test_a_module_and_flags_of_the_interpreter() -> None:
    program = Program("json.tool", ("x",), is_module=True, flags=("-u", "-W", "ignore"))
    command = make_plan(spec(Path(), program=program), MACHINE, {}).groups[0].command
    assert command[-9:] == (
        "/venv/bin/python",
        "-u",
        "-W",
        "ignore",
        "-m",
        "syrtos.worker",
        "-m",
        "json.tool",
        "x",
    )


def test_other_hosts_get_what_libraries_read_and_never_secrets() -> None:
    assert forwarded_variables(ENVIRONMENT | SECRETS | TERRAFORM_SECRETS) == ENVIRONMENT


def test_what_is_printed_holds_no_secrets(script: Path) -> None:
    assert "s3cr3t" not in str(remote_plan(script, ENVIRONMENT | SECRETS | TERRAFORM_SECRETS))


def test_a_tf_config_that_is_no_json_is_refused(script: Path) -> None:
    with pytest.raises(ConfigurationError, match="TF_CONFIG is no JSON object"):
        make_plan(spec(script), MACHINE, {"TF_CONFIG": "{'cluster':"})


def test_local_workers_inherit_so_the_command_holds_no_environment(script: Path) -> None:
    plan = make_plan(spec(script), MACHINE, ENVIRONMENT | SECRETS)
    assert OPTIONS_VARIABLE in plan.environment
    assert plan.environment.keys().isdisjoint(ENVIRONMENT | SECRETS)


@pytest.mark.parametrize(("cores", "offers"), [(2, "2 cores"), (1, "1 core:")])
def test_more_workers_than_cores_are_refused_with_the_fix(
    script: Path, cores: int, offers: str
) -> None:
    machine = dataclasses.replace(MACHINE, cores=cores)
    with pytest.raises(
        ConfigurationError, match=rf"4 workers .* offers {offers}.*`-n {cores}`.*`--oversubscribe`"
    ):
        make_plan(spec(script), machine, {})


@pytest.mark.parametrize(
    "values",
    [{"oversubscribe": True}, {"hosts": parse_hosts("a:2,b:2")}, {"workers": 1}],
    ids=["asked", "hosts", "fits"],
)
def test_one_core_is_enough_when(script: Path, values: dict[str, Any]) -> None:
    plan = make_plan(spec(script, **values), dataclasses.replace(MACHINE, cores=1), {})
    assert plan.processes == values.get("workers", 4)


def test_hosts_are_reached_by_ssh_and_this_machine_directly(script: Path) -> None:
    machine = dataclasses.replace(MACHINE, here=frozenset({"b"}))
    agents = make_plan(
        spec(script, hosts=parse_hosts("a:2,b:2"), ssh="/opt/rsh -p 22"), machine, ENVIRONMENT
    ).agents
    agent = ("/venv/bin/python", "-P", "-m", "syrtos.launch.remote.agent", PASSES_SIGNALS_ON)
    assert agents == {
        "a": ("/opt/rsh", "-p", "22", "a", "env", "'PYTHONPATH=/a folder/lib'", *agent),
        "b": agent,
    }


def test_hosts_are_filled_in_their_order(script: Path) -> None:
    plan = make_plan(spec(script, workers=3, hosts=parse_hosts("a:2,b:2,c:5")), MACHINE, {})
    assert [(group.host, group.ranks) for group in plan.groups] == [
        ("a", range(2)),
        ("b", range(2, 3)),
    ]
    assert (plan.nodes, set(plan.agents)) == ([0, 0, 1], {"a", "b"})


def test_servers_without_a_slot_go_round_the_hosts_again(script: Path) -> None:
    plan = make_plan(
        spec(script, workers=3, hosts=parse_hosts("a:2,b:1"), options=Options(servers=2)),
        MACHINE,
        {},
    )
    assert [(group.host, group.ranks) for group in plan.groups] == [
        ("a", range(2)),
        ("b", range(2, 3)),
        ("a", range(3, 5)),
    ]
    assert plan.nodes == [0, 0, 1, 0, 0]


def test_servers_come_after_the_workers_and_survive_them(script: Path) -> None:
    plan = make_plan(spec(script, options=Options(servers=2)), MACHINE, ENVIRONMENT)
    assert (plan.processes, plan.spared) == (6, {1, 2, 3})


def test_workers_that_make_updates_together_end_together(script: Path) -> None:
    plan = make_plan(spec(script, options=Options(servers=2, staleness=0)), MACHINE, ENVIRONMENT)
    assert plan.spared == frozenset()
