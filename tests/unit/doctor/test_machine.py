"""What the doctor says of a machine: real failures where this machine can have them; versions, GPUs, limits and devices that it lacks are given as values."""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syrtos.doctor import (
    machine,
    machine_environment,
    machine_facts,
    machine_host,
    machine_packages,
    machine_remote,
    machine_world,
)
from syrtos.doctor.machine_check import Check


def only(checks: Iterator[Check]) -> Check:
    """The one check that there must be."""
    (check,) = checks
    return check


def not_well(checks: Iterator[Check]) -> list[str]:
    return [f"{check.status} {check.name}" for check in checks if check.status != "ok"]


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what tests or a launcher may have set."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH")
        if name in os.environ
    }
    return {**kept, **variables}


def versions(**installed: str) -> machine_facts.Versions:
    """Packages that this environment does not have, or has in other versions."""
    return lambda name: installed.get(name.replace("-", "_"), "-")


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    began = time.monotonic()
    found = machine.check()
    assert time.monotonic() - began < 120  # 1.1 s on this machine alone; others may run beside
    return found


def test_this_machine_can_train(checks: list[Check]) -> None:
    assert [check for check in checks if check.status == "wrong"] == []
    names = {check.name for check in checks}
    assert {
        "python",
        "packages",
        "backend",
        "cores",
        "memory",
        "/dev/shm",
        "run directories",
        "network",
        "MPI",
    } <= names
    assert all(
        check.fix == "" if check.status == "ok" else check.fix.endswith((".", ")"))
        for check in checks
    )


def test_json_and_lines_have_all_of_them(
    checks: list[Check], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [Check(**facts) for facts in json.loads(json.dumps(machine.as_json(checks)))] == checks  # pyright: ignore
    machine.show([*checks, Check("disk", "wrong", "it is full", "Remove something.")])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("wrong") and "it is full" in line for line in lines)
    assert lines[-1].startswith("1 wrong")


def test_no_framework_is_imported() -> None:
    code = "import sys; from syrtos.doctor import machine; machine.check(); print({'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )


# -- MPI -------------------------------------------------------------------------------------------


def test_a_world_that_fails_says_why() -> None:
    check = machine_world.check({**environment(), "MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert check.status == "wrong"
    assert "libmpi" in check.found


def test_a_world_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_world, "_PATIENCE", 1.0)
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)")
    check = machine_world.check({**environment(), "PYTHONPATH": str(tmp_path)})
    assert check.status == "wrong"
    assert "did not end within 1 s" in check.found


# -- packages --------------------------------------------------------------------------------------


def test_versions_are_those_that_syrtos_is_written_for() -> None:
    required = [
        "numpy>=99",
        "nowhere-to-be-found>=1",
        'pytest>=99; extra == "torch"',
        'moto>=99; extra == "dev"',
    ]
    found = {check.name: check for check in machine_packages._check_versions(required)}
    assert set(found) == {"numpy", "nowhere-to-be-found", "pytest"}
    assert found["numpy"].fix == "`pip install 'numpy>=99'`."
    assert found["nowhere-to-be-found"].found == "nowhere-to-be-found is not installed"


def test_the_backend_is_there(tmp_path: Path) -> None:
    installed = {"tensorflow": "-", "jax": "0.10.2", "torch": "-"}
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert machine_packages.backend({"KERAS_BACKEND": "jax"}, installed).status == "ok"
    wrong = machine_packages.backend({"KERAS_BACKEND": "openvino"}, installed)
    assert (wrong.status, wrong.fix) == ("wrong", "Set KERAS_BACKEND to one of jax.")
    absent = machine_packages.backend({"KERAS_HOME": str(tmp_path)}, installed)
    assert "keras.json chooses torch, which is not installed" in absent.found
    assert absent.fix == "`pip install torch`, or set KERAS_BACKEND to jax."


def test_keras_2_goes_with_one_tensorflow() -> None:
    asked = {"TF_USE_LEGACY_KERAS": "1"}
    assert list(machine_packages.legacy(asked, "2.21.0", "2.21.1")) == []
    assert only(machine_packages.legacy(asked, "2.21.0", "-")).status == "wrong"
    assert (
        only(machine_packages.legacy(asked, "2.21.0", "2.20.0")).fix
        == "`pip install 'tf_keras==2.21.*'`."
    )
    assert only(machine_packages.legacy({}, "2.21.0", "2.20.0")).status == "warning"


