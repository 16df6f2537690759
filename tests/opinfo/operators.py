"""PyTorch's operator database, `op_db`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from database import DTYPES, SEED, Item, Sample, importable, spread

MODES = ("forward", "grad", "inplace", "errors")


@functools.cache
def entries() -> dict[str, Any]:
    """Every `OpInfo` by full name (`add`, `nn.functional.conv2d`, `norm.fro`)."""
    importable()
    from torch.testing._internal import common_methods_invocations as database

    # Some entries seed the generator around each call, which Dynamo does not capture; the caller
    # seeds here.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {op.full_name: op for op in database.op_db}


def supports(name: str, dtype: str, mode: str) -> bool:
    return has(entries()[name], dtype, mode)


def has(op: Any, dtype: str, mode: str) -> bool:
    """Whether an `OpInfo` says that it does this."""
    t = DTYPES[dtype]
    if t not in op.supported_dtypes("cpu"):
        return False
    if mode == "grad":
        if not op.supports_autograd or t not in op.supported_backward_dtypes("cpu"):
            return False
        return t.is_floating_point or t.is_complex
    if mode == "inplace":
        return op.inplace_variant is not None
    if mode == "errors":
        return op.error_inputs_func is not None and dtype == "f32"
    return True


def call(item: Item) -> Callable[..., Any]:
    return item.entry.inplace_variant if item.mode == "inplace" else item.entry.op


def samples(item: Item, count: int | None) -> list[Sample]:
    """Samples of an item, at most `count` drawn from the database, each also noncontiguous."""
    op = item.entry
    torch.manual_seed(SEED)
    if item.mode == "errors":
        found = [e.sample_input for e in op.error_inputs("cpu")]
        return [
            Sample(f"error sample {i}", (s.input, s.args, s.kwargs))
            for i, s in enumerate(spread(found, count))
        ]
    drawn = op.sample_inputs("cpu", DTYPES[item.dtype], requires_grad=item.grad)
    return both_layouts(spread(list(enumerate(drawn)), count))


def both_layouts(drawn: list[tuple[int, Any]]) -> list[Sample]:
    """Each sample as it is, and noncontiguous."""
    out = []
    for i, s in drawn:
        out.append(Sample(f"sample {i}", (s.input, s.args, s.kwargs), s.output_process_fn_grad))
        try:
            n = s.noncontiguous()
        except Exception:
            # Not every argument (sparse, quantised) has such a variant.
            continue
        out.append(
            Sample(
                f"sample {i} noncontiguous", (n.input, n.args, n.kwargs), s.output_process_fn_grad
            )
        )
    return out
