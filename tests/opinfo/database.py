"""PyTorch's own operator database as work items: operator × dtype × mode, and its samples."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

DTYPES = {
    "f32": torch.float32,
    "i64": torch.int64,
    "bf16": torch.bfloat16,
    "bool": torch.bool,
    "f64": torch.float64,
    "f16": torch.float16,
    "c64": torch.complex64,
    "i32": torch.int32,
    "u8": torch.uint8,
}
MODES = ("forward", "grad", "inplace", "errors")

SEED = 1234


@functools.cache
def operators() -> dict[str, Any]:
    """Every `OpInfo` by full name (`add`, `nn.functional.conv2d`, `norm.fro`)."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        # torch's test utilities derive a class that is not used here from this package's.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_methods_invocations as database

    # Some entries seed the generator around each call, which Dynamo does not capture; the caller
    # seeds here.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {op.full_name: op for op in database.op_db}


@dataclasses.dataclass(frozen=True)
class Item:
    """What is checked at once: all samples of one operator in one dtype and mode."""

    op: str
    dtype: str
    mode: str
    """`forward` (no gradients wanted), `grad`, `inplace`, or `errors` (what eager refuses)."""

    def __str__(self) -> str:
        return f"{self.op}:{self.dtype}:{self.mode}"

    @classmethod
    def parse(cls, text: str) -> Item:
        return cls(*text.rsplit(":", 2))


def items(dtypes: list[str], modes: list[str]) -> Iterator[Item]:
    """All items that the database says exist, dtype by dtype."""
    for dtype in dtypes:
        t = DTYPES[dtype]
        for name, op in operators().items():
            if t not in op.supported_dtypes("cpu"):
                continue
            for mode in modes:
                if mode == "grad":
                    if not op.supports_autograd or t not in op.supported_backward_dtypes("cpu"):
                        continue
                    if not (t.is_floating_point or t.is_complex):
                        continue
                if mode == "inplace" and op.inplace_variant is None:
                    continue
                if mode == "errors" and (op.error_inputs_func is None or dtype != "f32"):
                    continue
                yield Item(name, dtype, mode)


def _same(out: Any) -> Any:
    return out


@dataclasses.dataclass
class Sample:
    """One call's arguments."""

    name: str
    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    """First argument, other positional ones, keywords."""
    process: Callable[[Any], Any] = _same
    """What of the outputs is differentiated: some have a free phase or sign."""


def spread(found: list[Any], count: int | None) -> list[Any]:
    """`count` of the list, evenly spread, first and last among them."""
    if count is None or len(found) <= count:
        return found
    if count == 1:
        return found[:1]
    return [found[round(i * (len(found) - 1) / (count - 1))] for i in range(count)]


def samples(item: Item, count: int | None) -> list[Sample]:
    """Samples of an item, at most `count` drawn from the database, each also noncontiguous."""
    op = operators()[item.op]
    torch.manual_seed(SEED)
    if item.mode == "errors":
        found = [e.sample_input for e in op.error_inputs("cpu")]
        return [
            Sample(f"error sample {i}", (s.input, s.args, s.kwargs))
            for i, s in enumerate(spread(found, count))
        ]
    drawn = op.sample_inputs("cpu", DTYPES[item.dtype], requires_grad=item.mode == "grad")
    out = []
    for i, s in spread(list(enumerate(drawn)), count):
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


def fresh(arguments: Any) -> Any:
    """The arguments over memory of their own: same strides, same sharing, leaves of a new graph."""
    storages: dict[int, Any] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.layout != torch.strided or x.is_quantized or type(x) is not Tensor:
            return x.detach().clone().requires_grad_(x.requires_grad)
        storage = x.untyped_storage()
        own = storages.setdefault(storage._cdata, storage.clone())
        out = torch.empty(0, dtype=x.dtype)
        out.set_(own, x.storage_offset(), x.shape, x.stride())
        if x.is_conj():
            out = out.conj()
        if x.is_neg():
            out = out._neg_view()
        return out.detach().requires_grad_(x.requires_grad)

    return tree_map(copy, arguments)


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
        if isinstance(x, torch.dtype):
            return WIDE.get(x, x)
        if isinstance(x, Tensor) and x.dtype in WIDE:
            return x.detach().to(WIDE[x.dtype]).requires_grad_(x.requires_grad)
        return x

    return tree_map(widen, arguments)
