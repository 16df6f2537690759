"""What new memory holds under ``torch.use_deterministic_algorithms``."""

from __future__ import annotations

import torch
from torch import fx

aten, prims = torch.ops.aten, torch.ops.prims

_EMPTY = [
    getattr(packet, overload)
    for packet in (
        aten.empty,
        aten.empty_like,
        aten.empty_strided,
        aten.empty_permuted,
        aten.new_empty,
        aten.new_empty_strided,
        prims.empty_strided,
        prims.empty_permuted,
    )
    for overload in packet.overloads()
    if "out" not in overload
]


def fill_new_memory(gm: fx.GraphModule) -> None:
    """Fills what is made without values, as eager does then: with NaN, or the largest integer."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    if not torch.utils.deterministic.fill_uninitialized_memory:
        return
    graph = gm.graph
    for target in _EMPTY:
        for node in graph.find_nodes(op="call_function", target=target):
            with graph.inserting_after(node):
                filled = graph.call_function(
                    aten.full_like.default, (node, _value(node.meta["val"].dtype))
                )
            filled.meta = dict(node.meta)
            node.replace_all_uses_with(filled, delete_user_cb=lambda u, f=filled: u is not f)


def _value(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max
