"""Cross-entropy of a linear layer, a number of rows at a time.

The forward computes the loss and, if they are wanted, the gradients of the layer's operands for a
gradient of 1: the scores of a part of the rows are there once, and never those of all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Bytes of the scores that are there at a time.
PART = 32 << 20


@torch.library.custom_op("ljcompile::linear_cross_entropy", mutates_args=())
def _loss(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    sum_losses: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and the gradients of `x`, `w` and `bias`; those not wanted are empty."""
    out = _outputs(x, w, wanted)
    loss, dx, dw, db = out
    rows, classes = x.shape[0], w.shape[0]
    wide = loss.dtype
    some = max(64, min(rows, PART // (classes * wide.itemsize)))
    counts = target != ignore_index
    share = counts.to(wide)
    if not sum_losses:
        share = torch.where(counts, 1.0 / counts.sum().to(wide), 0.0)
    loss.zero_()
    dw_wide = dw if dw.dtype == wide else torch.zeros(dw.shape, dtype=wide)
    dw_wide.zero_()
    db_wide = torch.zeros(db.shape, dtype=wide)
    space = torch.empty(min(some, rows), classes, dtype=wide)
    narrow = space if x.dtype == wide else torch.empty_like(space, dtype=x.dtype)
    space_2 = torch.empty_like(space) if x.dtype == wide else space
    for first in range(0, rows, some):
        part = slice(first, min(first + some, rows))
        n = part.stop - first
        xs, index = x[part], target[part]
        scores = narrow[:n]
        if bias is None:
            torch.mm(xs, w.t(), out=scores)
        else:
            torch.addmm(bias, xs, w.t(), out=scores)
        if x.dtype != wide:
            scores = space[:n].copy_(scores)
        log_p = torch.ops.aten._log_softmax.out(scores, 1, False, out=space_2[:n])
        loss += torch.nn.functional.nll_loss(
            log_p, index, ignore_index=ignore_index, reduction="sum"
        )
        if not any(wanted):
            continue
        # The gradient of the scores, but for the share of a row in the loss.
        p = log_p.exp_()
        here = torch.where(counts[part], index, 0).unsqueeze(1)
        p.scatter_add_(1, here, torch.full((n, 1), -1.0, dtype=wide))
        weight = share[part].unsqueeze(1)
        if wanted[2]:
            db_wide += (p * weight).sum(0)
        p = p if x.dtype == wide else narrow[:n].copy_(p)
        if wanted[0]:
            torch.mm(p, w, out=dx[part]).mul_(weight.to(x.dtype))
        if wanted[1]:
            weighted = xs * weight.to(x.dtype)
            if dw is dw_wide:
                dw.addmm_(p.t(), weighted)
            else:
                dw_wide += p.t() @ weighted
    if dw is not dw_wide:
        dw.copy_(dw_wide)
    db.copy_(db_wide)
    if not sum_losses:
        loss /= counts.sum()
    return out


def _outputs(x: Tensor, w: Tensor, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    return (
        x.new_empty((), dtype=wide),
        x.new_empty(x.shape if wanted[0] else (0,)),
        w.new_empty(w.shape if wanted[1] else (0,)),
        w.new_empty(w.shape[:1] if wanted[2] else (0,)),
    )


@_loss.register_fake
def _(
    x: Tensor, w: Tensor, bias: Any, target: Any, index: Any, total: Any, wanted: list[bool]
) -> Any:
    return _outputs(x, w, wanted)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.wanted = inputs[-1]
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    grads = [
        kept * grad.to(kept.dtype) if wanted else None
        for kept, wanted in zip(ctx.saved_tensors, ctx.wanted, strict=True)
    ]
    return (*grads, None, None, None, None)


_loss.register_autograd(_backward, setup_context=_keep)


def linear_cross_entropy(
    x: Tensor,
    w: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    sum_losses: bool,
    dtype: torch.dtype,
) -> Tensor:
    """``cross_entropy(linear(x, w, bias), target)`` of rows `x`."""
    on = torch.is_grad_enabled()
    wanted = [on and t is not None and t.requires_grad for t in (x, w, bias)]
    return _loss(x, w, bias, target, ignore_index, sum_losses, wanted)[0].to(dtype)
