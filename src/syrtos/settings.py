"""The only reader of ``os.environ``: options that travel from the launcher to the workers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Literal, get_args

from syrtos.errors import ConfigurationError

BatchMode = Literal["global", "per-worker"]
ScaleLR = Literal["none", "linear", "sqrt"]
Exchange = Literal["auto", "mpi", "framework"]
OnNaN = Literal["warn", "stop", "skip"]
OnDivergence = Literal["stop", "repair"]
CompileUpdate = Literal["auto", "on", "off"]
# The treatment of a script whose batches differ from those that it had when a snapshot was made.
# They are ignored where the same launcher starts workers again: such data is drawn at random.
OtherBatches = Literal["ignored", "compared", "any"]

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|pwd|credential|(api|access|private)[_-]?key|(^|[_-])(token|key|auth|pw)$",
    re.IGNORECASE,
)
_CODEC = re.compile(r"none|auto|bf16|fp16|powersgd:[1-9]\d*")

_MOST_PROFILED = 200
_STEPS = re.compile(r"steps=(\d{1,12}):(\d{1,12})")
OPTIONS_VARIABLE = "SYRTOS_OPTIONS"
SEED_VARIABLE = "SYRTOS_SEED"

# Further variables of the launcher for workers: that it reads their reports, the place of their
# standard input, the processes of TF_CONFIG's tasks, and where they keep snapshots.
SUPERVISED_VARIABLE = "SYRTOS_SUPERVISED"
INPUT_VARIABLE = "SYRTOS_INPUT"
# The arguments of a script whose command line must not show them, as JSON.
ARGUMENTS_VARIABLE = "SYRTOS_ARGUMENTS"
TASKS_VARIABLE = "SYRTOS_TASKS"
SNAPSHOTS_VARIABLE = "SYRTOS_SNAPSHOTS"
CLAIMS_VARIABLE = "SYRTOS_CLAIMS"
TRIAL_VARIABLE = "SYRTOS_TRIAL"
# Where workers find a function that they are to call, and leave its result: two files in the memory
# of a process of this user, and their name there.
CALL_VARIABLE = "SYRTOS_CALL"
CALL_NAME = "syrtos-notebook"
# The module that workers run then.
CALL_PROGRAM = "syrtos.notebook.call"
# Set where a worker shares its GPU with another.
SHARED_GPU_VARIABLE = "SYRTOS_SHARED_GPU"
# When a process began to import the frameworks from which this one is forked, and when it had, in
# seconds since the epoch.
IMPORTED_VARIABLE = "SYRTOS_IMPORTED"
# The clock by which the processes of a run measure: see `syrtos.observe.steady`.
MOMENT_VARIABLE = "SYRTOS_MOMENT"
# "1": each worker is a new interpreter, and imports by itself. "first", which the launcher sets:
# those are that are started before any has imported.
NEW_INTERPRETERS_VARIABLE = "SYRTOS_NEW_INTERPRETERS"
FOR_WORKERS = (
    OPTIONS_VARIABLE,
    SUPERVISED_VARIABLE,
    INPUT_VARIABLE,
    TASKS_VARIABLE,
    SNAPSHOTS_VARIABLE,
    CLAIMS_VARIABLE,
    TRIAL_VARIABLE,
    IMPORTED_VARIABLE,
)

# Variables that begin like this configure libraries and hold no secrets: they may be shown, and
# sent to other hosts. Not all of `TF_`: Terraform keeps tokens there.
HARMLESS = (
    "SYRTOS_",
    "KERAS_",
    "TF_CPP_",
    "TF_NUM_",
    "TF_ENABLE_",
    "TF_USE_",
    "TF_XLA_",
    "TF_GPU_",
    "TF_FORCE_",
    "TF_DETERMINISTIC_",
    "XLA_",
    "OMP_",
    "FI_",
    "UCX_",
    "MPICH_",
    "MPIR_",
    "CUDA_",
    "NCCL_",
    "PYTHON",
)


# Begin like harmless ones, and are none: never shown, sent to other hosts, or given to scripts.
SECRET_VARIABLE = "SYRTOS_SECRET"
DATABASE_VARIABLE = "SYRTOS_DATABASE_URL"
# Set by Kubeflow Trainer, 2.2 and later: where the progress of a TrainJob is reported to, and the
# files with the authority and the token for it.
KUBEFLOW_VARIABLES = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one run; the same on every worker.

    Attributes:
        batch: ``"global"``: a batch of the script is one optimizer step over all workers.
            ``"per-worker"``: each worker takes whole batches (Horovod's meaning).
        sync_batchnorm: whether BatchNormalization statistics are computed over the global batch.
        scale_lr: the rule by which the learning rate grows with the number of workers.
        warmup_epochs: epochs over which the learning rate climbs to its scaled value.
        check_every: steps between two comparisons of the replicas' weights; 0 turns them off; -1:
            every 100, or so rarely that they take no more than 0.5 % of the time.
        timeout: seconds a worker may wait for the others before the run is stopped.
        run_dir: folder that everything about the run is written to; empty for none.
        servers: number of processes beside the workers that hold the parameters and apply the
            optimizers.
        staleness: with servers, how many updates a worker may be ahead of the slowest; None: any
            number; 0: every update is made of all workers' gradients.
        exchange: the engine that sums gradients: ``"mpi"`` (with shared memory inside a host);
            ``"framework"``: the collectives of Keras's backend; ``"auto"``: the framework's where
            gradients are on GPUs, and with JAX, MPI elsewhere.
        on_nan: the treatment of a gradient that is NaN or infinite, before it is applied:
            ``"stop"``: the run ends; ``"skip"``: the batch is left out; ``"warn"``: it is applied,
            and a loss that is not finite is reported once.
        on_divergence: the treatment of replicas that differ: ``"stop"``: the run ends;
            ``"repair"``: it goes on from the last snapshot, before each of which the replicas are
            compared.
        sync_every: in `fit`, steps that each worker trains alone before the workers exchange the
            change of their weights; 0: gradients are exchanged in each step.
        outer_lr: with ``sync_every``, the rate of the outer optimizer, for which the mean change of
            the weights is the gradient.
        outer_momentum: with ``sync_every``, the Nesterov momentum of the outer optimizer.
        compress: the codec by which gradients, or changes of weights, travel between workers: see
            `syrtos.comm.compression`.
        compile_update: whether XLA compiles an optimizer's update (TensorFlow); ``"auto"``: on
            CPUs, where variables are many and large.
        shard_update: whether each worker updates its part of each variable, and keeps the
            optimizer's state of that part alone: see `syrtos.keras.features.sharding`.
        verifies: whether the first batches of all functions are computed by one process too and
            compared, after which training ends.
        verifies_operations: with ``verifies``, whether each operation on rows is compared too
            (TensorFlow).
        bucket_mb: the approximate size, in megabytes, of the groups in which gradients are
            exchanged.
        profile: the training steps that a profile is made of, as ``steps=20:30``; empty: none.
    """

    batch: BatchMode = "global"
    sync_batchnorm: bool = False
    scale_lr: ScaleLR = "none"
    warmup_epochs: int = 0
    check_every: int = -1
    timeout: float = 300.0
    run_dir: str = ""
    bucket_mb: float = 32.0
    exchange: Exchange = "auto"
    servers: int = 0
    staleness: int | None = None
    on_nan: OnNaN = "warn"
    on_divergence: OnDivergence = "stop"
    compile_update: CompileUpdate = "auto"
    sync_every: int = 0
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    compress: str = "none"
    shard_update: bool = False
    verifies: bool = False
    verifies_operations: bool = False
    profile: str = ""

    @property
    def profiled_steps(self) -> tuple[int, int] | None:
        """The first step that is profiled, and the one after the last; None if none is."""
        found = _STEPS.fullmatch(self.profile)
        return (int(found[1]), int(found[2])) if found else None

    @property
    def asynchronous(self) -> bool:
        """Returns whether each worker makes updates when it can, without the others."""
        return bool(self.servers) and self.staleness != 0

    def __post_init__(self) -> None:
        _one_of("batch", self.batch, get_args(BatchMode))
        _one_of("scale_lr", self.scale_lr, get_args(ScaleLR))
        _one_of("exchange", self.exchange, get_args(Exchange))
        _one_of("on_nan", self.on_nan, get_args(OnNaN))
        _one_of("on_divergence", self.on_divergence, get_args(OnDivergence))
        _one_of("compile_update", self.compile_update, get_args(CompileUpdate))
        if self.warmup_epochs < 0:
            raise ConfigurationError(
                f"`warmup_epochs` must be 0 or more. Received: {self.warmup_epochs}."
            )
        if self.check_every < -1:
            raise ConfigurationError(
                "`check_every` must be steps, 0 (never) or -1 (automatic). Received:"
                f" {self.check_every}."
            )
        if self.servers < 0:
            raise ConfigurationError(f"`servers` must be 0 or more. Received: {self.servers}.")
        if self.staleness is not None and (self.staleness < 0 or not self.servers):
            raise ConfigurationError(
                "`staleness` is a number of updates, 0 or more, between workers that train over"
                f" parameter servers (`--ps`). Received: {self.staleness} with {self.servers}"
                " servers."
            )
        if self.servers and self.on_nan != "warn":
            raise ConfigurationError(
                f"`--on-nan {self.on_nan}` can't be given with `--ps`: servers apply each gradient"
                " that comes. Leave one of them out."
            )
        self._check_sharding()
        self._check_profile()
        if self.asynchronous and self.batch == "per-worker":
            raise ConfigurationError(
                "`--batch per-worker` can't be given with `--ps`: servers assign whole batches to"
                " workers, from data that all workers read alike. Leave it out, or add"
                " `--staleness 0`."
            )
        if not _CODEC.fullmatch(self.compress):
            raise ConfigurationError(
                "`compress` must be none, auto, bf16, fp16, or powersgd:R (a rank of 1 or more). "
                f"Received: {self.compress!r}."
            )
        if self.servers and self.compress != "none":
            raise ConfigurationError(
                "`--compress` can't be given with `--ps`: servers take gradients as they are. Leave"
                " one of them out."
            )
        if self.exchange == "framework" and self.compress != "none":
            raise ConfigurationError(
                "`--compress` can't be given with `--exchange framework`: what the framework"
                " exchanges is not compressed. Leave one of them out."
            )
        self._check_local_steps()
        for name in ("timeout", "bucket_mb", "outer_lr"):
            # Written so that NaN is refused too.
            if not getattr(self, name) > 0:
                raise ConfigurationError(
                    f"`{name}` must be more than 0. Received: {getattr(self, name)}."
                )

    def _check_profile(self) -> None:
        if self.profile and (
            self.profiled_steps is None or self.profiled_steps[0] >= self.profiled_steps[1]
        ):
            raise ConfigurationError(
                "`--profile` takes two numbers of training steps, as steps=20:30 for those after"
                f" step 20 up to step 30. Received: {self.profile!r}."
            )
        if self.profiled_steps and self.profiled_steps[1] - self.profiled_steps[0] > _MOST_PROFILED:
            raise ConfigurationError(
                f"`--profile` takes at most {_MOST_PROFILED} steps: the framework's profiler keeps"
                f" all that it sees in memory. Received: {self.profile!r}."
            )
        if self.profile and self.servers:
            raise ConfigurationError(
                "`--profile` can't be given with `--ps`: its workers do not make each step"
                " together. Leave one of them out."
            )

    def _check_sharding(self) -> None:
        if self.shard_update and (self.servers or self.sync_every):
            raise ConfigurationError(
                "`--shard-update` can't be given with"
                f" {'--ps' if self.servers else '--sync-every'}: its workers do not make each"
                " update together. Leave one of them out."
            )
        if self.shard_update and self.on_divergence == "repair" and self.check_every != 1:
            raise ConfigurationError(
                "`--on-divergence repair` needs `--check-every 1` with --shard-update: an update"
                " gathers the parts of all workers, after which replicas that had diverged are"
                " equal again."
            )

    def _check_local_steps(self) -> None:
        if self.sync_every < 0:
            raise ConfigurationError(
                f"`sync_every` must be 0 or more steps. Received: {self.sync_every}."
            )
        if not 0 <= self.outer_momentum < 1:
            raise ConfigurationError(
                f"`outer_momentum` must be in [0, 1). Received: {self.outer_momentum}."
            )
        if not self.sync_every:
            return
        others = {
            "--ps": self.servers > 0,
            "--batch per-worker": self.batch == "per-worker",
            "--sync-batchnorm": self.sync_batchnorm,
            "--on-divergence repair": self.on_divergence == "repair",
            f"--on-nan {self.on_nan}": self.on_nan == "skip",
            f"--scale-lr {self.scale_lr}": self.scale_lr != "none",
        }
        if given := [name for name, is_given in others.items() if is_given]:
            raise ConfigurationError(
                f"`--sync-every {self.sync_every}` lets each worker train alone on its share of the"
                f" batches. It can't be given with {given[0]}, which is made for workers that make"
                " each update together. Leave one of them out."
            )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneTrial:
    """The work of the first `fit` of a script for `syrtos tune`, in place of its own training.

    Attributes:
        kind: ``"batch"``: it trains some steps with batches of another size; ``"lr"``: its learning
            rate rises from batch to batch.
        steps: training steps that are measured, or batches over which the rate rises.
        batch: with ``"batch"``, rows of a global batch; 0: as many as the script's own.
        first_rate: with ``"lr"``, the learning rate of the first batch.
        last_rate: with ``"lr"``, the learning rate of the last batch.
    """

    kind: Literal["batch", "lr"]
    steps: int
    batch: int = 0
    first_rate: float = 0.0
    last_rate: float = 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def trial_from(env: Mapping[str, str]) -> TuneTrial | None:
    """Returns the trial that this process is; None for a run of its own."""
    text = env.get(TRIAL_VARIABLE)
    return TuneTrial(**json.loads(text)) if text else None


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(
            f"`{name}` must be one of {', '.join(allowed)}. Received: {value!r}."
        )


