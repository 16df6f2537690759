"""Graphs whose inputs overlap in memory, where AOTAutograd's own treatment is unsound."""

from __future__ import annotations

import operator
from collections import Counter

import torch
from torch import fx

from .storage import storage_of

_IN_PLACE = {
    operator.setitem,
    *(f for n, f in vars(operator).items() if n[:1] == "i" and n[1:] in vars(operator)),
}


def unsound_alias(gm: fx.GraphModule) -> str | None:
    """Why a graph that Dynamo captured must not go through AOTAutograd, or None.

    If inputs share a storage and one of them is changed, AOTAutograd passes their common base
    instead of them. An output that is a view of one of them is then rebuilt from the base by the
    steps that led to it from the input: an error, or another part of the memory.
    """
    inputs = (_storage(node) for node in gm.graph.nodes if node.op == "placeholder")
    count = Counter(s for s in inputs if s is not None)
    shared = {s for s, n in count.items() if n > 1}
    if not shared or not any(changes(node) for node in gm.graph.nodes):
        return None
    results = gm.graph.output_node().all_input_nodes
    if any(node.op != "placeholder" and _storage(node) in shared for node in results):
        return "a view of an input is returned that overlaps another input, and one is changed"
    return None


def _storage(node: fx.Node) -> int | None:
    return storage_of(node.meta.get("example_value"))


def changes(node: fx.Node) -> bool:
    """Whether the node may change an operand in place."""
    if node.op not in ("call_function", "call_method"):
        return False
    if "out" in node.kwargs or node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    if node.target in _IN_PLACE:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") and not name.endswith("__")
