"""Copies of a sample's arguments, which may be tensors, modules and nests of both."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def leaves(arguments: Any) -> list[Any]:
    """All leaves of a nest; of a module, its parameters and buffers."""
    out = []
    for x in tree_leaves(arguments):
        if isinstance(x, nn.Module):
            out += [p for p in x.parameters() if not nn.parameter.is_lazy(p)]
            out += list(x.buffers())
        else:
            out.append(x)
    return out


def fresh(arguments: Any) -> Any:
    """The arguments over memory of their own: same strides, same sharing, leaves of a new graph."""
    storages: dict[int, Any] = {}

    def own(x: Any) -> Any:
        if isinstance(x, nn.Module):
            return copy.deepcopy(x)
        if not isinstance(x, Tensor):
            return x
        if x.layout != torch.strided or x.is_quantized or type(x) is not Tensor:
            return x.detach().clone().requires_grad_(x.requires_grad)
        storage = x.untyped_storage()
        memory = storages.setdefault(storage._cdata, storage.clone())
        out = torch.empty(0, dtype=x.dtype)
        out.set_(memory, x.storage_offset(), x.shape, x.stride())
        if x.is_conj():
            out = out.conj()
        if x.is_neg():
            out = out._neg_view()
        return out.detach().requires_grad_(x.requires_grad)

    return tree_map(own, arguments)


#: The wide dtype in whose arithmetic a result counts as exact.
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def widened(arguments: Any) -> Any:
    """The arguments in double precision, dtypes among them too."""

    def widen(x: Any) -> Any:
        if isinstance(x, nn.Module):
            return x.double()
        if isinstance(x, torch.dtype):
            return WIDE.get(x, x)
        if isinstance(x, Tensor) and x.dtype in WIDE:
            return x.detach().to(WIDE[x.dtype]).requires_grad_(x.requires_grad)
        return x

    return tree_map(widen, arguments)
