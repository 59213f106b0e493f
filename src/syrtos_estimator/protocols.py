"""TensorFlow 1's types that the Estimator uses: TensorFlow's stubs have no `tf.compat.v1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")
# What a run of a graph is fed with: values by the graph's tensors. The keys are objects, because
# TensorFlow's stubs say that a tensor has no hash; eager ones have none.
Feed = Mapping[object, object]


class GraphSession(Protocol):
    """A session: `tf.compat.v1.Session`, or a monitored one."""

    def run(self, fetches: object, feed_dict: Feed | None = None) -> Any:
        """Returns the values of the fetched tensors, in the structure of ``fetches``."""
        ...


class StepContext(Protocol):
    """The argument of a function that a monitored session runs outside of its hooks."""

    session: GraphSession


class MonitoredSession(GraphSession, Protocol):
    """A session with hooks: `tf.compat.v1.train.MonitoredSession`."""

    def should_stop(self) -> bool:
        """Returns whether the data or a hook has ended the run."""
        ...

    def run_step_fn(self, step_fn: Callable[[StepContext], Result]) -> Result:
        """Returns what a function of the session without hooks returns."""
        ...

    def __enter__(self) -> MonitoredSession: ...

    def __exit__(self, *details: object) -> bool | None: ...


class RunContext(Protocol):
    """The argument of a hook before and after a step: `tf.compat.v1.train.SessionRunContext`."""

    @property
    def session(self) -> GraphSession:
        """The session that makes the step."""
        ...

    @property
    def stop_requested(self) -> bool:
        """True once a hook has asked for the end of the run."""
        ...

    def request_stop(self) -> None:
        """Ends the run after this step."""
        ...


class RunValues(Protocol):
    """The values that a hook is given after a step: `tf.compat.v1.train.SessionRunValues`."""

    @property
    def results(self) -> Any:
        """The values that the hook asked for before the step."""
        ...


class Saver(Protocol):
    """A writer and reader of checkpoints: `tf.compat.v1.train.Saver`."""

    def save(
        self, sess: GraphSession, save_path: str, global_step: int, write_meta_graph: bool
    ) -> object:
        """Writes a checkpoint."""
        ...

    def restore(self, sess: GraphSession, save_path: str) -> object:
        """Reads a checkpoint."""
        ...


class Scaffold(Protocol):
    """The parts of a graph that a session needs: `tf.compat.v1.train.Scaffold`."""

    @property
    def saver(self) -> Saver | None:
        """The saver; None until the graph is final, if the script has given none."""
        ...


class SavingListener(Protocol):
    """Functions called around checkpoints: `tf.compat.v1.train.CheckpointSaverListener`."""

    def begin(self) -> None:
        """Adds operations, before the graph is final."""
        ...

    def before_save(self, session: GraphSession, global_step_value: int) -> None:
        """Prepares a checkpoint."""
        ...

    def after_save(self, session: GraphSession, global_step_value: int) -> object:
        """Looks at a new checkpoint; a true result ends the training."""
        ...

    def end(self, session: GraphSession, global_step_value: int) -> None:
        """Cleans up after the last step."""
        ...


class MetricOfKeras2(Protocol):
    """A metric of Keras 2 in a graph."""

    updates: list[object]
    variables: list[object]

    def result(self) -> object:
        """Returns the tensor of the metric's value."""
        ...
