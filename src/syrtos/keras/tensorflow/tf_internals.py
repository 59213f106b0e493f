"""Private symbols of TensorFlow that syrtos touches, and why. Seen to work on TensorFlow 2.21.

Some are in files of their own: `tf_internals_errors` has those through which errors pass,
`tf_internals_pipelines` those of `tf.data` pipelines, `tf_internals_iterators` those of their
iterators, `tf_internals_graphs` those of the graphs of functions, conditionals and loops,
`tf_internals_profiler` those of profiles, `tf_internals_random` those that draw random numbers.
Keras's private symbols are in `keras3`, where each is replaced; the few that are only read are
here. Seen on Keras 3.15.1 and tf_keras 2.21.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.checkpoint.checkpoint import TrackableSaver
from tensorflow.python.distribute import device_util, one_device_strategy
from tensorflow.python.eager import context, record
from tensorflow.python.eager.polymorphic_function import (
    function_type_utils,
    tracing_compilation,
)
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import ops
from tensorflow.python.ops import summary_ops_v2 as summary_ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable
from tensorflow.python.saved_model import load as saved_model_load
from tensorflow.python.saved_model import save as saved_model_save

from syrtos.records import read_record, record_of
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import Variable

# A data set, or another structure of batches.
Pipeline = TypeVar("Pipeline")
Result = TypeVar("Result")
# By the id of a `tf.function`: its copy for one step, and the function itself, or its id might be
# given to another.
TracedFunctions = dict[int, tuple[Function, Function]]


class AppliesGradients(Protocol):
    """An optimizer of TensorFlow 1."""

    def apply_gradients(
        self, grads_and_vars: object, global_step: object = None, name: str | None = None
    ) -> object:
        """Returns the operation that makes an update."""
        ...


class SyncReplicas(Protocol):
    """A `SyncReplicasOptimizer` of TensorFlow 1."""

    _opt: AppliesGradients


# Untyped, because the original annotates its hooks with the constants it returns.
_OneDeviceExtended: Any = one_device_strategy.OneDeviceExtended


class OneDeviceExtended(_OneDeviceExtended):
    """Base class of a strategy outside of TensorFlow: `tf.distribute` has no public one.

    The extended class of OneDeviceStrategy is the smallest one that is complete (variables, replica
    context, update).
    """

    # The original resolves its device when it is made, which initializes TensorFlow's context: a
    # script could then no longer configure threads, memory growth or logical devices. Here the
    # device is resolved when it is first used.
    def __init__(self, container: tf.distribute.Strategy) -> None:
        super(_OneDeviceExtended, self).__init__(container)
        # Said here, or the container would count our devices.
        self._retrace_functions_for_each_device = False

    @functools.cached_property
    def _device(self) -> str:
        return device_util.resolve("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")

    @functools.cached_property
    def _input_device(self) -> str:
        return device_util.get_host_for_device(self._device)


def may_be_recorded() -> bool:
    """Returns whether this thread's tape records: new gradients may be differentiated again."""
    # Seen in TensorFlow 2.21.
    return bool(record.could_possibly_record())


