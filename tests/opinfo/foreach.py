"""PyTorch's database of operators on lists of tensors."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import operators
import torch
from database import DTYPES, SEED, Item, Sample, importable, spread

MODES = ("forward", "grad", "inplace")

_DATABASES = ("unary", "binary", "pointwise", "reduce", "other")


@functools.cache
def entries() -> dict[str, Any]:
    """Every `ForeachFuncInfo` by name (`foreach.add`)."""
    importable()
    from torch.testing._internal import common_methods_invocations as database

    found = [op for name in _DATABASES for op in getattr(database, f"foreach_{name}_op_db")]
    return {f"foreach.{op.name.removeprefix('_foreach_')}": op for op in found}


def supports(name: str, dtype: str, mode: str) -> bool:
    op = entries()[name]
    # Those without a result of their own have their change in place as `op`.
    if mode != "inplace" and op.op is op.inplace_variant:
        return False
    return operators.has(op, dtype, mode)


call: Callable[[Item], Callable[..., Any]] = operators.call


def samples(item: Item, count: int | None) -> list[Sample]:
    """Samples, at most `count`, each also noncontiguous."""
    torch.manual_seed(SEED)
    # Numbers among the arguments come from here.
    random.seed(SEED)
    drawn = list(
        item.entry.sample_inputs(
            "cpu", DTYPES[item.dtype], requires_grad=item.grad, num_input_tensors=[1, 5]
        )
    )
    for s in drawn:
        s.kwargs = {k: v for k, v in s.kwargs.items() if k != "disable_fastpath"}
    return operators.both_layouts(spread(list(enumerate(drawn)), count))