def test_packages_that_do_not_go_together() -> None:
    found = list(
        machine_packages.conflicts(
            versions(tensorflow="2.21.0", tensorflow_cpu="2.20.0", horovod="0.28.1")
        )
    )
    assert [check.status for check in found] == ["warning", "warning"]
    assert "tensorflow and tensorflow-cpu are both installed" in found[0].found


# -- environment -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "name", "status"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "environment", "warning"),
        ({"PMI_SIZE": "2"}, "environment", "warning"),
        ({"SYRTOS_OPTIONS": "{}"}, "environment", "wrong"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG", "wrong"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG", "warning"),
        ({"OMP_NUM_THREADS": "8"}, "OMP_NUM_THREADS", "warning"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES", "warning"),
        ({"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"}, "TF_XLA_FLAGS", "warning"),
        ({"UCX_TLS": "tcp"}, "MPI's variables", "warning"),
        ({"LD_PRELOAD": "/lib/x.so"}, "LD_PRELOAD", "warning"),
        ({"SLURM_JOB_ID": "7"}, "environment", "ok"),
        ({"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"}, "environment", "ok"),
    ],
)
def test_variables_that_change_a_run(variables: dict[str, str], name: str, status: str) -> None:
    check = only(machine_environment.checks(environment(**variables), cores=8, gpus=2))
    assert (check.name, check.status) == (name, status)


def test_another_mpi_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text(
        "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n"
    )  # stands for one that is not installed here
    program.chmod(0o755)
    check = only(machine_environment.checks({"PATH": f"{tmp_path}:/bin"}, 8, 0))
    assert f"{program} is Open MPI's" in check.found
    assert (
        only(machine_environment.checks({"PATH": str(Path(sys.executable).parent)}, 8, 0)).status
        == "ok"
    )


# -- resources -------------------------------------------------------------------------------------


