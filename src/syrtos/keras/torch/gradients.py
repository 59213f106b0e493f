"""The reduction of optimizers' gradients over the workers: when it happens, and by which rule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import torch

from syrtos.comm import world
from syrtos.comm.communicator import Bounds, Communicator
from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals, updates
from syrtos.keras.features import registry, sharding
from syrtos.keras.replica import state
from syrtos.keras.split import noted_gradients, script_modules
from syrtos.keras.torch import collectives, ops
from syrtos.keras.torch.overlap import Overlap
from syrtos.keras.torch.partition.step import current_batch
from syrtos.keras.torch.script_loops import ScriptLoops
from syrtos.keras.torch.step import TorchStep, current_step, is_whole
from syrtos.keras.trainer import exchange_plan, timing
from syrtos.keras.updates import AskedReductions
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    import keras

    from syrtos.keras.protocols import Optimizer
    from syrtos.keras.torch.partition.step import Roots
    from syrtos.keras.updates import Update


# What `torch.autograd.grad` returns; None for an input that the outputs don't depend on.
_Grads = tuple[torch.Tensor | None, ...]


# In the text of a script; `torch.autograd.grad` makes gradients of its own.
_READS_GRADIENTS = r"(?<!autograd)\.grad\b|[\"']grad[\"']|\bclip_grad_|\bget_total_norm\b"


def reduce_all_optimizers() -> None:
    """Makes every Keras optimizer of this process reduce from now on."""
    world.part(AskedReductions).all_optimizers = True


def are_reduced() -> bool:
    """Returns whether an optimizer gets gradients that are those of the global batch already.

    That is so where they were reduced when they were made, or where each worker computes the whole
    batch.
    """
    step = current_step()
    return is_whole() or (step is not None and step.reduces_early)


def script_reads_gradients(session: world.Session) -> bool:
    """Returns whether the script of any worker may look at ``.grad``.

    It may do so in a callback or after `train_on_batch`, for example. Keras's own `train_step` then
    reduces gradients where they are made too, without overlap, as a step of the script's does. All
    workers call this together.
    """
    mine = script_modules.script_mentions(_READS_GRADIENTS)
    return any(session.comm.agree("does the script read gradients?", float(mine)))


def reduced_after_backward(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `torch.autograd.backward`: each parameter's ``.grad`` is the global batch's afterwards.

    This is done in a training step of the script's own. Of gradients that are accumulated by
    several calls, each call's part is reduced.
    """

    # What the script does with the gradients (clipping, norms, an optimizer of its own) is then
    # what it is in one process.
    def backward(tensors: Roots, *args: object, **kwargs: object) -> None:
        if not isinstance(tensors, torch.Tensor | torch.autograd.graph.GradientEdge):
            tensors = tuple(tensors)  # it may be read once only
        batch = current_batch()
        if current_step() is None:
            world.sharing().part(ScriptLoops).before_backward(tensors)
        if batch is not None:
            with batch.reducing_gradients(tensors):
                original(tensors, *args, **kwargs)
            return
        step = current_step()
        if step is None or not step.reduces_early:
            original(tensors, *args, **kwargs)
            return
        parameters = [p for p in step.parameters() if p.requires_grad]
        before = [None if p.grad is None else p.grad.detach().clone() for p in parameters]
        original(tensors, *args, **kwargs)
        made = [
            (p, old, p.grad if old is None else p.grad - old)
            for p, old in zip(parameters, before, strict=True)
            if p.grad is not None
        ]
        with torch.no_grad():
            for (p, old, _), mean in zip(
                made,
                _mean(step, [part for _, _, part in made], [p for p, _, _ in made]),
                strict=True,
            ):
                assert p.grad is not None
                p.grad.copy_(mean if old is None else old + mean)

    return backward


def without_inference_mode(original: Callable[..., object]) -> Callable[..., object]:
    """Wraps `torch.inference_mode`: in a partitioned step it is `torch.no_grad`.

    Torch makes no views of tensors with a class of their own in that mode.
    """

    def inference_mode(mode: object = True) -> object:
        if mode is True and current_batch() is not None:
            return torch.no_grad()
        return original(mode)

    return inference_mode


