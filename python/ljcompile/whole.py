"""Operators that torch takes apart below autograd, kept whole or put right while we trace.

The Python dispatcher has kernels of its own for interpolation, which put an index and, for the
gradient, a scatter in its place before any decomposition table is asked. We lower the whole
operator and its gradient.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decompositions
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format

_NAMES = """
upsample_nearest1d upsample_nearest2d upsample_nearest3d
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
""".split()  # noqa: SIM905

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd, DispatchKey.Meta)


def _with_sizes(op: Any) -> Callable[..., Tensor]:
    """The overload that takes factors, in terms of `op`, which takes the size as well.

    ATen's own would make symbolic sizes concrete.
    """

    def call(x: Tensor, size: Any, *flags: Any) -> Tensor:
        *align, factors = flags
        size = upsample_compute_output_size(x.size(), size, factors)
        return op(x, size, *align, *(factors or [None] * len(size)))

    return call


def _gradient_meta(grad: Tensor, output_size: Any, input_size: Any, *rest: Any) -> Tensor:
    """Shape and layout of a gradient; the C++ one does not take symbolic sizes."""
    return torch.empty(
        input_size,
        dtype=grad.dtype,
        device=grad.device,
        memory_format=suggest_memory_format(grad),
    )


def _pad_circular(x: Tensor, pad: Any) -> Tensor:
    """Three pieces joined along every dim, instead of copies into an empty tensor."""
    for i in range(len(pad) // 2):
        dim = x.dim() - 1 - i
        low, high, size = pad[2 * i], pad[2 * i + 1], x.shape[dim]
        if low < 0 or high < 0:
            x = x.narrow(dim, max(-low, 0), size + min(low, 0) + min(high, 0))
        parts = [x.narrow(dim, size - low, low)] if low > 0 else []
        parts += [x, *([x.narrow(dim, 0, high)] if high > 0 else [])]
        x = torch.cat(parts, dim) if len(parts) > 1 else x
    # Eager fills an empty tensor, whatever the layout of its operand.
    return x.clone(memory_format=torch.contiguous_format)


def _border_gradient_meta(grad: Tensor, x: Tensor, padding: Any) -> Tensor:
    """As the CPU lays it out."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> Any:
    """Torch's, without the dim that it adds to the loss of a single sample."""
    loss, is_target = decompositions.multilabel_margin_loss_forward(x, target, reduction)
    return loss if x.dim() > 1 else loss.reshape(()), is_target


@functools.cache
def _kernels() -> tuple[tuple[Any, dict[DispatchKey, Callable[..., Any]]], ...]:
    """Overloads, and what serves them in place of torch's kernels; nothing stands for ATen's."""
    out: list[tuple[Any, dict[DispatchKey, Callable[..., Any]]]] = []
    for name in _NAMES:
        packet = getattr(torch.ops.aten, name)
        out.append((packet.default, {}))
        if "vec" in packet.overloads():
            out.append((packet.vec, dict.fromkeys(_KEYS[:2], _with_sizes(packet.default))))
        if "linear" in name or "cubic" in name:
            backward = getattr(torch.ops.aten, f"{name}_backward").default
            out.append((backward, {DispatchKey.Meta: _gradient_meta}))
    for name in ("reflection_pad2d_backward", "replication_pad2d_backward"):
        backward = getattr(torch.ops.aten, name).default
        out.append((backward, {DispatchKey.Meta: _border_gradient_meta}))
    circular = torch.ops.aten._pad_circular.default
    out.append((circular, dict.fromkeys(_KEYS[:2], _pad_circular)))
    margin = torch.ops.aten.multilabel_margin_loss_forward.default
    out.append((margin, dict.fromkeys(_KEYS[:2], _multilabel_margin_loss)))
    return tuple(out)


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """Within, autograd's own kernels serve these operators. Dynamo's lock is held meanwhile."""
    taken = []
    for op, ours in _kernels():
        keys = _KEYS if DispatchKey.Meta in ours else _KEYS[:2]
        taken.append((op, {k: op.py_kernels.pop(k) for k in keys if k in op.py_kernels}))
        op.py_kernels.update(ours)
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for (op, kernels), (_, ours) in zip(taken, _kernels(), strict=True):
            for key in ours:
                op.py_kernels.pop(key, None)
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
