"""Inputs in many layouts, and the comparison with eager."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BACKEND = os.environ.get("LJ_BACKEND", "ljcompile")

#: Largest relative and absolute difference from eager.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (3e-6, 2e-6),
    torch.bfloat16: (2.0**-7, 2.0**-7),
    torch.float16: (2.0**-10, 2.0**-9),
}


def compiled(fn: Callable, **options: Any) -> Callable:
    """`fn` compiled afresh."""
    torch._dynamo.reset()
    return torch.compile(fn, backend=BACKEND, fullgraph=True, **options)


def ours_alone(fn: Callable, *args: Any, dynamic: bool = False) -> Any:
    """The compiled function's result; fails if ATen had to run anything."""
    from ljcompile import stats

    call = compiled(fn, dynamic=dynamic)
    stats.clear()
    out = call(*args)
    calls = [f for r in stats.records for f in r.fallbacks]
    assert not calls and all(r.eager is None for r in stats.records), calls
    return out


def serially(call: Callable, *args: Any) -> Any:
    """`call` in one thread: eager puts elements at equal places in order only then."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return call(*args)
    finally:
        torch.set_num_threads(threads)


def draw(
    shape: Sequence[int],
    dtype: torch.dtype,
    g: torch.Generator,
    low: float = -3.0,
    high: float = 3.0,
    nonzero: bool = False,
) -> Tensor:
    """A tensor of values within `[low, high]`; no zeros in it if `nonzero`."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) < 0.5
    if dtype.is_floating_point:
        x = torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low
        if nonzero:
            x = torch.where(x.abs() < 0.1, 0.5, x)
        return x.to(dtype)
    info = torch.iinfo(dtype)
    x = torch.randint(max(info.min, -100), min(info.max, 100) + 1, shape, generator=g)
    if nonzero:
        x = torch.where(x == 0, 3, x)
    return x.to(dtype)


def special(dtype: torch.dtype) -> Tensor:
    """Values at the edges of a dtype; 23 of them, so that a vector and a tail are filled."""
    if dtype == torch.bool:
        return torch.tensor([False, True] * 11 + [True])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        inf, nan = float("inf"), float("nan")
        values = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, info.max, info.min, info.tiny, -info.tiny]
        values += [0.5, -0.5, 1.5, 2.5, -2.5, 1e-3, -1e-3, 20.0, -20.0, 90.0, -90.0, nan]
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    values = [0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, info.min + 1, 64, 100]
    values += [v if info.min == 0 or v == info.min else -v for v in values[1:12]]
    return torch.tensor(values, dtype=dtype)


def pointwise_variants(
    arity: int, dtype: torch.dtype, g: torch.Generator, **drawing: Any
) -> dict[str, list[Tensor]]:
    """Argument lists in every layout that indexing can get wrong."""
    nonzero = drawing.pop("nonzero", ())

    def some(*shapes: Sequence[int]) -> list[Tensor]:
        return [
            draw(shape, dtype, g, nonzero=i in nonzero, **drawing)
            for i, shape in enumerate(shapes[:arity])
        ]

    variants = {
        "0d": some((), (), ()),
        "empty": some((0,), (0,), (0,)),
        "empty_inner": some((3, 0, 2), (3, 0, 2), (1, 0, 1)),
        "one": some((1,), (1,), (1,)),
        "17": some((17,), (17,), (17,)),
        "matrix": some((5, 33), (5, 33), (5, 33)),
        "large": some((70, 129), (70, 129), (70, 129)),
        "broadcast": some((5, 1, 7), (3, 7), ()),
    }
    a = some((6, 35), (6, 35), (6, 35))
    variants["sliced"] = [x[1::2, 2::3] for x in a]
    variants["transposed"] = [x.t() for x in a]
    variants["mixed_layout"] = [x if i % 2 else x.t().contiguous().t() for i, x in enumerate(a)]
    variants["expanded"] = [x[:, :1].expand(6, 35) for x in a]
    variants["channels_last"] = [
        x.contiguous(memory_format=torch.channels_last)
        for x in some((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 3, 4))
    ]
    return variants


def special_variants(arity: int, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """Every edge value against every other."""
    x = special(dtype)
    if arity == 1:
        return {"special": [x]}
    return {"special": [x[:, None], x]}


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same values in other layouts."""
    found = {"contiguous": x}
    if x.dim() >= 2:
        found["transposed"] = x.transpose(0, -1).contiguous().transpose(0, -1)
        padded = torch.zeros([*x.shape[:-1], x.shape[-1] * 2 + 1], dtype=x.dtype)
        padded[..., 1::2] = x
        found["strided"] = padded[..., 1::2]
    return found


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a nested result."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def assert_same(
    ours: Any,
    eager: Any,
    what: str,
    *,
    signs: bool = False,
    looser: float = 1.0,
    strides: bool = True,
) -> None:
    """Values, dtypes, shapes and strides agree; integers and truth values exactly.

    Args:
        ours: Result of the compiled function.
        eager: What it must be.
        what: Names the case in the message.
        signs: Whether zeros must have eager's sign.
        looser: Multiplies the tolerance.
        strides: Whether strides must agree.
    """
    ours, eager = tensors(ours), tensors(eager)
    assert len(ours) == len(eager), what
    for i, (a, b) in enumerate(zip(ours, eager, strict=True)):
        label = f"{what}[{i}]"
        assert a.dtype == b.dtype, f"{label}: {a.dtype}, eager gives {b.dtype}"
        assert a.shape == b.shape, f"{label}: {tuple(a.shape)}, eager gives {tuple(b.shape)}"
        if strides and a.numel():
            real = [(s, t) for n, s, t in zip(a.shape, a.stride(), b.stride()) if n > 1]
            assert all(s == t for s, t in real), f"{label}: strides {a.stride()}, not {b.stride()}"
        rtol, atol = TOLERANCE.get(a.dtype, (0, 0))
        torch.testing.assert_close(
            a,
            b,
            rtol=rtol * looser,
            atol=atol * looser,
            equal_nan=True,
            msg=lambda m, label=label: f"{label}: {m}",
        )
        if signs and a.dtype.is_floating_point:
            zero = (b == 0) & (a == 0)
            assert torch.equal(torch.signbit(a)[zero], torch.signbit(b)[zero]), f"{label}: -0"


def with_gradients(call: Callable, args: Sequence[Tensor]) -> tuple[Any, list[Tensor | None]]:
    """The result and the gradients of its weighted sum with regard to every floating argument."""
    # detach, not clone: the layout is part of the case.
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in args]
    out = call(*leaves)
    total = None
    for value in tensors(out):
        if not value.requires_grad:
            continue
        ramp = torch.arange(value.numel(), dtype=torch.float32).reshape(value.shape)
        term = (value * (ramp * 0.7).cos().to(value.dtype)).sum()
        total = term if total is None else total + term
    if total is None:
        return out, []
    used = [x for x in leaves if x.is_floating_point()]
    return out, list(torch.autograd.grad(total, used, allow_unused=True))
