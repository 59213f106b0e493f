"""Each rule against the operation on whole tensors: placements, numbers of workers, uneven rows, gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import threads
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_operations import OPERATIONS, Operation, Shape

from syrtos.keras.torch.partition.placements import BatchShare

pytestmark = pytest.mark.needs("torch")


def _tensor(shape: Shape, kind: str, rows: int, generator: Any) -> Any:
    sizes = [rows if n == "n" else int(n) for n in shape]
    if kind == "i":
        return torch.randint(0, 5, sizes, generator=generator)
    if kind == "b":
        return torch.rand(sizes, generator=generator) < 0.7
    if kind == "p":
        return torch.rand(sizes, generator=generator)
    return torch.randn(sizes, generator=generator)


def _inputs(operation: Operation, rows: int, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    kinds = operation.kinds or "f" * len(operation.shapes)
    return [_tensor(s, k, rows, generator) for s, k in zip(operation.shapes, kinds, strict=True)]


def _computed(operation: Operation, inputs: list[Any]) -> list[Any]:
    """The result, and the gradients of the inputs."""
    for tensor in inputs:
        if tensor.is_floating_point():
            tensor.requires_grad_(True)
    made = operation.call(*inputs)
    if made.requires_grad:
        (made * torch.linspace(-1, 2, made.numel()).reshape(made.shape)).sum().backward()
    grads = [tensor.grad for tensor in inputs if tensor.grad is not None]
    return [threads.whole(each.detach()) for each in (made, *grads)]


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_rule_gives_what_the_whole_operation_gives(name: str, data: st.DataObject) -> None:
    operation = OPERATIONS[name]
    size = data.draw(st.integers(2, 3), "workers")
    rows, seed = data.draw(st.integers(2 * size, 11), "rows"), data.draw(st.integers(0, 99))
    places = [[None, *(d for d, n in enumerate(s) if n == "n")] for s in operation.shapes]
    spread = [data.draw(st.sampled_from(each), "rows of an input") for each in places]
    if all(dim is None for dim in spread):
        spread = [each[-1] for each in places]

    def work(share: BatchShare) -> list[Any]:
        inputs = _inputs(operation, rows, seed)
        placed = [
            tensor if dim is None else threads.spread(tensor, share, dim)
            for tensor, dim in zip(inputs, spread, strict=True)
        ]
        return _computed(operation, placed)

    wanted = _computed(operation, _inputs(operation, rows, seed))
    for computed in threads.run(size, rows, work):
        assert len(computed) == len(wanted)
        for one, other in zip(computed, wanted, strict=True):
            assert one.shape == other.shape
            # Sums of large terms that cancel are rounded by the size of the terms.
            is_number = other.is_floating_point() and other.numel()
            largest = float(other.abs().max()) if is_number else 0.0
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, largest))


@pytest.mark.parametrize("name", [n for n, operation in OPERATIONS.items() if operation.is_split])
def test_a_rule_and_its_gradient_compute_on_rows(name: str) -> None:
    operation = OPERATIONS[name]

    def work(share: BatchShare) -> dict[str, int] | None:
        placed = [
            threads.spread(tensor, share) if "n" in shape else tensor
            for tensor, shape in zip(_inputs(operation, 7, 1), operation.shapes, strict=True)
        ]
        for tensor in placed:
            if tensor.is_floating_point():
                tensor.requires_grad_(True)
        made = operation.call(*placed)
        if made.requires_grad:
            (made * 0.5).sum().backward()
        return share.whole

    assert threads.run(2, 7, work) == [{}, {}]


@pytest.mark.parametrize("size", [2, 3])
def test_rows_of_two_batches_meet(size: int) -> None:
    """Parts of the one are larger than those of the other on one worker, and not on another."""
    first, second = torch.randn(9, 4), torch.randn(10, 4)

    def work(share: BatchShare) -> list[Any]:
        rank = [sum(share.counts[:k]) for k in range(size)].index(share.start)
        other = BatchShare(threads.counts_of(10, size), rank, share.exchanges)
        one = threads.spread(first, share).requires_grad_()
        two = threads.spread(second, other).requires_grad_()
        made = one[:, None] - two[None]
        (made.square().mean() + (one.mean(0) * two.mean(0)).sum()).backward()
        found: list[Any] = [made, one.grad, two.grad]
        return [threads.whole(each.detach()) for each in found]

    one, two = first.clone().requires_grad_(), second.clone().requires_grad_()
    made = one[:, None] - two[None]
    (made.square().mean() + (one.mean(0) * two.mean(0)).sum()).backward()
    for found in threads.run(size, 9, work):
        for mine, wanted in zip(found, (made, one.grad, two.grad), strict=True):
            torch.testing.assert_close(mine, wanted)


HALVES: dict[str, Any] = {
    "last": lambda rows, k: rows.half() * k.half(),
    "viewed": lambda rows, k: rows.half() + k.half().view(1, 2),
    "of a shared layer": lambda rows, k: rows.half() * k.half() + k.half(),
    "of a scaled weight": lambda rows, k: rows.half() * (k * 0.5).half(),
    "transposed": lambda rows, k: rows.half() @ k.expand(2, 2).t().half(),
    "of a joined weight": lambda rows, k: rows.half() * torch.cat([k[:1], k[1:]]).half(),
}


@pytest.mark.parametrize("name", HALVES)
def test_a_gradient_of_16_bits_exceeds_their_range_as_in_one_process(name: str) -> None:
    """No worker's part does: the loss scale of `mixed_float16` depends on it."""

    def gradient(rows: Any) -> Any:
        weight = torch.ones(2, requires_grad=True)
        (HALVES[name](rows, weight).float() * 20_000.0).sum().backward()
        assert weight.grad is not None
        return threads.whole(weight.grad)

    whole = torch.tensor([[1.0, 0.3]] * 4)
    wanted = gradient(whole)
    assert bool(torch.isinf(wanted).any())
    for found in threads.run(2, 4, lambda share: gradient(threads.spread(whole, share))):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)


