"""TensorFlow 1's optimizers inside a ``model_fn``, whose gradients become those of all workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import tensorflow as tf

from syrtos.keras.patching import replace
from syrtos.keras.split import noted_gradients
from syrtos.keras.tensorflow import gradients, tf_internals
from syrtos.keras.tensorflow.assignments import current_step

if TYPE_CHECKING:
    from syrtos.dialects.protocols import GradientAndVariable
    from syrtos.keras.tensorflow.types import Gradient

Options = ParamSpec("Options")
Result = TypeVar("Result")

v1 = tf.compat.v1
# Set on a graph: the operations that make its reduced gradients.
_REDUCED = "_syrtos_reduced"


@functools.cache
def install() -> None:
    """Wraps the optimizers of TensorFlow 1.

    They then reduce gradients while the graph of a training step is built.
    """
    optimizer = v1.train.Optimizer
    replace(optimizer, "compute_gradients", _reducing)
    for kind in [optimizer, *_subclasses(optimizer)]:
        _wrap_own(kind)
    # What a script derives from it later, as BERT's optimizer, which overrides `apply_gradients`
    # alone, and computes gradients by `tf.gradients`.
    optimizer.__init_subclass__ = classmethod(lambda kind, **kwargs: _wrap_own(kind))
    # In place: scripts hold the class before they use `tf.estimator`.
    replace(v1.train.SyncReplicasOptimizer, "apply_gradients", _applying_at_once)
    replace(v1.train.SyncReplicasOptimizer, "make_session_run_hook", _without_queues)


def _subclasses(kind: type) -> list[type]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]


def _wrap_own(kind: type) -> None:
    # A SyncReplicasOptimizer hands its gradients to an inner optimizer, which reduces them.
    if "apply_gradients" in vars(kind) and kind is not v1.train.SyncReplicasOptimizer:
        replace(kind, "apply_gradients", _reducing_others)


def _reducing(
    original: Callable[Concatenate[object, Options], Iterable[GradientAndVariable]],
) -> Callable[Concatenate[object, Options], Iterable[GradientAndVariable]]:
    """Wraps `compute_gradients`, whose gradients become those of all workers."""

    # Not only in `apply_gradients`: a script that clips by a norm is to see the norm that one
    # process sees.
    def compute_gradients(
        self: object, *args: Options.args, **kwargs: Options.kwargs
    ) -> Iterable[GradientAndVariable]:
        pairs = original(self, *args, **kwargs)
        return _reduce_pairs(pairs) if _is_training_step() else pairs

    return compute_gradients


def _reducing_others(
    original: Callable[Concatenate[object, list[GradientAndVariable], Options], Result],
) -> Callable[Concatenate[object, Iterable[GradientAndVariable], Options], Result]:
    """Wraps `apply_gradients`: gradients that a script has computed by itself are reduced."""

    def apply_gradients(
        self: object,
        grads_and_vars: Iterable[GradientAndVariable],
        *args: Options.args,
        **kwargs: Options.kwargs,
    ) -> Result:
        # A list, because a script may give an iterator, and the pairs are needed twice.
        pairs = list(grads_and_vars)
        if _is_training_step() and not _come_from_reduced([g for g, _ in pairs if g is not None]):
            pairs = _reduce_pairs(pairs)
        if notes := noted_gradients.noting():
            notes.note(self, [g for g, _ in pairs], [v for _, v in pairs])
        return original(self, pairs, *args, **kwargs)

    return apply_gradients


def _is_training_step() -> bool:
    step = current_step()
    return step is not None and step.training


def _reduce_pairs(pairs: Iterable[GradientAndVariable]) -> list[GradientAndVariable]:
    step, graph = current_step(), v1.get_default_graph()
    assert step is not None
    pairs = list(pairs)
    grads = step.before_exchange([g for g, _ in pairs])
    mean = gradients.Reduction(step.session.comm).apply(grads, [v for _, v in pairs], step.samples)
    marks = [_values(g).op for g in mean if g is not None]
    setattr(graph, _REDUCED, {*getattr(graph, _REDUCED, ()), *marks})
    return [(gradient, variable) for gradient, (_, variable) in zip(mean, pairs, strict=True)]


def _come_from_reduced(grads: Sequence[Gradient]) -> bool:
    """Returns whether all of the gradients were reduced before, and perhaps clipped since."""
    graph, marks = v1.get_default_graph(), set[tf.Operation]()
    # The branch of a condition is a graph of its own: gradients may have been reduced in one of the
    # graphs around it.
    while graph is not None:
        marks |= getattr(graph, _REDUCED, set())
        graph = getattr(graph, "outer_graph", None)
    return bool(marks) and all(_is_made_from(_values(g).op, marks) for g in grads)


def _is_made_from(operation: tf.Operation, marks: set[tf.Operation]) -> bool:
    """Returns whether an operation is made from one of the marked ones."""
    # Without recursion: a path from the clipped gradients to the reduced ones may be longer than
    # Python's stack.
    seen, waiting = set[tf.Operation](), [operation]
    while waiting:
        one = waiting.pop()
        if one in marks:
            return True
        if one not in seen:
            seen.add(one)
            waiting += [tensor.op for tensor in one.inputs]
    return False


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


# -- SyncReplicasOptimizer: every update is made of all workers' gradients anyway ------------------


def _applying_at_once(_original: object) -> Callable[..., object]:
    """Replaces `apply_gradients`: the inner optimizer applies them without replicas to wait for."""

    def apply_gradients(
        self: tf_internals.SyncReplicas,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> object:
        return tf_internals.inner_of_sync_replicas(self).apply_gradients(
            grads_and_vars, global_step, name
        )

    return apply_gradients


def _without_queues(_original: object) -> Callable[..., object]:
    """Replaces `make_session_run_hook`: the hook has nothing to do."""

    # The original's hook fills a queue with tokens, of which each replica takes one for an update.
    def make_session_run_hook(self: object, is_chief: bool, num_tokens: int = -1) -> object:
        del self, is_chief, num_tokens
        return v1.train.SessionRunHook()

    return make_session_run_hook
