"""Operations of torch on tensors that may have rows: as functions of tensors, with these tensors' shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

# `n`: rows of the batch.
Shape = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation, and the shapes of its inputs.

    Attributes:
        call: the operation.
        shapes: `n` stands for the rows.
        kinds: of the inputs: f is a floating number, i a whole one below 5, b a truth value, p a number
            between 0 and 1.
        is_split: whether no worker computes any part of it whole, where the rows are the first
            dimension.
    """

    call: Callable[..., Any]
    shapes: Sequence[Shape]
    kinds: str = ""
    is_split: bool = True


N: Shape = ("n", 6)
IMAGE: Shape = ("n", 3, 6, 6)
T = functional


def _of(
    call: Callable[..., Any], *shapes: Shape, kinds: str = "", is_split: bool = True
) -> Operation:
    return Operation(call, shapes, kinds, is_split)


def _whole(call: Callable[..., Any], *shapes: Shape, kinds: str = "") -> Operation:
    return Operation(call, shapes, kinds, False)


def _with_statistics(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    mean, variance = torch.zeros(3), torch.ones(3)
    normal = T.batch_norm(x, mean, variance, weight, training=True, momentum=0.3)
    return normal + (mean + variance).reshape(1, -1, 1, 1)


def _power(spectrum: torch.Tensor) -> torch.Tensor:
    return (spectrum * spectrum.conj()).real + (spectrum * spectrum).abs() + spectrum.conj().imag


def _assigned(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1] = 0.0
    x[:, 2] += 1.0
    return x


def _written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone()
    x[0].mul_(3.0)
    x[1:3].zero_()
    for row in x:
        row.add_(1.0)
    return x


def _in_a_buffer_of_steps(x: torch.Tensor) -> torch.Tensor:
    steps = torch.zeros(5, len(x), 3)
    for step in range(5):
        steps[step] = x[:, step].tanh()
    return steps.transpose(0, 1).contiguous()


_LSTM = torch.nn.LSTM(3, 2, batch_first=True)
_ENCODER = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 1
).eval()


def _packed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    given = torch.nn.utils.rnn.pack_padded_sequence(x, lengths + 1, True, False)
    return torch.nn.utils.rnn.pad_packed_sequence(_LSTM(given)[0], True, total_length=6)[0]


