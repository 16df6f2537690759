"""Operators on lists of tensors as operators on each: what the CPU does with them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PREFIX = "aten::_foreach_"


def _norm(x: torch.Tensor, order: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


#: The operator on one tensor, where it is not torch's of the same name.
_EACH: dict[str, Callable[..., Any]] = {
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": _norm,
    "zero": torch.zeros_like,
    "copy": torch.ops.aten.copy,
}

#: Left to ATen: numbers read from a tensor when it runs.
_LEFT = ["addcmul.Tensor", "addcdiv.Tensor"]


def _numbers(values: dict[str, Any]) -> list[Any]:
    listed = values.get("scalars", [])
    return [values.get("scalar"), *listed]


def table() -> dict[Any, Callable[..., Any]]:
    """A decomposition for each functional overload."""
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith(_PREFIX):
            continue
        name, _, overload = full.removeprefix(_PREFIX).partition(".")
        each = _EACH.get(name) or getattr(torch, name, None)
        if name.endswith("_") or each is None or f"{name}.{overload}" in _LEFT:
            continue
        op = getattr(getattr(torch.ops.aten, f"_foreach_{name}"), overload or "default")
        if not any(a.is_out for a in op._schema.arguments):
            found[op] = _one_by_one(op, name, each)
    return found


def _one_by_one(op: Any, name: str, each: Callable[..., Any]) -> Callable[..., Any]:
    schema = op._schema.arguments
    lists = {a.name for a in schema if str(a.type).startswith("List[")}
    keywords = {a.name for a in schema if a.kwarg_only}

    def run(*args: Any, **kwargs: Any) -> Any:
        values = {**dict(zip((a.name for a in schema), args)), **kwargs}
        if name == "sub" and any(isinstance(n, bool) for n in _numbers(values)):
            return NotImplemented  # eager refuses it
        counts = {len(v) for k, v in values.items() if k in lists}
        if len(counts) != 1:
            return NotImplemented

        def one(i: int) -> Any:
            mine = {k: v[i] if k in lists else v for k, v in values.items()}
            named = {k: mine.pop(k) for k in keywords & mine.keys()}
            positional = list(mine.values())
            if name in ("addcmul", "addcdiv") and len(positional) == 4:
                named["value"] = positional.pop()
            return each(*positional, **named)

        return [one(i) for i in range(*counts)]

    return run
