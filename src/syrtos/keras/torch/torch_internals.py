"""The private symbols of torch that syrtos touches, with the reasons.

Seen to work on torch 2.13.0 on CPUs; NCCL was not seen yet.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import keras
import torch.distributed
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch

from syrtos import settings
from syrtos.keras import keras_internals, rendezvous

if TYPE_CHECKING:
    from torch.autograd.graph import Node

TensorT = TypeVar("TensorT", bound=torch.Tensor)


class CollectiveGroup(Protocol):
    """A group of workers that torch's collectives join.

    Torch's stubs declare these methods of `ProcessGroup`; the classes of NCCL and gloo have them
    too, undeclared.
    """

    def abort(self) -> None: ...

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work: ...


# In the place of a class's `__torch_function__`: results are not made tensors of that class.
NO_TORCH_FUNCTION: Any = torch._C._disabled_torch_function_impl

# Trees of tuples, lists and dictionaries, as operations of torch take and return them.
tree_map, tree_leaves = _pytree.tree_map, _pytree.tree_leaves
tree_flatten, tree_unflatten = _pytree.tree_flatten, _pytree.tree_unflatten


def storage_reference(tensor: torch.Tensor) -> StorageWeakRef:
    """Returns a weak reference to a tensor's memory: `expired()` once nothing uses it.

    torch has no public one; this class stands in a public module (2.13).
    """
    return StorageWeakRef(tensor.untyped_storage())


def wrapping_tensor(
    kind: type[TensorT], shape: Sequence[int], strides: Sequence[int], like: torch.Tensor
) -> TensorT:
    """Returns a tensor without memory of its own, of the dtype and device of another one.

    ``kind``: a class whose `__torch_dispatch__` computes with it.
    """
    return kind._make_wrapper_subclass(
        kind, shape, strides=strides, dtype=like.dtype, device=like.device
    )


def change_sizes(func: Any, tensor: torch.Tensor, args: Sequence[Any]) -> None:
    """Changes the sizes that a wrapping tensor shows as ``func``, a view made in place, does.

    Its dispatch is not called. As `torch.utils._python_dispatch.return_and_correct_aliasing` does it.
    """
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(tensor, *args)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def shapes_of_outputs(node: Node) -> list[tuple[int, ...]]:
    """Returns the shapes of a node's results in autograd's graph; none of a nested tensor."""
    try:
        return [tuple(one.shape) for one in getattr(node, "_input_metadata", ())]
    except RuntimeError:
        return []


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


def named_buffers(model: keras.Model) -> list[tuple[str, torch.Tensor]]:
    """Returns the buffers of all torch modules inside of a model, each once, with names."""
    found = {id(buffer): (name, buffer) for name, buffer in model.named_buffers()}
    # The method does not find those of layers that a list holds: Keras tracks these, and torch does
    # not.
    for layer in layers_of(model):
        named = ((f"{layer.name}.{name}", buffer) for name, buffer in layer.named_buffers())
        found = {id(buffer): (name, buffer) for name, buffer in named} | found
    return list(found.values())


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers of a model, and those inside of them."""
    # On torch each of Keras's layers is a module.
    return cast("list[keras.Layer]", keras_internals.layers_of(model))


def _modules_of(model: keras.Model) -> list[torch.nn.Module]:
    """Returns a model's modules, those of layers in lists too, each once."""
    found: list[torch.nn.Module] = [
        module for part in [model, *layers_of(model)] for module in part.modules()
    ]
    return list({id(module): module for module in found}.values())


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


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