def environment() -> Mapping[str, str]:
    """Returns the process's environment, for the pure functions that read it."""
    return os.environ


def is_harmless(name: str) -> bool:
    """Returns whether a variable may be shown, and sent to other hosts."""
    return name.startswith(HARMLESS) and name not in (SECRET_VARIABLE, DATABASE_VARIABLE)


def is_secret(name: str) -> bool:
    """Returns whether the name of a variable, argument or hyperparameter marks a secret value."""
    return bool(_SECRET_NAME.search(name))


def read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that TensorFlow, Keras and their libraries read at their import."""
    # ours, each worker's own GPUs, and what an interpreter has read before
    others = ("SYRTOS_", "CUDA_", "PYTHON")
    return {
        name: value
        for name, value in env.items()
        if is_harmless(name) and not name.startswith(others)
    }


def hash_seed(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable by which workers hash strings, and so order their sets, alike.

    The result is empty where ``env`` has it.
    """
    # A vocabulary that a script makes of a set would be another on each worker.
    return {} if env.get("PYTHONHASHSEED", "").isdigit() else {"PYTHONHASHSEED": "0"}


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for a process that needs none of ours that are secret."""
    return {
        name: value
        for name, value in env.items()
        if name not in (SECRET_VARIABLE, DATABASE_VARIABLE)
    }


class _HeldVariables:
    """The launcher's variables as they were when the script began, which may remove them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def hold(self) -> None:
        names = [name for name in os.environ if name.startswith("SYRTOS_")]
        self._values = {name: os.environ[name] for name in names}

    def get(self, name: str) -> str:
        return os.environ.get(name) or self._values.get(name, "")

    def added_to(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**self._values, **env}

    def take(self, name: str) -> str:
        held = self._values.pop(name, "")
        return os.environ.pop(name, held)