def value_of(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value, without telling a step that it is read."""
    # TensorFlow's stub does not say that this class is a base of its variables.
    value = BaseResourceVariable.read_value(cast("BaseResourceVariable", variable))
    return cast("tf.Tensor", value)


def set_value(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns a value, without telling a step."""
    BaseResourceVariable.assign(cast("BaseResourceVariable", variable), value)


# `tf.custom_gradient` without its annotation, which says that the function returns its gradient
# too.
custom_gradient: Any = tf.custom_gradient

# The modules behind `tf.train`, `tf.saved_model` and `tf.summary`, whose functions others import by
# name, and the class that writes a checkpoint's files: all names under which a script can save lead
# there.
__all__ = [
    "TrackableSaver",
    "checkpoint_management",
    "saved_model_load",
    "saved_model_save",
    "summary_ops",
]

# Set on a data set. A record of `syrtos.records` would keep it alive, as the pipelines that the facts
# refer to are made from the data set itself.
_FACTS = "_syrtos_shares"


@dataclasses.dataclass
class _DatasetFacts:
    """The facts about a data set and this worker's shares of it.

    Attributes:
        is_shared_out: whether it holds a worker's share already.
        kept: how the pipeline of its shares is made, and the pipeline. The first time that it is
            split both are None; before that, this is None.
        with_counts: the pipeline that gives the same batches with the number of this worker's rows.
    """

    is_shared_out: bool = False
    kept: tuple[object, Any] | None = None
    with_counts: tf.data.Dataset | None = None


def _facts_of(dataset: object) -> _DatasetFacts:
    """Returns the facts about a data set; of other data, to which nothing is added, there are none."""
    found: _DatasetFacts | None = getattr(dataset, _FACTS, None)
    if found is None:
        found = _DatasetFacts()
        if isinstance(dataset, tf.data.Dataset):
            setattr(dataset, _FACTS, found)
    return found


def watch_functions(
    copies_for_now: Callable[[], TracedFunctions | None],
    call_outside: Callable[[Function, Callable[..., object], Any, Any], object],
) -> None:
    """Makes each called `tf.function` be traced once per dictionary of ``copies_for_now()``.

    Calls without a dictionary are made by ``call_outside(function, call, args, kwargs)``.
    """
    # Such a dictionary belongs to a step: what an earlier trace took from the step around it (how
    # many samples there are) is gone, and what it assigns is not seen.
    original: Callable[..., object] = Function.__call__

    def call_as_it_is(self: Function, *args: object, **kwargs: object) -> object:
        with set_within(_by_xla, is_compiled() or is_compiled_function(self)):
            return original(self, *args, **kwargs)

    def call(self: Function, *args: object, **kwargs: object) -> object:
        copies = copies_for_now()
        if copies is None or type(self) is not Function:
            return call_outside(self, functools.partial(call_as_it_is, self), args, kwargs)
        if id(self) not in copies:
            copies[id(self)] = (copy_function(self), self)
        return call_as_it_is(copies[id(self)][0], *args, **kwargs)

    setattr(Function, "__call__", call)  # noqa: B010 - pyright knows better than to assign to a method


def copy_function(function: Function) -> Function:
    """Returns a `tf.function` of the same Python function that nothing has traced yet."""
    # Seen in TensorFlow 2.18 to 2.21.
    return function._clone(None)


def is_compiled_function(function: Function) -> bool:
    """Returns whether a `tf.function` has ``jit_compile=True``."""
    return bool(getattr(function, "_jit_compile", False))


def flat_inputs(
    function: Function, concrete: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tf.Tensor]:
    """Returns the tensors among arguments of a `tf.function`, as one of its traces takes them."""
    # As TensorFlow itself does before it calls a trace. Seen in TensorFlow 2.21.
    given = function_type_utils.canonicalize_function_inputs(
        args, kwargs, function.function_type, function._default_values
    )
    bound = concrete.function_type.bind(*given.args, **given.kwargs)
    return list(concrete.function_type.unpack_inputs(bound))


def function_of_tensors(call: Callable[..., object], concrete: Any) -> Callable[..., object]:
    """Returns a `tf.function` of the tensors that a trace takes."""
    taken = concrete.inputs[: len(concrete.inputs) - len(concrete.graph.captures)]
    of_rows = all(tensor.dtype not in (tf.resource, tf.variant) for tensor in taken)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in taken]
    made: Any = tf.function(call, autograph=False, input_signature=specs if of_rows else None)
    # It would name a function that the script does not have.
    made._omit_frequent_tracing_warning = True
    return made


_by_xla: ContextVar[bool] = ContextVar("by_xla", default=False)


def is_compiled() -> bool:
    """Returns whether a `tf.function` that this thread traces or runs has ``jit_compile=True``."""
    return _by_xla.get()


def watch_tracing(tracing: Callable[[str, object], AbstractContextManager[None]]) -> None:
    """Makes each graph of a `tf.function` be built inside ``tracing(name, function)``."""
    original: Callable[..., object] = tracing_compilation._create_concrete_function

    def create(*args: object, **kwargs: object) -> object:
        graph = kwargs.get("func_graph", args[2] if len(args) > 2 else None)
        options = kwargs.get("tracing_options", args[3] if len(args) > 3 else None)
        with tracing(
            str(getattr(graph, "name", "function")), getattr(options, "python_function", None)
        ):
            return original(*args, **kwargs)

    tracing_compilation._create_concrete_function = create


def keep_compat_modules() -> None:
    """Makes `import tensorflow.compat.v1` give `tf.compat.v1`."""
    # TensorFlow's modules are those of ``tensorflow._api.v2``. Imported by their public names they
    # would be made a second time, without what was added to them, and take the first ones' place.
    prefix = "tensorflow._api.v2."
    for name, module in list(sys.modules.items()):
        if not name.startswith(prefix + "compat"):
            continue
        public = name.removeprefix(prefix)
        if (
            functools.reduce(lambda found, part: getattr(found, part, None), public.split("."), tf)
            is module
        ):
            sys.modules.setdefault(f"tensorflow.{public}", module)


def legacy_layers() -> ModuleType:
    """Returns `tf.compat.v1.layers` from Keras 2, where TensorFlow itself finds it."""
    # TensorFlow hides it from scripts that use Keras 3.
    return importlib.import_module("tf_keras.api._v1.keras.__internal__.legacy.layers")


