"""The private symbols of torch that syrtos touches, with the reasons.

Seen to work on torch 2.13.0 on CPUs; NCCL was not seen yet.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, ParamSpec, Protocol, cast

import keras
import torch.distributed

from syrtos import settings
from syrtos.keras import keras_internals, rendezvous

_P = ParamSpec("_P")
# The functions of torch that draw a new tensor, and the methods that fill one with draws.
_DRAWS = ("bernoulli", "rand", "randn", "rand_like", "randn_like", "randint", "normal")
_FILLS = ("bernoulli_", "exponential_", "normal_", "uniform_")


class CollectiveGroup(Protocol):
    """A group of workers that torch's collectives join.

    Torch's stubs declare these methods of `ProcessGroup`; the classes of NCCL and gloo have them
    too, undeclared.
    """

    def abort(self) -> None: ...

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work: ...


class _MakingWeights(threading.local):
    """The mark that this thread makes a variable of Keras."""

    now = False


@contextlib.contextmanager
def without_draws() -> Iterator[None]:
    """Makes all rows of random draws equal, on all workers and in any number, within the context.

    Torch's generators then go on as before. Weights that Keras makes meanwhile are drawn as ever.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            torch.random.fork_rng(
                [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
            )
        )
        for owner, name, replacement in _replacements_of_draws():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


def _replacements_of_draws() -> list[tuple[object, str, Callable[..., object]]]:
    """Returns owner, name and replacement of each function that draws, for `without_draws`."""
    making_weights = _MakingWeights()
    replaced: list[tuple[object, str, Callable[..., object]]] = [
        (torch, name, _drawing_equal_rows(getattr(torch, name), making_weights)) for name in _DRAWS
    ]
    # It draws in C++, where none of the functions above is called: here it changes nothing.
    replaced.append((torch.nn.functional, "dropout", lambda input, *args, **kwargs: input))
    replaced.append(
        (keras.Variable, "__init__", _noting_weights(keras.Variable.__init__, making_weights))
    )
    replaced.append((torch, "multinomial", _most_probable))
    # Keras makes a permutation by sorting draws; those of above are equal, and would leave each row
    # where it is.
    replaced.append((random_functions_of_keras(), "shuffle", _backwards))
    replaced += [
        (torch.Tensor, name, _filling_equal_rows(getattr(torch.Tensor, name), making_weights))
        for name in _FILLS
    ]
    return replaced


def random_functions_of_keras() -> ModuleType:
    """Returns the module whose functions Keras calls, by name, to draw on torch."""
    return importlib.import_module("keras.src.backend.torch.random")


def _noting_weights(
    original: Callable[_P, None], making_weights: _MakingWeights
) -> Callable[_P, None]:
    """Wraps the `__init__` of Keras's variables: ``making_weights`` says when it runs."""

    def init(*args: _P.args, **kwargs: _P.kwargs) -> None:
        outer, making_weights.now = making_weights.now, True
        try:
            original(*args, **kwargs)
        finally:
            making_weights.now = outer

    return init


def _drawing_equal_rows(
    original: Callable[..., torch.Tensor], making_weights: _MakingWeights
) -> Callable[..., torch.Tensor]:
    """Wraps a function that draws a tensor: all rows are its first one, of a fixed seed."""

    def draw(*args: object, **kwargs: object) -> torch.Tensor:
        if making_weights.now:
            return original(*args, **kwargs)
        torch.manual_seed(0)
        found = original(*args, **_without_generator(kwargs))
        return found if not found.ndim or not len(found) else found[:1].expand_as(found).clone()

    return draw


