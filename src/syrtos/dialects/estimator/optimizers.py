"""The optimizers of TensorFlow 1 inside a ``model_fn``, whose gradients become those of all workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from syrtos.keras.patching import replace
from syrtos.keras.tensorflow import gradients, tf_internals
from syrtos.keras.tensorflow.assignments import current_step

v1: Any = tf.compat.v1
_REDUCED = "_syrtos_reduced"


@functools.cache
def install() -> None:
    """Wraps the optimizers of TensorFlow 1, which then reduce gradients while the graph of a training step is built."""
    optimizer = v1.train.Optimizer
    replace(optimizer, "compute_gradients", _reducing)
    for kind in [optimizer, *_subclasses(optimizer)]:
        _wrap_own(kind)
    # What a script derives from it later, as BERT's optimizer, which overrides `apply_gradients` alone.
    optimizer.__init_subclass__ = classmethod(lambda kind, **kwargs: _wrap_own(kind))
    # In place: scripts hold the class before they use `tf.estimator`.
    replace(v1.train.SyncReplicasOptimizer, "apply_gradients", _applying_at_once)
    replace(v1.train.SyncReplicasOptimizer, "make_session_run_hook", _without_queues)


def _subclasses(kind: Any) -> list[Any]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]


def _wrap_own(kind: Any) -> None:
    if "apply_gradients" in vars(kind) and kind is not v1.train.SyncReplicasOptimizer:
        replace(kind, "apply_gradients", _reducing_others)


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `compute_gradients`: gradients are reduced before the script clips them."""

    def compute_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = original(self, *args, **kwargs)
        return _reduce_pairs(pairs) if _trains() else pairs

    return compute_gradients


def _reducing_others(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `apply_gradients`: gradients that a script has computed by itself are reduced."""

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if _trains() and not _come_from_reduced([g for g, _ in pairs if g is not None]):
            pairs = _reduce_pairs(pairs)
        return original(self, pairs, *args, **kwargs)

    return apply_gradients


def _trains() -> bool:
    step = current_step()
    return step is not None and step.training


def _reduce_pairs(pairs: Any) -> list[tuple[Any, Any]]:
    step, graph = current_step(), v1.get_default_graph()
    assert step is not None
    pairs = list(pairs)
    grads = step.before_exchange([g for g, _ in pairs])
    mean = gradients.Reduction(step.session.comm).apply(grads, [v for _, v in pairs], step.samples)
    step.after_exchange(mean, [v for _, v in pairs])
    marks = [_values(g).op for g in mean if g is not None]
    setattr(graph, _REDUCED, {*getattr(graph, _REDUCED, ()), *marks})
    return [(gradient, variable) for gradient, (_, variable) in zip(mean, pairs, strict=True)]


def _come_from_reduced(grads: Any) -> bool:
    """Returns whether all of the gradients were reduced before, and perhaps clipped since."""
    graph, marks = v1.get_default_graph(), set[Any]()
    while graph is not None:  # of the branch of a condition, and of the graphs around it
        marks |= getattr(graph, _REDUCED, set())
        graph = getattr(graph, "outer_graph", None)
    return bool(marks) and all(_leads_to(_values(g).op, marks) for g in grads)


def _leads_to(operation: Any, marks: set[Any]) -> bool:
    seen, waiting = set[Any](), [operation]
    while waiting:
        one = waiting.pop()
        if one in marks:
            return True
        if one not in seen:
            seen.add(one)
            waiting += [tensor.op for tensor in one.inputs]
    return False


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


# -- SyncReplicasOptimizer: every update is made of all workers' gradients anyway ---------------------------


def _applying_at_once(_original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `apply_gradients`: the inner optimizer applies gradients, without replicas to wait for."""

    def apply_gradients(self: Any, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        return tf_internals.inner_of_sync_replicas(self).apply_gradients(grads_and_vars, global_step, name)

    return apply_gradients


def _without_queues(_original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `make_session_run_hook`: the hook has nothing to do."""

    def make_session_run_hook(self: Any, is_chief: bool, num_tokens: int = -1) -> Any:
        del self, is_chief, num_tokens
        return v1.train.SessionRunHook()

    return make_session_run_hook
