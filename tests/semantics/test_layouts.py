"""Strides of results and of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import check, drawn


def images(*shape: int) -> dict[str, Callable[[], torch.Tensor]]:
    def of(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: change(drawn(*shape)).detach().requires_grad_()

    return {
        "contiguous": of(lambda x: x),
        "channels last": of(lambda x: x.contiguous(memory_format=torch.channels_last)),
        "permuted": of(lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)),
        "sliced": of(lambda x: torch.cat([x, x], 2)[:, :, ::2]),
        "expanded": of(lambda x: x[:1].expand(x.shape)),
    }


W, AT = drawn(6, 4, 3, 3), torch.tensor([2])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: torch.tanh(x) * 2 + x,
    "mixed": lambda x: x + x.contiguous(),
    "broadcast": lambda x: x * x.mean((2, 3), keepdim=True),
    "sum": lambda x: (x.sum(1), x.sum((0, 2)), x.mean(3, keepdim=True), x.amax(2)),
    "softmax": lambda x: (x.softmax(1), x.softmax(-1), x.log_softmax(2)),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 2),
    "convolution": lambda x: F.conv2d(x, W, padding=1).relu(),
    "pooling": lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)),
    "interpolation": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "pad": lambda x: (F.pad(x, (1, 1)), F.pad(x, (1, 2, 0, 1), mode="reflect")),
    "cat": lambda x: (torch.cat([x, x], 1), torch.stack([x, x])),
    "views": lambda x: (x.flatten(1), x.permute(0, 2, 3, 1), x.reshape(x.shape[0], -1), x[:, 1:]),
    "clone": lambda x: (x.clone(), x.contiguous(), torch.empty_like(x).fill_(1), x.double()),
    "where": lambda x: (torch.where(x > 0, x, x.contiguous()), x.clamp(0), x.masked_fill(x > 1, 0)),
    "cumulative": lambda x: (x.cumsum(1), x.flip(2), x.roll(1, 3), x.sort(-1).values),
    "matmul": lambda x: (x @ x.transpose(-1, -2), x.flatten(1) @ x.flatten(1).t()),
    "index": lambda x: (x[:, [0, 2]], x[torch.tensor([1, 0])], x.index_select(1, AT)),
    "losses": lambda x: (F.mse_loss(x, x.detach() * 2), F.gelu(x).mean(), F.elu(x)),
    "unfold": lambda x: (F.unfold(x, 2), x.unfold(2, 2, 1)),
    "dropout": lambda x: F.dropout(x, 0.0),
    "std": lambda x: (x.std(1), x.var((2, 3))),
    "in place": lambda x: x.clone().mul_(2).add_(x),
    "einsum": lambda x: torch.einsum("nchw,ncvw->nhv", x, x),
    "pixel shuffle": lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_of_results_and_gradients(name: str) -> None:
    for layout, make in images(3, 4, 6, 8).items():
        try:
            check(FUNCTIONS[name], lambda make=make: [make()], grad=True, aliases=False)
        except AssertionError as fault:
            raise AssertionError(f"{layout}: {fault}") from fault


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_borders_of_volumes(mode: str) -> None:
    def fn(x):
        return F.pad(x, (1, 0, 1, 1, 0, 1), mode=mode)

    def volume():
        x = drawn(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)
        return [x.requires_grad_()]

    def single():
        x = drawn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        return [x.requires_grad_()]

    for make in (volume, single):
        check(fn, make, grad=True)