def _encoded_in_evaluation(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mask = mask.clone()
    mask[:, 0] = False
    with torch.no_grad():
        found = _ENCODER(x, src_key_padding_mask=mask)
    return torch.nn.functional.pad(found, (0, 0, 0, 6 - found.shape[1]))


def _twice(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(loss(x * 2, y).square(), x, create_graph=True)
        return found

    return gradient


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.mul_(2).add_(1).clamp_(min=0.0)
    x.view(-1)[:6].neg_()
    return x


def _sum_that_is_written(x: torch.Tensor) -> torch.Tensor:
    mean, total = x.mean(0).detach(), x.detach().sum(0)
    mean.detach().clamp_(min=0)
    total[1:3].fill_(7.0)
    view = total.view(2, 3)
    total.abs_()
    gram = (x.detach().T @ x.detach()) / len(x)
    gram.view(-1)[:: len(gram) + 1] = 0
    return mean * 2 + total + view.reshape(-1) + gram.square().sum()


def _row_of_a_changed_tensor(x: torch.Tensor) -> torch.Tensor:
    rows = x.detach().clone()
    first, half, last = rows[0], rows.view(-1)[: rows.numel() // 2], rows[1:][-1]
    rows.div_(rows.norm(dim=1, keepdim=True))
    rows[0] = 9.0
    return rows @ first + half.sum() + last.sum()


def _data_that_is_replaced(x: torch.Tensor) -> torch.Tensor:
    rows, total = x.detach().clone(), x.detach().sum(0)
    rows.data = rows.data * 2
    total.data = total.data.clamp(min=0)
    return rows + total


def _memory_in_another_order(x: torch.Tensor) -> torch.Tensor:
    order = torch.cumsum(x.t().contiguous(), 1)
    flat = torch.cumsum(x.reshape(-1, 3, 2).transpose(0, 1), 1).detach()
    flat.reshape(-1).mul_(2)
    return order.contiguous().t() + flat.sum()


def _masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[mask].mean() if bool(mask.any()) else x.sum()


OPERATIONS: dict[str, Operation] = {
    # elements
    "add": _of(lambda a, b: a + b, N, N),
    "scaled": _of(lambda a: 2.0 * a - a / 3 + 1, N),
    "broadcast_column": _of(lambda a, b: a * b, N, ("n", 1)),
    "broadcast_row": _of(lambda a, b: a * b, N, (6,)),
    "broadcast_outer": _whole(lambda a, b: a[:, None] - b[None], N, N),
    "where": _of(lambda a, b: torch.where(a > 0, a, b), N, N),
    "masked_fill": _of(lambda a: a.masked_fill(a > 0, 0.5), N),
    "activations": _of(lambda a: T.gelu(a) + T.silu(a) + T.softplus(a) + T.elu(a) + T.relu(a).square(), N),
    "cast": _of(lambda a: a.double().float() + a.long(), N),
    "clamp_by_tensors": _of(lambda a, b, c: torch.clamp(a, min=b, max=c), N, (6,), N),
    "in_place": _whole(_in_place, N),
    "in_a_buffer_of_steps": _whole(_in_a_buffer_of_steps, ("n", 5, 3)),
    "packed": _whole(_packed, ("n", 6, 3), ("n",), kinds="fi"),
    "encoded_in_evaluation": _whole(_encoded_in_evaluation, ("n", 6, 4), ("n", 6), kinds="fb"),
    **{
        f"{name}_twice": _whole(_twice(loss), N, N)
        for name, loss in {
            "mse_loss": T.mse_loss,
            "mse_sum": lambda x, y: T.mse_loss(x, y, reduction="sum"),
            "smooth_l1": T.smooth_l1_loss,
            "huber": T.huber_loss,
        }.items()
    },
    "assigned": _whole(_assigned, N),
    "written_through_a_view": _whole(_written_through_a_view, N),
    "sum_that_is_written": _whole(_sum_that_is_written, N),
    "row_of_a_changed_tensor": _whole(_row_of_a_changed_tensor, N),
    "data_that_is_replaced": _whole(_data_that_is_replaced, N),
    "memory_in_another_order": _whole(_memory_in_another_order, N),
    "formatted": _whole(lambda a: a * float(f"{a.detach().sum():.4f}"), N),
    "complex": _of(lambda a: torch.fft.fft(a).abs(), N),
    "complex_products": _of(
        lambda a, b: (torch.complex(a, b) * torch.complex(b, a).conj() * (1 + 2j)).imag, N, N
    ),
    "complex_quotients": _of(lambda a, b: (1 / (torch.complex(a, b) + 3)).imag, N, N),
    "conjugates": _whole(lambda a, b: torch.complex(a, b).conj().flip(0).imag, N, N),
    "conjugates_of_a_constant": _of(
        lambda a, b: (torch.complex(a, b) * torch.arange(6).mul(1j).conj()).imag, N, N
    ),
    "conjugate_transpose": _whole(
        lambda a, b: (torch.complex(a, b) @ torch.complex(a, b).mH).imag, N, N
    ),
    "spectral_power": _whole(lambda a: _power(torch.fft.rfft(a)), N),
    "transform_of_images": _of(lambda a: torch.fft.irfft2(torch.fft.rfft2(a) * 2j), IMAGE),
    "transform_over_rows": _whole(lambda a: torch.fft.fft(a, dim=0).real, N),
    # products
    "matmul": _of(lambda a, b: a @ b, N, (6, 4)),
    "matmul_of_rows": _of(lambda a: a @ a.T, N),
    "matmul_over_rows": _of(lambda a, b: a.T @ b, N, N),
    "linear": _of(lambda a, w, b: T.linear(a, w, b), N, (4, 6), (4,)),
    "linear_of_steps": _of(lambda a, w, b: T.linear(a, w, b), ("n", 3, 6), (4, 6), (4,)),
    "einsum": _of(lambda a, w: torch.einsum("bti,ij->btj", a, w), ("n", 3, 6), (6, 4)),
    "batched": _of(lambda a, b: torch.bmm(a, b), ("n", 2, 6), ("n", 6, 3)),
    "batched_by_one": _of(lambda a, b: a @ b, ("n", 2, 6), (6, 3)),
    "vector": _of(lambda a, v: a @ v, N, (6,)),
    "dot": _of(lambda a, b: torch.dot(a, b), ("n",), ("n",)),
    # reductions
    "sum": _of(lambda a: a.sum() * 3, N),
    "sum_of_rows": _of(lambda a: a.sum(1), N),
    "sum_over_rows": _of(lambda a: a.sum(0, keepdim=True), N),
    "mean": _of(lambda a: a.mean(), N),
    "mean_over_rows": _of(lambda a: a.mean((0, 2, 3)), IMAGE),
    "variance_over_rows": _of(lambda a: a.var(0), N),
    "spread": _whole(lambda a: a.std(), N),
    "extremes": _of(lambda a: a.amax() + a.amin(0), N),
    "largest_of_rows": _of(lambda a: a.max(1).values, N),
    "largest_over_rows": _whole(lambda a: a.max(0).values, N),
    "any_and_all": _of(lambda a: torch.stack([(a > 2).any(), (a > -9).all()]), N),
    "norm": _whole(lambda a: a.norm() + a.norm(dim=1).sum(), N),
    "count": _of(lambda a: (a > 0).sum() + torch.count_nonzero(a), N),
    "softmax": _of(lambda a: T.softmax(a, -1) + T.log_softmax(a, 1), N),
    "softmax_over_rows": _whole(lambda a: T.softmax(a, 0), N),
    "cumulated": _of(lambda a: a.cumsum(1), N),
    "cumulated_over_rows": _whole(lambda a: a.cumsum(0), N),
    "sorted": _of(lambda a: a.sort(1).values, N),
    "sorted_over_rows": _whole(lambda a: a.sort(0).values, N),
    "topk": _of(lambda a: a.topk(2).values, N),
    "masked_mean": _whole(_masked_mean, N, N, kinds="fb"),
    "number": _whole(lambda a: a * float(a.detach().sum()), N),
    # shapes
    "flattened": _of(lambda a: a.reshape(a.shape[0], -1), IMAGE),
    "rows_and_steps": _of(lambda a: a.reshape(-1, 2).reshape(len(a), 3, 2), N),
    "all_in_one": _of(lambda a: a.reshape(-1), N),
    "transposed": _of(lambda a: a.transpose(0, 1).permute(1, 0)[:, None].squeeze(1), N),
    "channels_last": _of(lambda a: a.permute(0, 2, 3, 1).reshape(len(a), -1, 3), IMAGE),
    "expanded": _of(lambda a: a[:, None].expand(-1, 3, -1), N),
    "sliced": _of(lambda a: a[:, 1:3] + a[:, -2:], N),
    "selected": _of(lambda a: a[:, 1] + a[..., 2], N),
    "sliced_rows": _whole(lambda a: a[1:3], N),
    "one_row": _whole(lambda a: a[1] + a[-1], N),
    "halves": _whole(lambda a: a.chunk(2)[0], N),
    "parts": _of(lambda a: torch.cat(a.chunk(2, 1)[::-1], 1), N),
    "unbound": _of(lambda a: sum(a.unbind(1)), N),
    "joined": _of(lambda a, b: torch.cat([a, b], 1), N, N),
    "joined_rows": _whole(lambda a, b: torch.cat([a, b]), N, N),
    "stacked": _of(lambda a, b: torch.stack([a, b], 1).sum(1), N, N),
    "padded": _of(lambda a: T.pad(a, (1, 2)), N),
    "padded_rows": _whole(lambda a: T.pad(a, (0, 0, 1, 1)), N),
    "flipped": _of(lambda a: a.flip(1), N),
    "repeated": _of(lambda a: a.repeat(1, 2), N),
    "triangle": _of(lambda a: a.tril(), ("n", 4, 4)),
    "diagonal": _of(lambda a: torch.diagonal(a, dim1=1, dim2=2), ("n", 4, 4)),
    # lookups
    "embedding": _of(lambda i, t: T.embedding(i, t), ("n", 3), (5, 4), kinds="if"),
    "table": _of(lambda i, t: t[i], ("n",), (5, 4), kinds="if", is_split=False),
    "one_hot": _whole(lambda i: T.one_hot(i, 5), ("n",), kinds="i"),
    "gathered": _of(lambda a, i: a.gather(1, i[:, None]), N, ("n",), kinds="fi"),
    "entry_of_each_row": _whole(lambda a, i: a[torch.arange(len(a)), i], N, ("n",), kinds="fi"),
    "added_to_a_table": _whole(lambda a, i: torch.zeros(5, 6).index_add(0, i, a), N, ("n",), kinds="fi"),
    "chosen_columns": _of(lambda a: a.index_select(1, torch.tensor([2, 0])), N),
    "unique": _whole(lambda i: torch.unique(i), ("n",), kinds="i"),
    # layers and losses
    "convolution": _of(lambda a, w: T.conv2d(a, w, padding=1), IMAGE, (4, 3, 3, 3)),
    "convolution_of_steps": _of(lambda a, w: T.conv1d(a, w), ("n", 3, 8), (4, 3, 3)),
    "transposed_convolution": _of(lambda a, w: T.conv_transpose2d(a, w), IMAGE, (3, 4, 3, 3)),
    "largest_of_windows": _of(lambda a: T.max_pool2d(a, 2), IMAGE),
    "mean_of_windows": _of(lambda a: T.avg_pool2d(a, 2) + T.adaptive_avg_pool2d(a, 3), IMAGE),
    "resized": _whole(lambda a: T.interpolate(a, scale_factor=2), IMAGE),
    "layer_norm": _of(lambda a, w: T.layer_norm(a, (6,), w, w), N, (6,)),
    "group_norm": _of(lambda a: T.group_norm(a, 3), IMAGE),
    "batch_norm": _of(lambda a, w: T.batch_norm(a, None, None, w, w, training=True), IMAGE, (3,)),
    "view_in_place": _of(lambda a: a.clone().unsqueeze_(1).mul_(2.0).squeeze_(1), N),
    "view_in_place_of_columns": _of(lambda a: (a * 2.0).t_().transpose_(0, 1), N),
    "vmap_of_products": _of(
        lambda a, w: torch.func.vmap(lambda row: row @ w)(a), N, (6, 2)
    ),
    "batch_norm_of_vectors": _of(
        lambda a: T.batch_norm(a.double() + 1e7, None, None, training=True), ("n", 6)
    ),
    "batch_norm_with_statistics": _of(_with_statistics, IMAGE, (3,)),
    "batch_norm_of_moving_statistics": _of(
        lambda a, w: T.batch_norm(a, w.detach(), torch.ones(3), w, w), IMAGE, (3,)
    ),
    "attention": _of(lambda a: T.scaled_dot_product_attention(a, a, a), ("n", 2, 4, 3)),
    "mse": _of(lambda a, b: T.mse_loss(a, b) + T.mse_loss(a, b, reduction="sum"), N, N),
    "mse_of_rows": _of(lambda a, b: T.mse_loss(a, b, reduction="none").sum(1), N, N),
    "smooth_l1": _of(lambda a, b: T.smooth_l1_loss(a, b) + T.huber_loss(a, b), N, N),
    "binary": _of(lambda a, b: T.binary_cross_entropy(a.sigmoid(), b), N, N, kinds="fp"),
    "binary_logits": _of(lambda a, b: T.binary_cross_entropy_with_logits(a, b), N, N, kinds="fp"),
    "cross_entropy": _of(lambda a, i: T.cross_entropy(a, i), N, ("n",), kinds="fi"),
    "cross_entropy_ignored": _of(lambda a, i: T.cross_entropy(a, i, ignore_index=0, reduction="sum"), N, ("n",), kinds="fi"),
    "cross_entropy_of_rows": _of(lambda a, i: T.cross_entropy(a, i, reduction="none"), N, ("n",), kinds="fi"),
    "cross_entropy_of_steps": _of(
        lambda a, i: T.cross_entropy(a.reshape(-1, 6), i.reshape(-1)), ("n", 3, 6), ("n", 3), kinds="fi"
    ),
    "cross_entropy_weighted": _of(lambda a, i, w: T.cross_entropy(a, i, w.detach()), N, ("n",), (6,), kinds="fip"),
    "order_statistic": _of(lambda a: a.t().kthvalue(2, dim=0).values, N),
    "distances_of_many": _whole(
        lambda a: torch.cdist(a.detach().repeat_interleave(9, 0), a.detach()[:, :4].repeat(9, 1) @ torch.ones(4, 6)), N
    ),
    "distances": _whole(lambda a, b: torch.cdist(a, b), N, N),
    "in_batch": _whole(lambda a, b: T.cross_entropy(a @ b.T, torch.arange(len(a))), N, N),
}  # fmt: skip
