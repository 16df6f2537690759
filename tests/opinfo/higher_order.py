"""PyTorch's database of higher-order operators: control flow, flex attention, subgraphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import operators
import torch
from database import DTYPES, SEED, Item, Sample, importable, spread

MODES = ("forward", "grad")

#: Entries for what no CPU has, or that Dynamo is not meant to see.
_LEFT_OUT = {
    "inline_asm_elementwise": "assembler of a GPU",
    "local_map_hop": "Dynamo rewrites it otherwise, says the database",
}


@functools.cache
def entries() -> dict[str, Any]:
    """Every entry by full name (`hop.map.nested`)."""
    importable()
    from torch.testing._internal import hop_db as database

    return {f"hop.{op.full_name}": op for op in database.hop_db if op.name not in _LEFT_OUT}


def supports(name: str, dtype: str, mode: str) -> bool:
    op, t = entries()[name], DTYPES[dtype]
    # Said to be for CUDA alone, flex attention runs on CPUs as well.
    if t not in (op.dtypes or op.dtypesIfCUDA):
        return False
    return mode == "forward" or (op.supports_autograd and t.is_floating_point)


call: Callable[[Item], Callable[..., Any]] = operators.call


def samples(item: Item, count: int | None) -> list[Sample]:
    """Samples, at most `count`."""
    torch.manual_seed(SEED)
    op = item.entry
    drawn = op.sample_inputs_func(op, "cpu", DTYPES[item.dtype], item.grad)
    return operators.both_layouts(spread(list(enumerate(drawn)), count))
