"""Pods as processes in namespaces of their own: what a cluster's controllers and kubelets do with the objects of a run.

It is an emulation, for machines without a cluster. A pod has its own network, host name, processes (its container's is number 1), mounts
(claims, the script, /dev/shm) and no capabilities. It knows other pods by their names below the run's Service only, as in a cluster.
A Job, a JobSet and a TrainJob end, restart and number their pods by the rules in their objects.

    with pods.machine(folder) as machine:
        run = machine.create(objects)
        run.until_printed("epoch 3")
        assert run.delete_pods() == [75, 75]
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import netns

_NETWORK = "10.79.0."
_TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount", "chroot")
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
_SWITCH = (
    "ip link add bridge type bridge && ip link set bridge up && echo ready && exec sleep infinity"
)
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

# Makes the container's file system, a view of this machine's with what the pod mounts, and becomes the container's process there.
_FIRST_PROCESS = """
set -e
root=$1; host=$2; hosts=$3; workdir=$4; volumes=$5; shift 5
echo "$host" > /proc/sys/kernel/hostname
mkdir -p "$root"
mount -t tmpfs tmpfs "$root"
for each in /*; do
    if [ -L "$each" ]; then cp -P "$each" "$root$each"
    elif [ -d "$each" ]; then mkdir "$root$each"; mount --rbind "$each" "$root$each"
    fi
done
mount -t sysfs sysfs "$root/sys"
mount --bind "$hosts" "$root/etc/hosts"
eval "$volumes"
echo ready
read network
exec chroot "$root" sh -c 'cd "$0" && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"' "$workdir" "$@"
"""


def missing() -> str | None:
    """Why there can be no pods here; None if they can."""
    if os.geteuid() != 0:
        return "needs root (network and mount namespaces)"
    absent = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if absent:
        return f"needs {', '.join(absent)} on PATH"
    tried = [
        "unshare",
        "--net",
        "--pid",
        "--mount",
        "--uts",
        "--fork",
        "sh",
        "-c",
        "ip link add bridge type bridge",
    ]
    done = subprocess.run(tried, env={"PATH": _PATH}, capture_output=True, text=True, check=False)
    return f"this system refuses: {done.stderr.strip()}" if done.returncode else None


@dataclass(frozen=True)
class Spec:
    """A pod, as the controllers make it of an object."""

    host: int
    name: str
    subdomain: str
    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    volumes: tuple[tuple[str, str], ...]
    grace: float

    @property
    def address(self) -> str:
        """The address at which other pods reach it."""
        return f"{_NETWORK}{self.host + 10}"


@dataclass
class Run:
    """A run that was created, and the pods that it has now.

    Attributes:
        printed: the lines of all pods, of all starts, each with the host before it.
        starts: how often pods were started.
    """

    machine: Machine
    objects: Sequence[Mapping[str, Any]]
    printed: list[str] = field(default_factory=list)
    starts: int = 0
    pods: list[Pod] = field(default_factory=list)

    def start(self) -> None:
        """Starts all pods, after earlier ones are gone."""
        self.starts += 1
        specs = _specs(self.objects, self.machine.folder)
        self.pods = [Pod(self.machine, spec, specs, self.printed) for spec in specs]
        for pod in self.pods:
            pod.join_network()

    def until_printed(self, text: str, within: float = 300.0) -> None:
        """Waits until a pod has printed a line with this text."""
        deadline = time.monotonic() + within
        while not any(text in line for line in list(self.printed)):
            assert time.monotonic() < deadline, self.text()
            assert any(pod.code is None for pod in self.pods), self.text()
            time.sleep(0.05)

    def delete_pods(self, *hosts: int) -> list[int | None]:
        """Deletes these pods, or all, as a kubelet does: SIGTERM, then SIGKILL after the grace period. Returns their exit codes."""
        chosen = [pod for pod in self.pods if not hosts or pod.spec.host in hosts]
        threads = [threading.Thread(target=pod.delete) for pod in chosen]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return [pod.code for pod in chosen]

    def to_the_end(self, within: float = 300.0) -> list[int | None]:
        """Waits until the run is over, and starts pods again as its object says. Returns the exit codes of the last pods."""
        deadline, counted = time.monotonic() + within, 0
        while True:
            codes = [pod.code for pod in self.pods]
            if any(codes):  # backoffLimit 0: the Job has failed, and its other pods are deleted
                first = next(code for code in codes if code)
                codes = self.delete_pods()
                ignored, most = _restarts(self.objects[-1], first)
                counted += not ignored
                if not ignored and counted > most:
                    return codes
                self.start()
            elif all(code == 0 for code in codes):
                return codes
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def text(self) -> str:
        """All that was printed."""
        return "\n".join(self.printed)


@dataclass(frozen=True)
class Machine:
    """A machine for pods: a folder for their volumes, and a switch that joins their networks."""

    folder: Path
    switch: int
    stack: ExitStack

    def create(self, objects: Sequence[Mapping[str, Any]]) -> Run:
        """Creates objects, whose last owns the pods, and starts these."""
        run = Run(self, objects)
        self.stack.callback(lambda: [pod.kill() for pod in run.pods])
        run.start()
        return run

    def claim(self, name: str) -> Path:
        """The folder of a PersistentVolumeClaim."""
        path = self.folder / "claims" / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Context manager: pods can be made; they end with it."""
    with ExitStack() as stack:
        command = [*_DIES_WITH_US, "unshare", "--net", "sh", "-c", _SWITCH]
        switch = stack.enter_context(
            subprocess.Popen(command, env={"PATH": _PATH}, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(switch.kill)
        netns._await_ready(switch, "the switch")
        yield Machine(folder, switch.pid, stack)


# -- controllers ---------------------------------------------------------------------------------------------


def _restarts(owner: Mapping[str, Any], code: int) -> tuple[bool, int]:
    """Returns whether a failure does not count towards the most restarts, and how many there may be."""
    if owner["kind"] != "JobSet":
        return False, 0
    job = owner["spec"]["replicatedJobs"][0]["template"]["spec"]
    rules = job["podFailurePolicy"]["rules"]
    by_policy = any(code in rule.get("onExitCodes", {}).get("values", ()) for rule in rules)
    policy = owner["spec"]["failurePolicy"]
    reason = "PodFailurePolicy" if by_policy else "BackoffLimitExceeded"
    matching = [rule["action"] for rule in policy["rules"] if reason in rule["onJobFailureReasons"]]
    return matching[:1] == ["RestartJobSetAndIgnoreMaxRestarts"], policy["maxRestarts"]


def _specs(objects: Sequence[Mapping[str, Any]], folder: Path) -> list[Spec]:
    """Returns the pods that controllers make of the last object."""
    owner = objects[-1]
    name, spec = owner["metadata"]["name"], owner["spec"]
    if owner["kind"] == "TrainJob":
        return [
            _of_train_job(name, spec, host, objects, folder)
            for host in range(spec["trainer"]["numNodes"])
        ]
    prefix, subdomain = f"{name}-", ""
    if owner["kind"] == "JobSet":
        assert spec["network"]["enableDNSHostnames"]
        job = spec["replicatedJobs"][0]
        prefix, subdomain, spec = f"{name}-{job['name']}-0-", name, job["template"]["spec"]
    pod = spec["template"]["spec"]
    found = []
    for host in range(spec["completions"]):
        env = {"JOB_COMPLETION_INDEX": str(host)}
        found.append(
            _spec(
                pod,
                pod["containers"][0],
                env,
                host,
                f"{prefix}{host}",
                subdomain or pod.get("subdomain", ""),
                objects,
                folder,
            )
        )
    return found


def _of_train_job(
    name: str, spec: Mapping[str, Any], host: int, objects: Any, folder: Path
) -> Spec:
    """Returns a pod of the stock runtime `torch-distributed`, with what pkg/runtime/framework/plugins/torch of Kubeflow Trainer 2.3 sets."""
    trainer = spec["trainer"]
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][
        0
    ]
    pod = patch["template"]["spec"]["template"]["spec"]
    container = {**pod["containers"][0], "command": trainer["command"], "env": trainer["env"]}
    env = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": str(host),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    return _spec(pod, container, env, host, f"{name}-node-0-{host}", name, objects, folder)


def _spec(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    env: Mapping[str, str],
    host: int,
    name: str,
    subdomain: str,
    objects: Any,
    folder: Path,
) -> Spec:
    return Spec(
        host=host,
        name=name,
        subdomain=subdomain,
        command=tuple(container["command"]),
        workdir=container.get("workingDir", "/"),
        env={**env, **{each["name"]: _value(each, host, objects) for each in container["env"]}},
        volumes=tuple(_mounted(pod, container, host, objects, folder)),
        grace=pod["terminationGracePeriodSeconds"],
    )


def _value(variable: Mapping[str, Any], host: int, objects: Any) -> str:
    source = variable.get("valueFrom", {})
    if "secretKeyRef" in source:
        asked = source["secretKeyRef"]
        secret = next(
            o for o in objects if o["kind"] == "Secret" and o["metadata"]["name"] == asked["name"]
        )
        return secret["stringData"][asked["key"]]
    if "fieldRef" in source:
        assert source["fieldRef"]["fieldPath"] == _INDEX
        return str(host)
    return variable["value"]


def _mounted(
    pod: Mapping[str, Any], container: Mapping[str, Any], host: int, objects: Any, folder: Path
) -> Iterator[tuple[str, str]]:
    """Yields source and target of the container's mounts; the source of a file system in memory is ``tmpfs``."""
    volumes = {each["name"]: each for each in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        if "persistentVolumeClaim" in volume:
            source = folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            source.mkdir(parents=True, exist_ok=True)
        elif "configMap" in volume:
            maps = {o["metadata"]["name"]: o["data"] for o in objects if o["kind"] == "ConfigMap"}
            source = folder / "config" / mount["subPath"]
            source.parent.mkdir(exist_ok=True)
            source.write_text(maps[volume["configMap"]["name"]][mount["subPath"]])
        elif volume["emptyDir"].get("medium") == "Memory":
            yield "tmpfs", mount["mountPath"]
            continue
        else:
            source = folder / f"{mount['name']}-{host}-{time.monotonic_ns()}"
            source.mkdir()
        yield str(source), mount["mountPath"]


# -- the kubelet ---------------------------------------------------------------------------------------------


class Pod:
    """A pod that runs."""

    def __init__(
        self, machine: Machine, spec: Spec, specs: Sequence[Spec], printed: list[str]
    ) -> None:
        self.spec, self._printed = spec, printed
        hosts = machine.folder / f"hosts-{spec.host}"
        hosts.write_text(_hosts(spec, specs))
        first = [
            _FIRST_PROCESS,
            "pod",
            str(machine.folder / "root"),
            spec.name,
            str(hosts),
            spec.workdir,
            _mounts(spec, str(machine.folder / "root")),
        ]
        separate = [
            "unshare",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        self._process = subprocess.Popen(
            [*_DIES_WITH_US, *separate, "sh", "-c", *first, *spec.command],
            env=_image_environment(spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        netns._await_ready(self._process, f"pod {spec.name}")
        self._first = netns._only_child(self._process)
        self._port = f"pod{self._first}"
        self._in_switch = ["nsenter", "--target", str(machine.switch), "--net", "ip", "link"]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def join_network(self) -> None:
        """Connects the pod, and lets its container begin."""
        first, address = str(self._first), self.spec.address
        inside = ["nsenter", "--target", first, "--net"]
        _do(
            *self._in_switch,
            "add",
            self._port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            first,
        )
        _do(*self._in_switch, "set", self._port, "master", "bridge", "up")
        for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _do(*inside, "ip", *words.split())
        assert self._process.stdin is not None
        self._process.stdin.write("network\n")
        self._process.stdin.close()

    def enter(self) -> list[str]:
        """Returns the words that run a command in the pod, as `exec` of Kubernetes does."""
        spaces = [
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--root",
            f"--wdns={self.spec.workdir}",
        ]
        variables = [f"{name}={value}" for name, value in _image_environment(self.spec).items()]
        rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        inside = [
            "nsenter",
            "--target",
            str(self._first),
            *spaces,
            "env",
            "-i",
            *variables,
            *rights,
        ]
        return [*_DIES_WITH_US, "env", f"PATH={_PATH}", *inside]

    @property
    def code(self) -> int | None:
        """The exit code of the container; None while it runs."""
        return self._process.poll()

    def delete(self) -> None:
        """Ends the container: by SIGTERM, and after the grace period by SIGKILL."""
        try:
            os.kill(self._first, signal.SIGTERM)
            self._process.wait(self.spec.grace)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Ends the container at once, as with its node."""
        self._process.kill()
        self._process.wait()
        # The kernel does it too, but later, and the next pod of this host has the same address.
        subprocess.run(
            [*self._in_switch, "del", self._port],
            env={"PATH": _PATH},
            capture_output=True,
            check=False,
        )
        self._reader.join(10.0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._printed.append(f"host {self.spec.host} | {line.rstrip()}")


def _hosts(spec: Spec, specs: Sequence[Spec]) -> str:
    """Returns the names that a pod knows: its own, and those that DNS has of the others."""
    lines = ["127.0.0.1 localhost", f"{spec.address} {spec.name}"]
    for each in specs if spec.subdomain else ():
        short = f"{each.name}.{each.subdomain}"
        lines.append(f"{each.address} {short}.default.svc.cluster.local {short}")
    return "\n".join(lines) + "\n"


def _mounts(spec: Spec, root: str) -> str:
    """Returns the shell commands that mount a pod's volumes."""
    steps: list[str] = []
    for source, target in spec.volumes:
        there = shlex.quote(root + target)
        if source == "tmpfs":
            steps.append(f"mkdir -p {there}; mount -t tmpfs tmpfs {there}")
            continue
        is_file = Path(source).is_file()
        made = f"mkdir -p $(dirname {there}); touch {there}" if is_file else f"mkdir -p {there}"
        steps.append(f"{made}; mount --bind {shlex.quote(source)} {there}")
    return "; ".join(steps)


def _image_environment(spec: Spec) -> dict[str, str]:
    """Returns what the image sets, of which PYTHONPATH has this checkout, and what the pod's object does."""
    kept = {
        name: os.environ[name]
        for name in ("PYTHONPATH", "HOME", "KERAS_BACKEND", "XLA_FLAGS")
        if name in os.environ
    }
    path = f"{Path(sys.executable).parent}:{_PATH}"
    more = {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "HOSTNAME": spec.name,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return {**kept, "PATH": path, **more, **spec.env}


def _do(*command: str) -> None:
    done = subprocess.run(command, env={"PATH": _PATH}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