@contextmanager
def assignments_of_keras() -> Iterator[list[tf.Operation]]:
    """Collects a TensorFlow 1 graph's operations by which Keras 3 assigns non-trainable variables.

    These are moving statistics and states of random numbers.
    """
    # Keras 2 has a collection for them; Keras 3 counts on functions, which run all they assign.
    found: list[tf.Operation] = []
    if "keras" not in sys.modules:
        yield found
        return
    kind = sys.modules["keras"].Variable
    original = kind.assign

    def assign(self: Variable, value: object) -> object:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        result = original(self, value)
        if not self.trainable:
            found.extend(
                op for op in graph.get_operations()[before:] if op.type == "AssignVariableOp"
            )
        return result

    kind.assign = assign
    try:
        yield found
    finally:
        kind.assign = original


@contextmanager
def names_of_a_new_graph() -> Iterator[None]:
    """Makes Keras 3 number layers from the start within the context, as Keras 2 does per graph."""
    # A graph that is built again then has the same names.
    if "keras" not in sys.modules:
        yield
        return
    global_state = importlib.import_module("keras.src.backend.common.global_state")
    before = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute("object_name_uids", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", before)


def losses_are_sums(graph: tf.Graph) -> bool:
    """Returns whether a TensorFlow 1 graph's last `tf.compat.v1.losses` was a sum over samples."""
    return getattr(graph, "_last_loss_reduction", None) == tf.compat.v1.losses.Reduction.SUM


def global_seed() -> int | None:
    """Returns the seed that `tf.random.set_seed` was last given."""
    return context.global_seed()


def shared_out(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Notes that a data set holds a worker's share already: `fit` must not share it out again."""
    _facts_of(dataset).is_shared_out = True
    return dataset


def is_shared_out(dataset: object) -> bool:
    """Returns whether `shared_out` has noted that a data set holds a share."""
    return _facts_of(dataset).is_shared_out


def iterates_over_shares(iterator: tf.data.Iterator) -> bool:
    """Returns whether an iterator goes through a data set that `shared_out` has noted."""
    dataset: Any = getattr(iterator, "_dataset", None)
    while type(dataset).__name__ == "_OptionsDataset" and not is_shared_out(dataset):
        dataset = dataset._input_dataset
    return is_shared_out(dataset)


def kept_shares(dataset: tf.data.Dataset, how: object, build: Callable[[], Pipeline]) -> Pipeline:
    """Returns the pipeline that ``build`` makes of a data set, kept for when the set comes again.

    Data sets come again in scripts with many calls of `fit`. The pipeline is built again where
    ``how`` is another.
    """
    facts = _facts_of(dataset)
    # It is not kept the first time: a data set that comes once, as that of arrays, must not be in a
    # circle with the pipeline that it is a part of, or the arrays would live until Python collects
    # circles.
    if facts.kept is None:
        facts.kept = None, None
        return build()
    if facts.kept[0] != how:
        facts.kept = how, build()
    return facts.kept[1]


def with_counts(dataset: tf.data.Dataset, shares: tf.data.Dataset) -> tf.data.Dataset:
    """Notes the pipeline that gives the same batches with the number of this worker's rows."""
    _facts_of(dataset).with_counts = shares
    return dataset


def counted_pipeline(dataset: Pipeline) -> Pipeline:
    """Returns the pipeline that `with_counts` has noted, or the data set itself."""
    found: Any = _facts_of(dataset).with_counts
    return dataset if found is None else found


@dataclasses.dataclass
class _DefaultStrategy:
    """The record of the stack of default graphs: what `keep_default_strategy` was given last."""

    strategy: tf.distribute.Strategy | None = None


def keep_default_strategy(strategy: tf.distribute.Strategy | None) -> None:
    """Makes ``strategy`` the process's default, also after `clear_session`.

    With None TensorFlow's own default is in force again.
    """
    record_of(ops._default_graph_stack, _DefaultStrategy).strategy = strategy
    # `clear_session` throws the default away with the graph.
    _survive_reset()
    tf.distribute.experimental_set_strategy(strategy)


def keeps_default_strategy() -> bool:
    """Returns whether `keep_default_strategy` was given a strategy."""
    return read_record(ops._default_graph_stack, _DefaultStrategy).strategy is not None


@functools.cache
def _survive_reset() -> None:
    # Public functions that throw the default graph away exist under several names; all of them
    # reset this stack.
    stack = ops._default_graph_stack
    original = stack.reset

    def reset() -> None:
        original()
        kept = read_record(stack, _DefaultStrategy)
        tf.distribute.experimental_set_strategy(kept.strategy)

    stack.reset = reset


def inner_of_sync_replicas(optimizer: SyncReplicas) -> AppliesGradients:
    """Returns the optimizer that a `SyncReplicasOptimizer` was given."""
    # It has no public name for it.
    return optimizer._opt