_HELD = _HeldVariables()


def launched_with() -> Mapping[str, str]:
    """Returns the environment, with the launcher's variables that a script has removed."""
    return _HELD.added_to(os.environ)


def hold_ours() -> None:
    """Keeps the variables of the launcher, which a script may remove (`os.environ.clear()`)."""
    _HELD.hold()


def common_seed() -> int:
    """Returns the seed that all workers of a run began with; 0 outside of a run."""
    return int(_HELD.get(SEED_VARIABLE) or "0")


def forget_secret() -> None:
    """Removes secrets from the environment of this process and of processes that it starts."""
    for name in (SECRET_VARIABLE, DATABASE_VARIABLE):
        os.environ.pop(name, None)


def take(name: str) -> str:
    """Removes a variable, and returns its value or an empty text.

    Processes that are started from here then don't inherit it.
    """
    return _HELD.take(name)


def take_arguments() -> tuple[str, ...]:
    """Removes the variable with the arguments of this process's script, and returns them."""
    return tuple(json.loads(take(ARGUMENTS_VARIABLE) or "[]"))


def set_environment(values: Mapping[str, str]) -> None:
    """Sets variables that libraries read when they are imported later."""
    os.environ.update(values)


def options_from(env: Mapping[str, str]) -> Options:
    """Returns the options that the launcher left in ``env``, or the defaults.

    Raises:
        ConfigurationError: the variable was not written by a launcher of this version.
    """
    text = env.get(OPTIONS_VARIABLE)
    if not text:
        return Options()
    try:
        return Options(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{OPTIONS_VARIABLE} can't be read: {error}. It is written by `syrtos run`; "
            "start the script with the same version of syrtos on every host, or unset it."
        ) from error
