"""Attention spelled out in many ways: small functions, and what they are called with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

B, H, L, S, D = 2, 4, 6, 10, 8
INF = float("inf")


@dataclass
class Case:
    """One spelling."""

    fn: Callable[..., torch.Tensor]
    masks: dict[str, torch.Tensor] = field(default_factory=dict)
    """Further arguments by name."""
    square: bool = False
    """As many keys as queries."""
    layout: str = "bhld"
    kv_heads: int = H
    dv: int = D
    reason: str | None = None
    """Why it must be left as it is."""
    train: bool = True
    """Whether eager can differentiate it."""
    train_reason: str | None = None
    """Why it must be left as it is where gradients are needed."""

    def inputs(self, dtype: torch.dtype, length: tuple[int, int] = (L, S)) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(3)
        queries, keys = length
        keys = queries if self.square else keys
        out = []
        for n, heads, d in (
            (queries, H, D),
            (keys, self.kv_heads, D),
            (keys, self.kv_heads, self.dv),
        ):
            shape = {"bhld": (B, heads, n, d), "blhd": (B, n, heads, d), "xld": (B * H, n, d)}
            out.append(torch.randn(shape[self.layout], generator=g).to(dtype))
        return out


def _padding(low: float) -> torch.Tensor:
    mask = torch.zeros(B, 1, 1, S)
    mask[1, ..., -3:] = low
    return mask


def _rows_shut(low: float) -> torch.Tensor:
    mask = torch.where(torch.arange(L * S).reshape(L, S) % 3 == 0, low, 0.0)
    mask[2] = low
    return mask.expand(B, 1, L, S).clone()


def softmax_plain(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D), dim=-1) @ v


def scaled_query(q, k, v):
    return torch.matmul(functional.softmax((q * D**-0.5) @ k.mT.contiguous(), -1), v)


def scaled_both(q, k, v):
    s = D**-0.25
    return ((q * s) @ (k * s).transpose(-2, -1)).softmax(-1) @ v


def scaled_key_after_transpose(q, k, v):
    return (q @ (k.transpose(-1, -2) / D**0.5)).softmax(-1) @ v


def float_softmax(q, k, v):
    w = torch.matmul(q, k.transpose(2, 3)) * 0.3
    w = functional.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype)
    w = functional.dropout(w, p=0.0, training=True)
    return torch.matmul(w, v).transpose(1, 2).contiguous()


def float_scores(q, k, v):
    w = (q.float() @ k.float().transpose(-1, -2)) * 0.3
    return w.softmax(-1).type_as(v) @ v


def additive(q, k, v, mask):
    w = torch.matmul(q, k.transpose(2, 3)) * 0.25 + mask.to(q.dtype)
    return functional.softmax(w, dim=-1) @ v


def additive_in_place(q, k, v, mask):
    w = torch.matmul(q, k.transpose(2, 3))
    w *= 0.25
    w += mask.to(q.dtype)
    return functional.softmax(w.float(), dim=-1).type_as(w) @ v


def inverted(q, k, v, mask):
    return ((q @ k.mT.clone()) - (1.0 - mask.to(q.dtype)) * 1e4).softmax(-1) @ v


def two_masks(q, k, v, mask, bias):
    return (q @ k.transpose(-1, -2) + bias.to(q.dtype) + mask.to(q.dtype)).softmax(-1) @ v


def boolean(q, k, v, mask):
    w = (q @ k.transpose(-1, -2)) / 3.0
    return w.masked_fill(mask, -INF).softmax(-1) @ v


def added_inf(q, k, v, mask):
    bias = torch.where(mask, torch.zeros([], dtype=q.dtype), -INF)
    return ((q @ k.transpose(-1, -2)) * 0.5 + bias).softmax(-1) @ v


def boolean_finite(q, k, v, mask):
    w = (q @ k.transpose(-1, -2)) / 3.0
    return torch.where(mask, w, torch.finfo(w.dtype).min).softmax(-1) @ v


def boolean_small(q, k, v, mask):
    w = (q @ k.transpose(-1, -2)) / 3.0
    return w.masked_fill(~mask, -1e9).softmax(-1) @ v


def made_mask(q, k, v, mask):
    zero = torch.zeros([], dtype=q.dtype)
    bias = torch.where(mask[:, None, None], zero, torch.finfo(q.dtype).min)
    return (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v


def causal_tril(q, k, v):
    n = q.shape[-2]
    w = (q @ k.transpose(-1, -2)) * D**-0.5
    w = w.masked_fill(torch.ones(n, n).tril() == 0, -INF)
    return w.softmax(-1) @ v


def causal_triu(q, k, v):
    n = q.shape[-2]
    mask = torch.triu(torch.full((n, n), -INF), diagonal=1).to(q.dtype)
    return (q @ k.transpose(-1, -2) * D**-0.5 + mask).softmax(-1) @ v


def causal_positions(q, k, v):
    at = torch.arange(q.shape[-2])
    keep = (at[None, None, None, :] <= at[None, None, :, None]).expand(B, -1, -1, -1)
    mask = torch.where(keep, torch.zeros([], dtype=q.dtype), torch.finfo(q.dtype).min)
    return (q @ k.transpose(-1, -2) * D**-0.5 + mask).softmax(-1) @ v


def grouped(q, k, v):
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def grouped_expand(q, k, v):
    n = H // k.shape[1]
    k, v = (
        x[:, :, None, :, :].expand(B, 2, n, x.shape[2], D).reshape(B, H, x.shape[2], D)
        for x in (k, v)
    )
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def one_key_head(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def batched(q, k, v):
    return torch.bmm(functional.softmax(torch.bmm(q * 0.3, k.transpose(1, 2)), dim=-1), v)


def batched_masked(q, k, v, mask):
    w = torch.bmm(q * 0.3, k.transpose(1, 2))
    w = w.view(B, H, q.shape[1], k.shape[1]) + mask.to(q.dtype)
    w = w.view(B * H, q.shape[1], k.shape[1])
    w = functional.softmax(w, dim=-1)
    out = torch.bmm(functional.dropout(w, p=0.1, training=False), v)
    return out.view(B, H, q.shape[1], D).transpose(1, 2).reshape(B, q.shape[1], H * D)


def batched_masked_flat(q, k, v, mask):
    w = torch.bmm(q, k.transpose(1, 2)).view(B, H, q.shape[1], k.shape[1]) + mask.to(q.dtype)
    w = functional.softmax(w.view(B * H, q.shape[1], k.shape[1]), dim=-1)
    return torch.bmm(w, v) * 2


def biased(q, k, v, mask):
    bias = mask.to(q.dtype).expand(B, H, 1, k.shape[1]).reshape(B * H, 1, k.shape[1])
    w = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.3)
    return torch.bmm(w.softmax(-1), v)


def einsum(q, k, v):
    w = torch.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    return torch.einsum("bhqk,bkhd->bqhd", w.softmax(-1), v)


def einsum_turned(q, k, v):
    w = torch.einsum("bkhd,bqhd->bhqk", k * D**-0.5, q)
    return torch.einsum("bkhd,bhqk->bqhd", v, torch.softmax(w, dim=3))


def keys_first(q, k, v):
    w = torch.softmax(k @ q.transpose(-1, -2), dim=-2)
    return w.transpose(-1, -2) @ v


def temperature(q, k, v, scale):
    return ((q @ k.transpose(-1, -2)) * scale.to(q.dtype)).softmax(-1) @ v


def returned_weights(q, k, v):
    w = (q @ k.transpose(-1, -2)).softmax(-1)
    return (w @ v) + w.sum()


def returned_scores(q, k, v):
    w = q @ k.transpose(-1, -2)
    return (w.softmax(-1) @ v) + w.sum()


def other_dim(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-2) @ v


def capped(q, k, v):
    return (torch.tanh(q @ k.transpose(-1, -2) / 5.0) * 5.0).softmax(-1) @ v


def seen_through_a_view(q, k, v, mask):
    w = q @ k.transpose(-1, -2)
    flat = w.view(-1, w.shape[-1])
    flat += mask[0, 0, 0].to(q.dtype)
    return w.softmax(-1) @ v


def keys_change(q, k, v):
    k = k * 1.0
    w = q @ k.transpose(-1, -2)
    p = w.softmax(-1)
    v = v * 1.0
    out = p @ v
    k.zero_()
    return out + k.sum()


def query_changes(q, k, v):
    q = q * 1.0
    w = q @ k.transpose(-1, -2)
    q.zero_()
    return (w.softmax(-1) @ v) + q.sum()


def blocked_by_little(q, k, v, mask):
    return (q @ k.transpose(-1, -2)).masked_fill(mask, -5.0).softmax(-1) @ v


def _keep() -> torch.Tensor:
    keep = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(5)) > 0.3
    keep[1, 0, 3] = False
    return keep


READ = "something else reads the scores or the probabilities"
MORE = "the scores are more than a scaled product and a mask"
OTHER = "the probabilities are more than cast, dropped and multiplied"
SHUT = "the mask may shut a row: the kernel has another gradient for it"
CASES = {
    "plain": Case(softmax_plain),
    "scaled_query": Case(scaled_query),
    "scaled_both": Case(scaled_both),
    "scaled_key": Case(scaled_key_after_transpose),
    "float_softmax": Case(float_softmax),
    "float_scores": Case(float_scores),
    "additive": Case(
        additive, {"mask": _padding(torch.finfo(torch.bfloat16).min)}, train_reason=SHUT
    ),
    "additive_rows": Case(
        additive, {"mask": _rows_shut(torch.finfo(torch.bfloat16).min)}, train_reason=SHUT
    ),
    "additive_inf": Case(additive, {"mask": _padding(-INF)}, train_reason=SHUT),
    "additive_inf_rows": Case(additive, {"mask": _rows_shut(-INF)}, train_reason=SHUT),
    "in_place": Case(additive_in_place, {"mask": _padding(-1e4)}, train_reason=SHUT),
    "inverted": Case(
        inverted, {"mask": torch.ones(B, 1, 1, S, dtype=torch.bool)}, train_reason=SHUT
    ),
    "two_masks": Case(
        two_masks,
        {"mask": _padding(-INF), "bias": torch.linspace(-1, 1, H * L * S).reshape(1, H, L, S)},
        train_reason=SHUT,
    ),
    "boolean": Case(boolean, {"mask": ~_keep()}, train_reason=SHUT),
    "added_inf": Case(added_inf, {"mask": _keep()}),
    "boolean_finite": Case(boolean_finite, {"mask": _keep()}),
    "boolean_small": Case(boolean_small, {"mask": _keep()}),
    "made_mask": Case(
        made_mask, {"mask": torch.arange(B * S).reshape(B, S) % 7 != 3}, train_reason=SHUT
    ),
    "causal_tril": Case(causal_tril, square=True),
    "causal_triu": Case(causal_triu, square=True),
    "causal_positions": Case(causal_positions, square=True),
    "grouped": Case(grouped, kv_heads=2),
    "grouped_expand": Case(grouped_expand, kv_heads=2),
    "one_key_head": Case(one_key_head, kv_heads=1),
    "narrow_values": Case(softmax_plain, dv=5),
    "batched": Case(batched, layout="xld"),
    "batched_masked": Case(
        batched_masked, {"mask": _padding(-INF)}, layout="xld", train_reason=SHUT
    ),
    "batched_flat": Case(
        batched_masked_flat, {"mask": _padding(-INF)}, layout="xld", train_reason=SHUT
    ),
    "biased": Case(biased, {"mask": _padding(-1e4)}, layout="xld", train_reason=SHUT),
    "einsum": Case(einsum, layout="blhd"),
    "einsum_turned": Case(einsum_turned, layout="blhd"),
    "keys_first": Case(keys_first),
    "temperature": Case(temperature, {"scale": torch.linspace(0.2, 0.4, H).reshape(H, 1, 1)}),
    "keys_change_later": Case(keys_change, train=False),
    "wide_values": Case(softmax_plain, dv=12, reason="values are wider than keys"),
    "weights_read": Case(returned_weights, reason=READ),
    "scores_read": Case(returned_scores, reason=READ),
    "other_dim": Case(other_dim, square=True, reason=OTHER),
    "capped": Case(capped, reason=MORE),
    "through_view": Case(
        seen_through_a_view,
        {"mask": _padding(-1e4)},
        reason=READ,
    ),
    "query_changes": Case(query_changes, train=False, reason="memory or a mode changes in between"),
    "blocked_by_little": Case(blocked_by_little, {"mask": ~_keep()}, reason=MORE),
}


def run(fn: Callable[..., torch.Tensor], case: Case, args: list[Any], grad: bool) -> list[Any]:
    """The result and, with `grad`, the gradients."""
    args = [a.clone().requires_grad_(grad) for a in args]
    out = fn(*args, **case.masks)
    if not grad:
        return [out]
    g = torch.Generator().manual_seed(9)
    weight = torch.randn(out.shape, generator=g).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, args, weight)]
