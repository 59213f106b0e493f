"""The settings of an Estimator's run, `tf.estimator.RunConfig`."""

from __future__ import annotations

import copy
import enum
import json
import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Self, TypedDict

import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.topology import World

if TYPE_CHECKING:
    from tensorflow.core.protobuf.config_pb2 import ConfigProto


class _Unset(enum.Enum):
    """The default of an argument for which None has a meaning: no checkpoints."""

    UNSET = enum.auto()


_UNSET: Final = _Unset.UNSET
_REPLACEABLE = (
    "model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
    "session_config", "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps",
    "train_distribute", "device_fn", "protocol", "eval_distribute", "experimental_distribute",
    "experimental_max_worker_delay_secs", "session_creation_timeout_secs", "checkpoint_save_graph_def",
)  # fmt: skip


class _Task(TypedDict, total=False):
    """The role of a process, in TF_CONFIG."""

    type: str
    index: int | str


class _Cluster(TypedDict, total=False):
    """The content of TF_CONFIG: the addresses of each role, the role of this process, and more."""

    cluster: dict[str, list[str]]
    task: _Task
    model_dir: str
    service: object


class TaskType:
    """The roles in a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


class RunConfig:
    """Settings of training; see the documentation of TensorFlow 2.15. Roles are those of this run.

    Attributes:
        model_dir: the folder of checkpoints, summaries and exports.
        tf_random_seed: the graph's seed.
        save_checkpoints_steps: steps between checkpoints, or None.
        save_checkpoints_secs: seconds between checkpoints, or None.
        keep_checkpoint_max: number of checkpoints that are kept; None or 0: all.
        log_step_count_steps: steps between two lines of the log.
        train_distribute: a strategy; with one, a batch of ``input_fn`` is that of one worker.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | Literal[_Unset.UNSET] | None = _UNSET,
        save_checkpoints_secs: int | Literal[_Unset.UNSET] | None = _UNSET,
        session_config: ConfigProto | None = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: int = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: tf.distribute.Strategy | None = None,
        device_fn: Callable[[tf.Operation], str] | None = None,
        protocol: str | None = None,
        eval_distribute: tf.distribute.Strategy | None = None,
        experimental_distribute: object = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: int = 7200,
        checkpoint_save_graph_def: bool = True,
    ) -> None:
        """Checks and keeps the settings.

        Raises:
            ValueError: steps and seconds between checkpoints are both given, TF_CONFIG has another
                ``model_dir``, or TF_CONFIG names an evaluator with an index above 0.
        """
        steps, seconds = _with_defaults(save_checkpoints_steps, save_checkpoints_secs)
        _check_one_of(steps, seconds)
        self._cluster = _tf_config()
        self.model_dir = _model_dir(model_dir, self._cluster)
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps = steps
        self.save_checkpoints_secs = seconds
        self.session_config = session_config or tf.compat.v1.ConfigProto(allow_soft_placement=True)
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self.log_step_count_steps = log_step_count_steps
        self.train_distribute = train_distribute or getattr(
            experimental_distribute, "train_distribute", None
        )
        self.eval_distribute = eval_distribute or getattr(
            experimental_distribute, "eval_distribute", None
        )
        self.experimental_distribute = experimental_distribute
        self.device_fn = device_fn
        self.protocol = protocol
        self.experimental_max_worker_delay_secs = experimental_max_worker_delay_secs
        self.session_creation_timeout_secs = session_creation_timeout_secs
        self.checkpoint_save_graph_def = checkpoint_save_graph_def

    def replace(self, **kwargs: object) -> Self:
        """Returns a copy with other values.

        Raises:
            ValueError: one of them can't be replaced, or steps and seconds between checkpoints are
                both given.
        """
        unknown = [name for name in kwargs if name not in _REPLACEABLE]
        if unknown:
            raise ValueError(
                f"RunConfig.replace knows {', '.join(_REPLACEABLE)}. Received:"
                f" {', '.join(unknown)}."
            )
        steps, seconds = kwargs.get("save_checkpoints_steps"), kwargs.get("save_checkpoints_secs")
        _check_one_of(steps, seconds)
        other = copy.copy(self)
        # The new one takes the place of the other kind, as in TensorFlow.
        if steps is not None:
            other.save_checkpoints_secs = None
        if seconds is not None:
            other.save_checkpoints_steps = None
        for name, value in kwargs.items():
            setattr(other, name, str(value) if name == "model_dir" and value is not None else value)
        return other

    # -- roles -----------------------------------------------------------------------------------

    @property
    def task_type(self) -> str:
        """The role of this process.

        TF_CONFIG may make it ``evaluator`` or ``ps``. Else rank 0 of several workers is the chief,
        and all others are workers.
        """
        told = self._cluster.get("task", {}).get("type")
        if told in (TaskType.EVALUATOR, TaskType.PS):
            return told
        return (
            TaskType.CHIEF
            if self._place.rank == 0 and self.num_worker_replicas > 1
            else TaskType.WORKER
        )

    @property
    def _place(self) -> World:
        # Not kept: scripts copy a config in all depths.
        return world.current().world

    @property
    def task_id(self) -> int:
        """The index among the processes of the same role."""
        if self.task_type in (TaskType.EVALUATOR, TaskType.PS):
            return int(self._cluster.get("task", {}).get("index", 0))
        return max(self._place.rank - 1, 0)

    @property
    def is_chief(self) -> bool:
        """Returns whether this worker writes files: it is rank 0, and no evaluator or ``ps``."""
        return self._place.rank == 0 and self.task_type not in (
            TaskType.EVALUATOR,
            TaskType.PS,
        )

    @property
    def num_worker_replicas(self) -> int:
        """The number of workers, the chief among them; 0 for an evaluator."""
        told = self._cluster.get("task", {}).get("type")
        return 0 if told == TaskType.EVALUATOR else self._place.size

    @property
    def num_ps_replicas(self) -> int:
        """The number of parameter servers: 0, since none hold an Estimator's weights."""
        return 0

    @property
    def global_id_in_cluster(self) -> int | None:
        """The rank; None for an evaluator."""
        return None if self.task_type == TaskType.EVALUATOR else self._place.rank

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster that TF_CONFIG names; empty without TF_CONFIG, and for an evaluator."""
        cluster = self._cluster.get("cluster", {})
        return tf.train.ClusterSpec({} if self.task_type == TaskType.EVALUATOR else cluster)

    @property
    def evaluation_master(self) -> str:
        """An empty address: nothing is run remotely."""
        return ""

    master = evaluation_master

    @property
    def service(self) -> object:
        """The ``service`` in TF_CONFIG; None without one."""
        return self._cluster.get("service")


def _with_defaults(
    steps: int | Literal[_Unset.UNSET] | None, seconds: int | Literal[_Unset.UNSET] | None
) -> tuple[int | None, int | None]:
    """Returns the steps and the seconds between checkpoints."""
    # As in TensorFlow: one that is given, None too, turns the default of the other off.
    if steps is _UNSET:
        return None, 600 if seconds is _UNSET else seconds
    return steps, None if seconds is _UNSET else seconds


def _check_one_of(steps: object, seconds: object) -> None:
    if steps is not None and seconds is not None:
        raise ValueError(
            "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set: give one of"
            " them."
        )


def _tf_config() -> _Cluster:
    found: _Cluster = json.loads(settings.environment().get("TF_CONFIG") or "{}")
    task = found.get("task", {})
    if task.get("type") == TaskType.EVALUATOR and int(task.get("index", 0)) > 0:
        raise ValueError(
            "TF_CONFIG names an evaluator with an index: there is one evaluator, and its index"
            " is 0."
        )
    return found


def _model_dir(given: str | os.PathLike[str] | None, cluster: _Cluster) -> str | None:
    told = cluster.get("model_dir")
    if given is not None and told is not None and str(given) != told:
        raise ValueError(
            f"`model_dir` is given as {given} and in TF_CONFIG as {told}: give it in one place."
        )
    found = given if given is not None else told
    return None if found is None else str(found)


def with_model_dir(config: RunConfig, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Returns the config with the given folder, or else with one that rank 0 made for all workers.

    Raises:
        ValueError: ``model_dir`` and the config's differ.
    """
    if model_dir is not None and config.model_dir not in (None, str(model_dir)):
        raise ValueError(
            f"`model_dir` is given as {model_dir}, and the RunConfig has {config.model_dir}. Give"
            " one of them."
        )
    chosen = str(model_dir) if model_dir is not None else config.model_dir
    comm = world.current().comm
    if chosen is None:
        made = tempfile.mkdtemp() if comm.rank == 0 else None
        chosen = comm.broadcast_object(made)
    config.model_dir = chosen
    return config
