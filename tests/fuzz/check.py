"""Runs one program compiled and eager, and judges the difference."""

from __future__ import annotations

import linecache
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from generate import Program
from torch import Tensor
from torch.nn import functional as F

BACKEND = os.environ.get("LJ_BACKEND", "ljcompile")

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
WIDE = {name: torch.float64 if dtype.is_floating_point else dtype for name, dtype in DTYPES.items()}


class Mismatch(AssertionError):
    """The compiled program gave something else than eager."""


def function(program: Program, dtypes: dict[str, torch.dtype]) -> Callable[..., Any]:
    """The program's function with its dtype names bound."""
    name = f"<fuzz {program.seed}>"
    linecache.cache[name] = (len(program.source), None, program.source.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "F": F, **dtypes}
    exec(compile(program.source, name, "exec"), scope)
    return scope["fn"]


def make_input(spec: dict[str, Any], at: int, g: torch.Generator) -> Tensor:
    """An input in its dtype and layout; no two of its values are likely to be equal."""
    shape, dtype = spec["shapes"][at], DTYPES[spec["dtype"]]
    layout = spec["layout"] if shape else "plain"
    full = list(shape)
    if layout == "strided":
        full[-1] = 2 * full[-1] + 1
    if layout == "expanded":
        full[0] = 1
    if layout == "transposed":
        full = full[::-1]
    if dtype == torch.bool:
        x = torch.rand(full, generator=g) < 0.5
    elif dtype.is_floating_point:
        x = (torch.rand(full, generator=g, dtype=torch.float64) * 4 - 2).to(dtype)
    else:
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -100), min(info.max, 100) + 1, full, generator=g).to(dtype)
    if layout == "strided":
        return x[..., 1::2]
    if layout == "expanded":
        return x.expand(shape)
    if layout == "transposed":
        return x.permute(*reversed(range(len(shape))))
    return x


def evaluate(fn: Callable, args: list[Tensor], gradients: bool) -> list[Tensor | None]:
    """Outputs, then the gradients of a weighted sum of them."""
    if not gradients:
        with torch.no_grad():
            return list(fn(*args))
    leaves = [x.detach().requires_grad_(x.dtype in (torch.float32, torch.float64)) for x in args]
    out = list(fn(*leaves))
    total = None
    for value in out:
        if value.requires_grad:
            ramp = torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)
            term = (value.double() * (ramp * 0.7).cos()).sum()
            total = term if total is None else total + term
    if total is None:
        return out
    wanted = [x for x in leaves if x.requires_grad]
    return [*out, *torch.autograd.grad(total, wanted, allow_unused=True)]


def wide(args: list[Tensor]) -> list[Tensor]:
    return [x.double() if x.is_floating_point() else x for x in args]


def nudged(args: list[Tensor], g: torch.Generator) -> list[Tensor]:
    """The arguments, each value moved by about one unit in the last place of float32."""
    return [
        x * (1 + (torch.rand(x.shape, generator=g, dtype=torch.float64) - 0.5) * 4e-7)
        if x.is_floating_point()
        else x
        for x in args
    ]


def coarsest(program: Program) -> float:
    """Epsilon of the coarsest dtype the program computes in."""
    text = program.source + "".join(i["dtype"] + " " for i in program.inputs)
    named = [t for name, t in DTYPES.items() if t.is_floating_point and name in text]
    return max((torch.finfo(t).eps for t in named), default=torch.finfo(torch.float32).eps)


def check(program: Program) -> None:
    """Raises `Mismatch` if the compiled program differs from eager at any set of sizes."""
    torch._dynamo.reset()
    fn = function(program, DTYPES)
    reference = function(program, WIDE)
    call = torch.compile(
        function(program, DTYPES), backend=BACKEND, fullgraph=True, dynamic=program.dynamic
    )
    for at in range(len(program.inputs[0]["shapes"])):
        g = torch.Generator().manual_seed(program.seed * 31 + at)
        args = [make_input(spec, at, g) for spec in program.inputs]
        eager = evaluate(fn, args, program.gradients)
        ours = evaluate(call, args, program.gradients)
        compare(program, reference, args, eager, ours, f"sizes {at}", g)


def compare(
    program: Program,
    reference: Callable,
    args: list[Tensor],
    eager: list[Tensor | None],
    ours: list[Tensor | None],
    where: str,
    g: torch.Generator,
) -> None:
    if len(eager) != len(ours):
        raise Mismatch(f"{where}: {len(ours)} results, eager gives {len(eager)}")
    exact: list[Tensor | None] | None = None
    spread: list[float] | None = None
    for i, (a, b) in enumerate(zip(ours, eager)):
        label = f"{where}, result {i}"
        if (a is None) != (b is None):
            # AOTAutograd gives zeros where eager gives no gradient.
            if b is None and not a.any():
                continue
            raise Mismatch(f"{label}: {a} against {b}")
        if a is None or b is None:
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            raise Mismatch(f"{label}: {a.dtype} {tuple(a.shape)}, eager {b.dtype} {tuple(b.shape)}")
        if not a.dtype.is_floating_point:
            if not torch.equal(a, b):
                raise Mismatch(f"{label}: {int((a != b).sum())} of {a.numel()} integers differ")
            continue
        if torch.equal(a, b) or not a.numel():
            continue
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
            raise Mismatch(f"{label}: finite in different places")
        if exact is None:
            exact = evaluate(reference, wide(args), program.gradients)
        r, finite = exact[i], torch.isfinite(b)
        if r is None:
            continue
        a, b, r = a.double()[finite], b.double()[finite], r.double()[finite]
        if not a.numel():
            continue
        scale = float(b.abs().max())
        error, eager_error = float((a - r).abs().max()), float((b - r).abs().max())
        eps = coarsest(program)
        allowed = 3 * eager_error + 16 * eps * scale + 1e-12
        if error <= allowed:
            continue
        if spread is None:
            spread = sensitivity(program, reference, args, exact, g)
        # The program itself amplifies rounding (a kink at a tie, cancellation): not a fault.
        if error <= allowed + spread[i] * max(1.0, eps / 1e-7):
            continue
        raise Mismatch(
            f"{label}: error {error:.3g}, eager {eager_error:.3g}, allowed {allowed:.3g}, "
            f"scale {scale:.3g}, sensitivity {spread[i]:.3g}"
        )


def sensitivity(
    program: Program,
    reference: Callable,
    args: list[Tensor],
    exact: list[Tensor | None],
    g: torch.Generator,
) -> list[float]:
    """How far each result moves when the inputs move by a rounding error."""
    moved = [0.0] * len(exact)
    for _ in range(4):
        for i, (x, r) in enumerate(
            zip(evaluate(reference, nudged(wide(args), g), program.gradients), exact)
        ):
            if x is not None and r is not None and x.numel() and x.is_floating_point():
                d = float((x - r).abs().max())
                moved[i] = max(moved[i], d if math.isfinite(d) else 0.0)
    return moved