def reduced_grads(original: Callable[..., _Grads]) -> Callable[..., _Grads]:
    """Wraps `torch.autograd.grad` likewise, where all inputs are parameters.

    Gradients by anything else stay this worker's.

    Raises:
        ConfigurationError: gradients of parameters are to be differentiated again.
    """

    def grad(
        outputs: object,
        inputs: torch.Tensor | Iterable[torch.Tensor],
        *args: object,
        **kwargs: object,
    ) -> _Grads:
        step = current_step()
        made = original(outputs, inputs, *args, **kwargs)
        batch = current_batch()
        if batch is not None and not kwargs.get("create_graph"):
            batch.make_whole(made)
        if step is None or not step.reduces_early:
            return made
        known = {id(p) for p in step.parameters()}
        asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        if not all(id(one) in known for one in asked):
            return made
        if kwargs.get("create_graph"):
            raise ConfigurationError(
                "`torch.autograd.grad(..., create_graph=True)` of a model's parameters can't be"
                " reduced over workers and differentiated again. Run this script with `-n 1`, or on"
                " TensorFlow or JAX."
            )
        means = iter(_mean(step, [g for g in made if g is not None]))
        return tuple(None if g is None else next(means) for g in made)

    return grad


def _mean(
    step: TorchStep, grads: list[torch.Tensor], variables: Sequence[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """Returns the mean by samples of the workers' gradients."""
    comm = step.session.comm
    if comm.size == 1 or not grads:
        return grads
    return ops.weighted_mean(comm, grads, float(step.samples), variables=variables)


def workers_of(optimizer: Optimizer) -> Communicator | None:
    """Returns the workers that average this optimizer's gradients before clipping, or None."""
    if are_reduced():
        return None
    session = world.current()
    reduces = session.part(AskedReductions).all_optimizers and not registry.trains_apart()
    found = cast(
        "Communicator | None", read_record(optimizer, updates.OptimizerRecord).reduction
    ) or (session.comm if reduces else None)
    return found if found is not None and found.size > 1 else None


def begin_update(update: Update, variables: Iterable[keras.Variable]) -> None:
    """Begins an update: finds the workers of its optimizer, which starts equal on all of them.

    ``variables``: all that the optimizer trains, also those that have no gradient in this step.
    """
    broadcast_before_first(cast("Optimizer", update.optimizer), variables)
    update.reduction = workers_of(cast("Optimizer", update.optimizer))


def reduce_gradients(optimizer: Optimizer, grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the gradients of the global batch, from those of this worker's share.

    In `fit` they are averaged by samples, in a loop of the script's own over the workers. With
    `--on-nan stop` they are finite.
    """
    update = updates.update_of(optimizer)
    results: Sequence[torch.Tensor] = grads
    if not update.is_reduced:
        update.reduction = workers_of(optimizer)
        results = registry.check_gradients(update, exchange(update, grads), grads)
    noted_gradients.tell_reduced(lambda: results)
    return list(registry.change_gradients(update, results))


def apply_if_rows(
    update: Update,
    grads: Sequence[torch.Tensor],
    apply: Callable[[Sequence[torch.Tensor]], None],
) -> None:
    """Calls ``apply``, except on a worker that has no sample of a small batch."""
    step = current_step()
    if step and not step.samples:
        keras_internals.count_no_update(cast("Optimizer", update.optimizer))
    else:
        apply(grads)


def exchange(update: Update, grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns an update's gradients averaged over its workers, or as they are where it has none."""
    optimizer, step = cast("Optimizer", update.optimizer), current_step()
    comm = cast("Communicator | None", update.reduction)
    update.gives_parts = False
    if comm is None:
        return list(grads)
    if len(update.variables) == len(grads):
        exchange_plan.tell(update.variables, lambda: ops.buckets(list(grads)))
    variables = cast("list[torch.Tensor]", state.held_objects(update.variables))
    # These have been weighted by samples already, by `to_accumulate`: they are summed.
    accumulated = step is not None and updates.accumulates(optimizer)
    if (
        step is not None
        and not accumulated
        and step.overlap is not None
        and step.overlap[0] is optimizer
    ):
        return step.overlap[1].finish(list(grads), variables)
    bounds = _bounds(optimizer, update.variables, grads)
    update.gives_parts = bool(bounds)
    weight = 1.0 if step is None or accumulated else step.samples
    averaged = ops.weighted_mean(comm, list(grads), weight, variables=variables, bounds=bounds)
    return [gradient * comm.size for gradient in averaged] if accumulated else averaged


def _bounds(
    optimizer: Optimizer, variables: Sequence[keras.Variable], tensors: Sequence[torch.Tensor]
) -> Bounds:
    """Returns the bounds of the workers' parts of gradients like ``tensors``.

    There are none where each worker gets the whole sum.
    """
    if registry.changes_gradients():
        return ()
    bounds = sharding.bounds_between_hosts(optimizer, variables)
    # Torch's collectives sum gradients whole.
    return (
        bounds
        if bounds and not any(collectives.serve(world.current().comm, tensor) for tensor in tensors)
        else ()
    )


def overlapping(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Context manager: sends gradients of this model's stock `train_step` while it makes others.

    It does not where something may change them before they are reduced: an optimizer of the
    script's own, one that scales its loss, or one that accumulates; nor where each worker gets only
    its part of a sum.
    """
    optimizer: keras.Optimizer = model.optimizer
    everyone, step = world.current().comm, current_step()
    stock = type(optimizer).__module__.startswith("keras.") and not hasattr(
        optimizer, "inner_optimizer"
    )
    if (
        step is None
        or not stock
        or workers_of(optimizer) is not everyone
        or updates.accumulates(optimizer)
        or optimizer.loss_scale_factor
        or _bounds(
            optimizer,
            model.trainable_variables,
            [variable.value for variable in model.trainable_variables],
        )
    ):
        return contextlib.nullcontext()
    variables = [variable.value for variable in model.trainable_variables]
    return _overlapping(
        Overlap(everyone, [v for v in variables if v.requires_grad], step.samples), optimizer, step
    )


@contextlib.contextmanager
def _overlapping(overlap: Overlap, optimizer: Optimizer, step: TorchStep) -> Iterator[None]:
    step.overlap = optimizer, overlap
    try:
        overlap.open()
        yield
    finally:
        step.overlap = None
        overlap.close()


def to_accumulate(optimizer: Optimizer, grads: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Returns this worker's part of a step's gradients, if several steps are accumulated.

    Accumulated gradients are reduced once, after the last of these steps. Other gradients are
    returned as they are.
    """
    step, comm = current_step(), workers_of(optimizer)
    if not updates.accumulates(optimizer):
        return grads
    if comm is None or step is None:
        noted_gradients.tell_reduced(lambda: grads)
        return grads
    fraction = step.fraction()  # which all workers exchange
    parts = [g * fraction if step.samples else g.new_zeros(g.shape) for g in grads]
    noted_gradients.tell_reduced(
        lambda: [g * comm.size for g in ops.weighted_mean(comm, parts, 1.0)]
    )
    return parts


def finite_everywhere(optimizer: Optimizer, finite: torch.Tensor) -> torch.Tensor:
    """Returns whether all workers that have samples found their gradients finite."""
    comm, step = workers_of(optimizer), current_step()
    if comm is None:
        return finite
    # A worker without samples has no say, whatever its row that does not count has given.
    mine = bool(finite) or (step is not None and not step.samples)
    with timing.exchanging():
        everyone = comm.agree("gradients are finite?", float(mine))
    return finite.new_tensor(all(everyone))


def broadcast_before_first(optimizer: Optimizer, variables: Iterable[keras.Variable]) -> None:
    """Gives all workers rank 0's weights and optimizer state.

    This is done once, before the optimizer's first step.
    """
    comm = world.current().comm if are_reduced() else workers_of(optimizer)
    record = record_of(optimizer, updates.OptimizerRecord)
    if comm is None or comm.size == 1 or record.is_equal:
        return
    record.is_equal = True
    state.broadcast(comm, [*variables, *state.of_optimizer(optimizer)])
