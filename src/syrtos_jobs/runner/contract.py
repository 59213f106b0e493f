"""The environment of a script on a SageMaker instance: variables, configuration files, paths.

The functions are pure functions of a job and an instance. The variables are the union of those of
sagemaker-training 5.1 (SDK v2; environment.py) and of SDK v3's container drivers, so that scripts
of either find theirs.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TypedDict

from syrtos_jobs.requests.hyperparameters import of_framework, of_script
from syrtos_jobs.requests.request import Job, JobProgram
from syrtos_jobs.requests.shapes import InstanceGroup

ML = "/opt/ml"
_MASTER_PORT = 7777


@dataclasses.dataclass(frozen=True)
class InstanceFacts:
    """Facts about the instances of a job.

    Attributes:
        root: the path that ``/opt/ml`` has on the instances.
        names: the names by which instances reach each other, or their addresses where names can't
            be given.
        cpus, gpus: the numbers of processors and GPUs of each instance.
        interface: the network interface by which instances reach each other.
    """

    root: str
    names: tuple[str, ...]
    cpus: int
    gpus: int
    interface: str = "lo"

    def instance_path(self, path: str) -> str:
        """Returns a path below ``/opt/ml`` as it is on the instance; other paths are unchanged."""
        return (
            self.root + path.removeprefix(ML) if path == ML or path.startswith(ML + "/") else path
        )


class GroupFacts(TypedDict):
    """A group of instances as ``resourceconfig.json`` has it."""

    instance_group_name: str
    instance_type: str
    hosts: list[str]


class ResourceFacts(TypedDict):
    """``resourceconfig.json``."""

    current_host: str
    current_instance_type: str
    current_group_name: str
    hosts: list[str]
    instance_groups: list[GroupFacts]
    network_interface_name: str


ConfigFiles = TypedDict(
    "ConfigFiles",
    {
        "hyperparameters.json": dict[str, str],
        "resourceconfig.json": ResourceFacts,
        "inputdataconfig.json": dict[str, dict[str, str]],
    },
)


def files(job: Job, host: int, place: InstanceFacts) -> ConfigFiles:
    """Returns the JSON files of ``input/config`` by name."""
    return {
        "hyperparameters.json": dict(job.hyperparameters),
        "resourceconfig.json": _resources(job, host, place),
        "inputdataconfig.json": {channel.name: dict(channel.config) for channel in job.channels},
    }


def _resources(job: Job, host: int, place: InstanceFacts) -> ResourceFacts:
    groups = _groups(job)
    mine = next(group for group in groups if job.hosts[host] in group["hosts"])
    return {
        "current_host": job.hosts[host],
        "current_instance_type": mine["instance_type"],
        "current_group_name": mine["instance_group_name"],
        "hosts": list(job.hosts),
        "instance_groups": groups,
        "network_interface_name": place.interface,
    }


def _groups(job: Job) -> list[GroupFacts]:
    asked = job.request["ResourceConfig"]
    # the name that SageMaker gives to the instances of a job without groups
    only: InstanceGroup = {
        "InstanceGroupName": "homogeneousCluster",
        "InstanceType": asked.get("InstanceType", "local"),
        "InstanceCount": len(job.hosts),
    }
    groups = asked.get("InstanceGroups") or [only]
    rest, found = list(job.hosts), list[GroupFacts]()
    for group in groups:
        count = group["InstanceCount"]
        hosts, rest = rest[:count], rest[count:]
        name, kind = group["InstanceGroupName"], group["InstanceType"]
        found.append({"instance_group_name": name, "instance_type": kind, "hosts": hosts})
    return found


def environment(job: Job, host: int, place: InstanceFacts) -> dict[str, str]:
    """Returns the environment variables of an instance, without credentials."""
    root, own = place.root, of_script(job.hyperparameters)
    facts = _facts(job, host, place)
    names = {
        "SM_MODEL_DIR": f"{root}/model",
        "SM_INPUT_DIR": f"{root}/input",
        "SM_INPUT_DATA_DIR": f"{root}/input/data",
        "SM_INPUT_CONFIG_DIR": f"{root}/input/config",
        "SM_OUTPUT_DIR": f"{root}/output",
        "SM_OUTPUT_DATA_DIR": f"{root}/output/data",
        "SM_OUTPUT_INTERMEDIATE_DIR": f"{root}/output/intermediate",
        "SM_OUTPUT_FAILURE": f"{root}/output/failure",
        "SM_MASTER_ADDR": place.names[0],
        "SM_MASTER_PORT": str(_MASTER_PORT),
        "SM_HOST_COUNT": str(len(job.hosts)),
        "SM_CURRENT_HOST_RANK": str(host),
        "SM_HPS": _text(own),
        "SM_CHANNELS": _text(sorted(channel.name for channel in job.channels)),
        "SM_TRAINING_ENV": _text(facts),
        "TRAINING_JOB_NAME": job.name,
        "SAGEMAKER_JOB_NAME": job.name,
        "CURRENT_HOST": job.hosts[host],
        "PYTHONUNBUFFERED": "1",
    }
    if job.program:
        names |= {
            "SM_SOURCE_DIR": place.instance_path(job.program.folder),
            "SM_ENTRY_SCRIPT": job.program.entry,
        }
    if root != ML:
        names["SAGEMAKER_BASE_DIR"] = root
    names |= {f"SM_{name.upper()}": _text(facts[name]) for name in _OF_TOOLKIT if name in facts}
    spelled = [
        ("SM_CHANNEL_" + channel.name, f"{root}/input/data/{channel.name}")
        for channel in job.channels
    ]
    for name, value in own.items():
        # SDK v3's drivers write None as JSON, the toolkit of SDK v2 as nothing
        null = value is None and job.program and not job.program.source
        spelled.append(("SM_HP_" + name, "null" if null else _text(value)))
    # two spellings: one that a shell can read, and the toolkit's own, with all letters that a
    # variable's name may have
    names |= {re.sub(r"\W", "_", name.upper()): value for name, value in spelled}
    names |= {
        name.upper(): value for name, value in spelled if "=" not in name and "\0" not in name
    }
    names |= _tf_config(job, host, place)
    # what the request asks for comes last: it may replace any of them
    return names | _requested_variables(
        {**job.distribution.variables, **(job.request.get("Environment") or {})}
    )


_OF_TOOLKIT = (
    "hosts", "current_host", "current_instance_type", "current_instance_group", "current_instance_group_hosts",
    "instance_groups", "instance_groups_dict", "distribution_instance_groups", "is_hetero", "network_interface_name",
    "user_args", "user_entry_point", "module_name", "module_dir", "framework_module", "framework_params", "log_level",
    "input_data_config", "resource_config", "num_cpus", "num_gpus", "num_neurons",
)  # fmt: skip


def _facts(job: Job, host: int, place: InstanceFacts) -> dict[str, object]:
    """Returns an instance's properties as the toolkit names them (environment.Environment)."""
    resources, root = _resources(job, host, place), place.root
    groups = {group["instance_group_name"]: group for group in resources["instance_groups"]}
    mine = groups[resources["current_group_name"]]
    distributed = _distribution_groups(job, mine["instance_group_name"])
    found = {
        "current_host": job.hosts[host],
        "current_instance_type": mine["instance_type"],
        "current_instance_group": mine["instance_group_name"],
        "current_instance_group_hosts": mine["hosts"],
        "instance_groups": [*groups],
        "instance_groups_dict": groups,
        "distribution_instance_groups": distributed,
        "distribution_hosts": [host for name in distributed for host in groups[name]["hosts"]],
        "hosts": list(job.hosts),
        "is_hetero": len(groups) > 1,
        "is_master": host == 0,
        "master_hostname": job.hosts[0],
        "network_interface_name": place.interface,
        "num_cpus": place.cpus,
        "num_gpus": place.gpus,
        "num_neurons": 0,
        "log_level": 20,
        "job_name": job.name,
        "hyperparameters": of_script(job.hyperparameters),
        "input_data_config": {channel.name: dict(channel.config) for channel in job.channels},
        "resource_config": resources,
        "channel_input_dirs": {
            channel.name: f"{root}/input/data/{channel.name}" for channel in job.channels
        },
        "framework_module": None,
        "framework_params": of_framework(job.hyperparameters),
        "additional_framework_parameters": of_framework(job.hyperparameters),
        "topology": [],
        "is_smddprun_installed": False,
        "is_smddpmprun_installed": False,
        "master_addr": place.names[0],
        "master_port": _MASTER_PORT,
        "input_data_dir": f"{root}/input/data",
        "input_dir": f"{root}/input",
        "input_config_dir": f"{root}/input/config",
        "model_dir": f"{root}/model",
        "output_dir": f"{root}/output",
        "output_data_dir": f"{root}/output/data",
        "output_intermediate_dir": f"{root}/output/intermediate",
    }
    return found | (_of_program(job.program) if job.program else {})


