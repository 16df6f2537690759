"""What ``as_strided`` reads: the storage of its operand, not the operand."""

from __future__ import annotations

import torch
from torch import fx

_AS_STRIDED = torch.ops.aten.as_strided.default


def read_whole_storages(gm: fx.GraphModule) -> None:
    """Makes every ``as_strided`` of a view one of the tensor that owns the storage.

    A compiled intermediate that is a view need not lie where eager has it: it may be copied, and
    its storage is not what eager's is. The tensor it is a view of is materialised as in eager, and
    ``storage_offset`` counts from its first element (for a graph input: from its storage's).

    Raises:
        NotImplementedError: Where a view begins depends on symbolic sizes.

    """
    nodes = gm.graph.find_nodes(op="call_function", target=_AS_STRIDED)
    if not nodes:
        return
    owners: dict[int, fx.Node] = {}
    for node in gm.graph.nodes:
        storage = _storage(node)
        if storage is not None:
            owners.setdefault(storage, node)
    for node in nodes:
        storage = _storage(node.args[0])
        owner = owners.get(storage) if storage is not None else None
        if owner is None or owner is node.args[0]:
            continue
        x, size, stride = node.args[:3]
        offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        if offset is None:
            offset = x.meta["val"].storage_offset()
            if not isinstance(offset, int):
                raise NotImplementedError(
                    f"{node.name}: as_strided of a view that begins at a symbolic offset"
                )
        node.args, node.kwargs = (owner, size, stride, offset), {}


def _storage(node: fx.Node) -> int | None:
    return storage_of(node.meta.get("val"))


def storage_of(value: object) -> int | None:
    """An identity of the storage that a (fake) tensor lies in; None where there is none."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    try:
        return value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a subclass without a storage
        return None
