"""Binary search as arithmetic: ``bucketize``, ``searchsorted`` and ``isin``.

The steps of a search over a sequence of known length are so many gathers from it, which the
scheduler fuses with whatever computes the values and uses the positions. A sequence of symbolic
length is ATen's to search.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

#: Up to so many elements are compared with each, without sorting them.
_FEW = 16


def _search(
    sequence: torch.Tensor, values: torch.Tensor, right: bool, start: torch.Tensor | int
) -> torch.Tensor:
    """Positions in rows of `sequence`, whose last dim is sorted, that keep them sorted.

    `start` is each value's row in the flat sequence. ATen's steps, so that a sequence that is not
    sorted, or a NaN, gives the same position as in eager.
    """
    length = sequence.shape[-1]
    flat = sequence.reshape(-1)
    low = torch.zeros_like(values, dtype=torch.int64, memory_format=torch.contiguous_format)
    high = torch.full_like(low, length)
    for _ in range(int(length).bit_length()):
        middle = low + ((high - low) >> 1)
        # Where the search is over, `middle` may be the length.
        at = torch.take(flat, start + middle.clamp(max=length - 1))
        beyond = ~(at > values if right else at >= values) & (low < high)
        low, high = torch.where(beyond, middle + 1, low), torch.where(beyond, high, middle)
    return low


def _searchsorted(
    sorted_sequence: torch.Tensor,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    sequence, length = sorted_sequence, sorted_sequence.shape[-1]
    if not isinstance(length, int) or sequence.device.type != "cpu" or sequence.numel() == 0:
        return NotImplemented
    if not isinstance(self, torch.Tensor):
        self = torch.scalar_tensor(self, dtype=sequence.dtype)
    if self.dtype != sequence.dtype:
        return NotImplemented
    if sorter is not None:
        sequence = torch.gather(sequence, -1, sorter)
    start: torch.Tensor | int = 0
    if sequence.dim() > 1:
        rows = sequence.numel() // length
        start = torch.arange(0, rows * length, length).reshape(*sequence.shape[:-1], 1)
    found = _search(sequence, self, right or side == "right", start)
    return found.to(torch.int32) if out_int32 else found


def _bucketize(
    self: Any, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    if boundaries.dim() != 1:
        return NotImplemented
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """Few elements are compared with each; more are sorted (by ATen) and searched."""
    tensors = [x for x in (elements, test_elements) if isinstance(x, torch.Tensor)]
    dtype = torch.result_type(elements, test_elements)
    if any(x.device.type != "cpu" or x.is_complex() for x in tensors):
        return NotImplemented
    of, among = (
        x.to(dtype) if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=dtype)
        for x in (elements, test_elements)
    )
    among = among.reshape(-1)
    count = among.shape[0]
    if not isinstance(count, int):
        if isinstance(elements, torch.Tensor) and not elements.is_contiguous():
            # Torch's shape function keeps the layout, ATen does not.
            return torch.isin(elements.contiguous(), test_elements, invert=invert)
        return NotImplemented
    if count == 0:
        return torch.full(of.shape, invert, dtype=torch.bool)
    if count <= _FEW:
        found = (of.unsqueeze(-1) == among).any(-1)
    else:
        among = torch.sort(among).values
        found = torch.take(among, _search(among, of, False, 0).clamp(max=count - 1)) == of
    # Eager's is contiguous, whatever the layout of `elements`.
    return (~found if invert else found).contiguous()


def table() -> dict[str, Any]:
    """Decompositions by overload name."""
    return {
        "searchsorted.Tensor": _searchsorted,
        "searchsorted.Scalar": _searchsorted,
        "bucketize.Tensor": _bucketize,
        "bucketize.Scalar": _bucketize,
        "isin.Tensor_Tensor": _isin,
        "isin.Tensor_Scalar": _isin,
        "isin.Scalar_Tensor": _isin,
    }
