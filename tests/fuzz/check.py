"""Runs one program compiled and eager, and judges the difference."""

from __future__ import annotations

import dataclasses
import functools
import linecache
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from generate import Program
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

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


#: Outputs and gradients by name; None where there is no gradient.
Results = dict[str, Tensor | None]


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


def make_inputs(program: Program, at: int) -> list[Tensor]:
    """The inputs of one set of sizes, the same at every call: an evaluation may change them."""
    g = torch.Generator().manual_seed(program.seed * 31 + at)
    return [make_input(spec, at, g) for spec in program.inputs]


def evaluate(program: Program, fn: Callable, args: list[Tensor], wanted: list[str]) -> Results:
    """Outputs, then the gradients of a weighted sum of them by the inputs in `wanted`, by name."""
    names = [spec["name"] for spec in program.inputs]
    if not program.gradients:
        with torch.no_grad():
            results: Results = {f"result {i}": value for i, value in enumerate(fn(*args))}
        return results | {f"{n} afterwards": x for n, x in zip(names, args)}
    leaves = {n: x.detach().requires_grad_(n in wanted) for n, x in zip(names, args)}
    out = list(fn(*leaves.values()))
    results = {f"result {i}": value for i, value in enumerate(out)}
    total = None
    for value in out:
        if value.requires_grad:
            ramp = torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)
            term = (value.double() * (ramp * 0.7).cos()).sum()
            total = term if total is None else total + term
    if total is not None:
        found = torch.autograd.grad(total, [leaves[n] for n in wanted], allow_unused=True)
        results.update((f"gradient of {n}", x) for n, x in zip(wanted, found))
    return results


def wide(args: list[Tensor]) -> list[Tensor]:
    return [x.double() if x.is_floating_point() else x for x in args]


def nudge(x: Tensor, g: torch.Generator) -> Tensor:
    """Each value moved by about one unit in the last place of float32."""
    return x * (1 + (torch.rand(x.shape, generator=g, dtype=torch.float64) - 0.5) * 4e-7)


def nudged(args: list[Tensor], g: torch.Generator) -> list[Tensor]:
    return [nudge(x, g) if x.is_floating_point() else x for x in args]


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
        inputs = functools.partial(make_inputs, program, at)
        args, g = inputs(), torch.Generator().manual_seed(program.seed * 31 + at + 1)
        # 16-bit gradients are left out: their sums are too coarse to judge.
        pairs = zip(program.inputs, args)
        wanted = [spec["name"] for spec, x in pairs if x.dtype in (torch.float32, torch.float64)]
        # Eager puts elements at equal places in order only in one thread.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            eager = evaluate(program, fn, args, wanted)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            # Eager cannot go back through this program.
            program = dataclasses.replace(program, gradients=False)
            args = inputs()
            eager = evaluate(program, fn, args, wanted)
        torch.set_num_threads(threads)
        given = inputs()
        ours = evaluate(program, call, given, wanted)
        precise = Reference(program, reference, inputs, wanted, g)
        compare(precise, eager, ours, f"sizes {at}")
        if not program.gradients and sharing(eager) != sharing(ours):
            raise Mismatch(f"sizes {at}: {sharing(ours)} share memory, in eager {sharing(eager)}")


def sharing(results: Results) -> list[tuple[str, str]]:
    """Which results and arguments share memory."""
    tensors = [(name, x.untyped_storage()) for name, x in results.items() if x is not None]
    return [
        (a, b)
        for i, (a, x) in enumerate(tensors)
        for b, y in tensors[:i]
        if x.nbytes() and x.data_ptr() == y.data_ptr()
    ]


def compare(precise: Reference, eager: Results, ours: Results, where: str) -> None:
    if list(eager) != list(ours):
        raise Mismatch(f"{where}: results {list(ours)}, eager gives {list(eager)}")
    eps = coarsest(precise.program)
    for name, b in eager.items():
        a, label = ours[name], f"{where}, {name}"
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
        r, finite = precise.exact[name], torch.isfinite(b)
        if r is None:
            continue
        a, b, r = a.double()[finite], b.double()[finite], r.double()[finite]
        if not a.numel():
            continue
        scale = float(b.abs().max())
        error, eager_error = float((a - r).abs().max()), float((b - r).abs().max())
        allowed = 3 * eager_error + 16 * eps * scale + 1e-12
        if error <= allowed:
            continue
        # The program itself amplifies rounding (a kink at a tie, cancellation): not a fault.
        spread = precise.spread[name]
        if error <= allowed + spread * max(1.0, eps / 1e-7):
            continue
        raise Mismatch(
            f"{label}: error {error:.3g}, eager {eager_error:.3g}, allowed {allowed:.3g}, "
            f"scale {scale:.3g}, sensitivity {spread:.3g}"
        )


class Reference:
    """The program in float64, and how far its results move when every step rounds."""

    def __init__(
        self,
        program: Program,
        fn: Callable,
        inputs: Callable[[], list[Tensor]],
        wanted: list[str],
        g: torch.Generator,
    ) -> None:
        self.program, self.fn, self.inputs, self.wanted, self.g = program, fn, inputs, wanted, g

    @functools.cached_property
    def exact(self) -> Results:
        return evaluate(self.program, self.fn, wide(self.inputs()), self.wanted)

    @functools.cached_property
    def spread(self) -> dict[str, float]:
        """Largest movement of each result over a few runs with rounding errors of float32."""
        moved = dict.fromkeys(self.exact, 0.0)
        for _ in range(4):
            with Rounding(self.g):
                args = nudged(wide(self.inputs()), self.g)
                found = evaluate(self.program, self.fn, args, self.wanted)
            for name, r in self.exact.items():
                x = found[name]
                if x is not None and r is not None and x.numel() and x.is_floating_point():
                    d = float((x - r).detach().abs().max())
                    moved[name] = max(moved[name], d if math.isfinite(d) else 0.0)
        return moved


class Rounding(TorchDispatchMode):
    """Moves what each operator computes by about one unit in the last place of float32."""

    #: Operators that round: without those that only choose, move or negate values.
    ROUND = frozenset(
        """
        add sub rsub mul div pow reciprocal rsqrt sqrt exp exp2 expm1 log log2 log10 log1p sin cos
        tan tanh sigmoid silu gelu softplus elu mish erf erfc atan atan2 lerp addcmul addcdiv
        logaddexp logsumexp square sum mean var std var_mean prod _softmax _log_softmax
        cumsum cumprod logcumsumexp scatter_add index_add index_put
        native_layer_norm mm addmm bmm silu_backward gelu_backward softplus_backward tanh_backward
        sigmoid_backward elu_backward _softmax_backward_data _log_softmax_backward_data
        native_layer_norm_backward
        """.split()  # noqa: SIM905
    )

    def __init__(self, g: torch.Generator) -> None:
        super().__init__()
        self.g = g

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in self.ROUND:
            return out
        return tree_map(
            lambda x: nudge(x, self.g) if isinstance(x, Tensor) and x.dtype == torch.float64 else x,
            out,
        )