def test_what_is_written_to_a_gradient_of_16_bits_is_not_rounded() -> None:
    def scaled(rows: Any) -> list[Any]:
        weight = torch.ones(2, requires_grad=True)
        (grad,) = torch.autograd.grad((rows.half() * weight.half()).float().sum(), [weight])
        return [threads.whole(grad.mul_(1e-9)).clone(), threads.whole(grad.add_(grad.clone()))]

    whole = torch.tensor([[1.0, 0.3]] * 4)
    wanted = scaled(whole)
    for found in threads.run(2, 4, lambda share: scaled(threads.spread(whole, share))):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=0)


WRITES = {
    "into a conjugate": lambda c: c.conj().mul_(2).detach(),
    "into what has a conjugate": lambda c: (c.conj(), c.mul_(2))[0],
    "by an alias": lambda c: (c.conj().detach(), c.detach().mul_(2))[0],
    "after the conjugate is gone": lambda c: (c * c.conj()).clone().mul_(2),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_a_conjugate_should_see_is_refused(name: str) -> None:
    def work(share: BatchShare) -> Any:
        c = threads.spread(torch.ones(7, 3, dtype=torch.complex64) * (1 + 2j), share, 0)
        try:
            return threads.whole(WRITES[name](c))
        except NotImplementedError as error:
            assert "are one memory in one process" in str(error)  # noqa: PT017
            return None

    refused = [found is None for found in threads.run(2, 7, work)]
    assert refused == [name != "after the conjugate is gone"] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_a_product_with_a_sparse_tensor_made_of_rows_is_computed_whole(size: int) -> None:
    rows = torch.arange(-10.0, 11.0).reshape(7, 3)

    def computed(x: Any) -> list[Any]:
        weights = torch.arange(6.0).reshape(3, 2).requires_grad_()
        loss = (torch.sparse.mm(x.relu().to_sparse(), weights) + x[:, :2]).square().sum()
        loss.backward()
        assert weights.grad is not None
        return [loss, weights.grad]

    def work(share: BatchShare) -> Any:
        return [threads.whole(each) for each in computed(threads.spread(rows, share, 0))]

    for found in threads.run(size, 7, work):
        torch.testing.assert_close(found, computed(rows))


def test_another_shape_in_place_is_refused() -> None:
    def work(share: BatchShare) -> Any:
        with pytest.raises(NotImplementedError, match=r"can't be changed in place to \(4, 3\)"):
            threads.spread(torch.ones(7, 3), share, 0).clone().resize_(4, 3)

    threads.run(2, 7, work)