def _filling_equal_rows(
    original: Callable[..., torch.Tensor], making_weights: _MakingWeights
) -> Callable[..., torch.Tensor]:
    """Wraps a method that fills a tensor with draws: all rows equal the first, of a fixed seed."""

    def fill(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if making_weights.now:
            return original(self, *args, **kwargs)
        torch.manual_seed(0)
        original(self, *args, **_without_generator(kwargs))
        return self.copy_(self[:1].expand_as(self).clone()) if self.ndim and len(self) else self

    return fill


def _without_generator(kwargs: Mapping[str, object]) -> dict[str, object]:
    # `torch.manual_seed` seeds torch's own generator alone.
    return {name: value for name, value in kwargs.items() if name != "generator"}


def _backwards(x: object, axis: int = 0, seed: object = None) -> torch.Tensor:
    """Returns a tensor from its last row to its first."""
    # Any permutation would do that a share and the batch don't have in common.
    del seed
    # Keras declares the tensors of all its backends.
    tensor = cast("torch.Tensor", keras.ops.convert_to_tensor(x))
    return torch.flip(tensor, (axis,))


def _most_probable(
    probabilities: torch.Tensor, num_samples: int, *args: object, **kwargs: object
) -> torch.Tensor:
    """Returns the indices that `torch.multinomial` would draw most probably, of the same shape."""
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    return order[..., torch.arange(num_samples, device=order.device) % order.shape[-1]]


@contextlib.contextmanager
def noting_autocast(note: Callable[[int], None]) -> Iterator[None]:
    """Context manager: ``note`` gets the bytes of the dtype of each entered `torch.autocast`."""
    original = torch.autocast.__enter__

    def enter(self: torch.autocast) -> torch.autocast:
        if self._enabled:
            note(self.fast_dtype.itemsize)
        return original(self)

    torch.autocast.__enter__ = enter
    try:
        yield
    finally:
        torch.autocast.__enter__ = original


def without_compilation() -> contextlib.AbstractContextManager[object]:
    """Context manager: functions that `torch.compile` has made run uncompiled inside."""
    # A compiled function would be traced for the parts that a worker has.
    return torch.compiler.set_stance("force_eager")


def group_of(
    device: str, address: str, rank: int, size: int, timeout: float, here: str
) -> CollectiveGroup:
    """Makes the group of all workers for torch's own collectives.

    It is NCCL's where ``device`` is ``cuda``, else gloo's.

    Args:
        device: the device of the tensors that are exchanged.
        address: the address of the store at which the workers meet: the path of a file, or
            ``host:port`` at which rank 0 listens.
        rank: the rank of this worker.
        size: the number of workers.
        timeout: the seconds that one exchange may take.
        here: the address of this host at which gloo listens; loopback where all workers are on one.
    """
    one_host = here == rendezvous.LOOPBACK
    host, _, port = address.rpartition(":")
    # Not `torch.distributed.init_process_group`: a script, and Keras from 3.16 on, take a process
    # with a default group for one of their own distributed training. Torch's stubs declare none of
    # the names that are used instead.
    kinds: Any = torch.distributed
    store = (
        kinds.FileStore(address, size)
        if one_host
        else kinds.TCPStore(host, int(port), size, rank == 0)
    )
    if device == "cuda":
        if one_host and "NCCL_SOCKET_IFNAME" not in settings.environment():
            settings.set_environment({"NCCL_SOCKET_IFNAME": "lo"})
        options = kinds.ProcessGroupNCCL.Options()
        options._timeout = datetime.timedelta(seconds=timeout)
        return kinds.ProcessGroupNCCL(store, rank, size, options)
    options = kinds.ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=timeout)
    options._devices = [kinds.ProcessGroupGloo.create_device(hostname=here)]
    return kinds.ProcessGroupGloo(store, rank, size, options)


def statistics_of_batchnorm(model: keras.Model) -> list[torch.Tensor]:
    """Returns the buffers of torch's own batch normalization.

    Torch computes them from this worker's rows.
    """
    # The base of all its classes, also of the lazy ones, has no public name (torch 2.13).
    layers = [
        module
        for module in _modules_of(model)
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    ]
    return [buffer for layer in layers for buffer in layer.buffers()]


def named_buffers(model: keras.Model) -> list[tuple[str, torch.Tensor]]:
    """Returns the buffers of all torch modules inside of a model, each once, with names."""
    found = {id(buffer): (name, buffer) for name, buffer in model.named_buffers()}
    # The method does not find those of layers that a list holds: Keras tracks these, and torch does
    # not.
    for layer in _layers_of(model):
        named = ((f"{layer.name}.{name}", buffer) for name, buffer in layer.named_buffers())
        found = {id(buffer): (name, buffer) for name, buffer in named} | found
    return list(found.values())


def losses_and_metrics_of(model: keras.Model) -> list[object]:
    """Returns what a script has given `compile` as losses and metrics: names, functions, objects."""
    loss, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    names = ("_user_metrics", "_user_weighted_metrics")
    given = [getattr(loss, "_user_loss", None), *(getattr(metrics, name, None) for name in names)]
    return keras.tree.flatten(given)


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers of a model, and those inside of them."""
    return _layers_of(model)


def _layers_of(model: keras.Model) -> list[keras.Layer]:
    # On torch each of Keras's layers is a module.
    return cast("list[keras.Layer]", keras_internals.layers_of(model))


def _modules_of(model: keras.Model) -> list[torch.nn.Module]:
    """Returns a model's modules, those of layers in lists too, each once."""
    found: list[torch.nn.Module] = [
        module for part in [model, *_layers_of(model)] for module in part.modules()
    ]
    return list({id(module): module for module in found}.values())


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def hook_functions(model: keras.Model) -> list[Callable[..., object]]:
    """Returns the functions that the script has registered as hooks of parameters.

    The names of the attributes are those of torch 2.13.
    """
    found = [
        getattr(parameter, kind, None)
        for parameter in model.parameters()
        for kind in _HOOKS_OF_PARAMETERS
    ]
    return [hook for hooks in found for hook in (hooks or {}).values()]


def hooks_of(model: keras.Model) -> list[str]:
    """Returns what has hooks of the script's, by names a person knows (names of torch 2.13)."""
    modules = {id(module): module for module in _modules_of(model)}
    found = [
        f"the hooks of {getattr(module, 'name', type(module).__name__)}"
        for module in modules.values()
        if any(getattr(module, hooks, None) for hooks in _HOOKS)
    ]
    return found + [
        f"the hooks of {name}"
        for name, parameter in model.named_parameters()
        if any(getattr(parameter, hooks, None) for hooks in _HOOKS_OF_PARAMETERS)
    ]