def _distribution_groups(job: Job, mine: str) -> list[str]:
    """Returns the names of the groups of instances that train together, by the toolkit's rule."""
    asked = of_framework(job.hyperparameters)
    if "sagemaker_distribution_instance_groups" in asked:
        return asked["sagemaker_distribution_instance_groups"]
    return (
        [mine] if any(name.endswith("_enabled") and value for name, value in asked.items()) else []
    )


def _of_program(program: JobProgram) -> dict[str, object]:
    return {
        "user_args": list(program.arguments),
        "user_entry_point": program.entry,
        "module_name": program.entry.removesuffix(".py"),
        "module_dir": program.source,
    }


def _text(value: object) -> str:
    """Returns a value as the toolkit writes it into a variable (mapping.to_env_vars)."""
    if value is None:
        return ""
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, sort_keys=True, separators=(",", ":"))
    )


def _tf_config(job: Job, host: int, place: InstanceFacts) -> dict[str, str]:
    """Returns TF_CONFIG as SageMaker's TensorFlow containers write it; empty for other jobs."""
    # roles and ports as in training.py of sagemaker_tensorflow_training 20.5
    if len(job.hosts) < 2:
        return {}
    if job.distribution.kind == "parameter_server":
        cluster = {
            "master": [f"{place.names[0]}:2222"],
            "worker": [f"{name}:2222" for name in place.names[1:]],
            "ps": [f"{name}:2223" for name in place.names],
        }
        task = {"type": "worker", "index": host - 1} if host else {"type": "master", "index": 0}
    elif job.distribution.kind == "multi_worker_mirrored_strategy":
        cluster = {"worker": [f"{name}:8890" for name in place.names]}
        task = {"type": "worker", "index": host}
    else:
        return {}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "environment": "cloud", "task": task})}


def _requested_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the requested variables without those that the job itself depends on."""
    # by these, workers find each other, and the job's processes are found
    kept = ("PMI_", "HYDRA_", "SYRTOS_OPTIONS", "SYRTOS_JOB")
    return {name: value for name, value in variables.items() if not name.startswith(kept)}