def files(folder: Path, texts: dict[str, str]) -> Path:
    """Stands for the groups of a container."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_limits_of_containers(tmp_path: Path) -> None:
    two = files(
        tmp_path / "two",
        {
            "job/cpu.max": "150000 100000\n",
            "job/step/cpu.max": "max 100000\n",
            "job/memory.max": "4000000000\n",
        },
    )
    assert machine_facts.limits(two, "0::/job/step\n") == machine_facts.Limits(1.5, 4_000_000_000)
    one = files(tmp_path / "one", {
        "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": "9223372036854771712",
    })  # fmt: skip
    assert machine_facts.limits(
        one, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n"
    ) == machine_facts.Limits(0.5, None)
    assert machine_host.cores(8, 1.5).status == "warning"
    assert "at most 1 workers" in machine_host.cores(8, 1.5).fix
    assert machine_host.cores(8, 8.0).status == "ok"
    assert machine_host.memory(16_000_000_000, 500_000_000).status == "warning"
    assert (
        "1.5 GB free in this container: "
        in machine_host.memory(16_000_000_000, 1_499_000_000).found
    )


def test_shared_memory_that_is_small_or_not_there() -> None:
    assert machine_host.shared_memory(lambda: 64 << 20).status == "warning"
    assert machine_host.shared_memory(lambda: os.statvfs("/nowhere").f_bavail).status == "wrong"
    assert machine_host.shared_memory(lambda: 8 << 30).status == "ok"


@pytest.fixture
def segment() -> Iterator[Callable[[float], Path]]:
    """Makes files as killed workers have left them, so many seconds ago."""
    made: list[Path] = []

    def make(age: float) -> Path:
        path = Path("/dev/shm", f"mpich_shm_doctor_{secrets.token_hex(4)}")
        path.write_bytes(bytes(4096))
        os.utime(path, (time.time() - age, time.time() - age))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink()


def test_leftovers_are_segments_that_no_process_uses(segment: Callable[[float], Path]) -> None:
    old, young, used = segment(60), segment(0), segment(60)
    code = f"import mmap; f = open({str(used)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = machine_host.leftovers.find_unmapped()
        process.communicate(b"\n")
    assert old in found
    assert young not in found
    assert used not in found
    check = only(machine_host.left_over([old]))
    assert "1 segments of ended workers take 0.0 MB" in check.found


def test_folders_for_runs(tmp_path: Path) -> None:
    assert machine_host.disk(tmp_path / "not" / "there" / "yet").status == "ok"
    assert machine_host.disk(Path("/proc/self/runs")).status == "wrong"


def test_limits_of_a_process(tmp_path: Path) -> None:
    assert machine_host.open_files(256, 256).status == "warning"
    assert machine_host.open_files(256, resource.RLIM_INFINITY).status == "ok"
    assert list(machine_host.locked_memory(tmp_path / "none", 8 << 20)) == []
    (tmp_path / "mlx5_0").mkdir()  # stands for an RDMA device
    assert only(machine_host.locked_memory(tmp_path, 8 << 20)).status == "warning"
    assert list(machine_host.locked_memory(tmp_path, resource.RLIM_INFINITY)) == []


def test_a_name_without_an_address() -> None:
    check = machine_host.network("nowhere.invalid")
    assert check.status == "warning"
    assert check.fix == "Add a line `127.0.1.1 nowhere.invalid` to /etc/hosts."


def test_clocks() -> None:
    assert [machine_host.clock(state).status for state in (True, None, False)] == [
        "ok",
        "ok",
        "warning",
    ]
    assert [machine_remote.clock("a", offset).status for offset in (0.01, -0.9, 3.0, -3.0)] == [
        "ok",
        "ok",
        "warning",
        "warning",
    ]


def test_gpus_that_frameworks_leave_idle() -> None:
    """This machine has no GPU: numbers and versions stand for those of one that has."""
    cpu = versions(tensorflow_cpu="2.21.0", torch="2.13.0+cpu", jax="0.10.2", nvidia_ml_py="12.0")
    assert not_well(machine_host.gpus(2, True, cpu)) == ["warning GPUs"] * 3
    cuda = versions(
        tensorflow="2.21.0",
        nvidia_cudnn_cu12="9.1",
        torch="2.13.0",
        jax="0.10.2",
        jax_cuda12_plugin="0.10.2",
    )
    assert [check.fix for check in machine_host.gpus(2, True, cuda)][1:] == [
        "`pip install nvidia-ml-py`."
    ]
    assert not_well(machine_host.gpus(0, True, cpu)) == ["warning GPUs"]
    assert not_well(machine_host.gpus(0, False, cpu)) == []


# -- other hosts -----------------------------------------------------------------------------------


def ssh(folder: Path, script: str) -> str:
    """A command in the place of ssh, for hosts that are not there."""
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("far: Permission denied (publickey,password).", "`ssh-copy-id far`"),
        ("Host key verification failed.", "`ssh far` once"),
        ("ssh: connect to host far port 22: Connection refused", "Start sshd there"),
        (
            f"env: '{sys.executable}': No such file or directory",
            "this environment at the same path",
        ),
        ("No module named syrtos.doctor", "Install syrtos there"),
    ],
)
def test_hosts_that_can_not_be_used(tmp_path: Path, said: str, fix: str) -> None:
    check = only(
        iter(
            machine_remote.checks(
                ["far:2"], ssh(tmp_path, f'echo "{said}" >&2; exit 255'), environment()
            )
        )
    )
    assert (check.name, check.status) == ("far", "wrong")
    assert said in check.found
    assert fix in check.fix


def test_a_host_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_remote, "_PATIENCE", 1.0)
    began = time.monotonic()
    check = only(
        iter(machine_remote.checks(["far"], ssh(tmp_path, "exec sleep 60"), environment()))
    )
    assert "no answer in 1 s" in check.found
    assert time.monotonic() - began < 50


def test_no_prompt_is_ever_waited_for(tmp_path: Path) -> None:
    check = only(
        iter(machine_remote.checks(["far"], ssh(tmp_path, 'echo "$@" >&2'), environment()))
    )
    assert "-o BatchMode=yes -o ConnectTimeout=8 far" in check.found


def test_unequal_versions() -> None:
    theirs = {**machine_facts.versions_to_compare(), "keras": "3.12.0"}
    check = machine_remote.versions("far", theirs)
    assert check.status == "wrong"
    assert check.found == f"keras 3.12.0 (here {machine_facts.version('keras')})"
    assert machine_remote.versions("far", machine_facts.versions_to_compare()).status == "ok"
