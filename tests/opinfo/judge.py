"""Runs all samples of one item compiled (in one graph) and eager, and judges the difference."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import exceptions
import torch
from arguments import fresh, leaves, widened
from database import SEED, Item, Sample
from torch import Tensor

BACKEND = os.environ.get("LJ_BACKEND", "ljcompile")

#: Samples in one compiled function at most.
AT_ONCE = 60

#: How many units of a result's largest value an error may have that eager's has not.
UNITS = {torch.float64: 32, torch.float32: 8, torch.bfloat16: 2, torch.float16: 2}


@dataclasses.dataclass
class Outcome:
    """What checking one item gave."""

    faults: list[str] = dataclasses.field(default_factory=list)
    samples: int = 0
    breaks: int = 0
    """Places where Dynamo ended a graph."""
    graphs: int = 0
    """Graphs that reached the backend; none if Dynamo captured nothing."""
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    """ATen calls in compiled graphs, by operator."""


@dataclasses.dataclass
class Run:
    """One sample's results."""

    outputs: list[Any]
    inputs: list[Any]
    """The arguments after the call."""
    gradients: list[Tensor | None]


def grad_inputs(arguments: Any) -> list[Tensor]:
    return [x for x in leaves(arguments) if isinstance(x, Tensor) and x.requires_grad]


def weights(value: Tensor) -> Tensor:
    """A cotangent: the same for the same shape, without equal or zero values.

    It has the layout of the result: AOTAutograd brings any other into that one.
    """
    ramp = torch.arange(1, value.numel() + 1, dtype=torch.float64).reshape(value.shape)
    w = (ramp * 0.7).cos() + 0.01
    w = torch.complex(w, w.sin()) if value.is_complex() else w
    if value.layout != torch.strided or any(
        n > 1 and not s for n, s in zip(value.shape, value.stride())
    ):
        return torch.empty_like(value, requires_grad=False).copy_(w)
    # `empty_like` would close the gaps between elements.
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(w)


def evaluate(
    every: Callable[..., list[Any]], chosen: list[Sample], arguments: list[Any], grad: bool
) -> list[Run]:
    """Calls `every` on all arguments at once; then the gradients of all of it in one backward."""
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(grad):
        results = every(arguments)
    found = [grad_inputs(a) if grad else [] for a in arguments]
    gradients: list[list[Tensor | None]] = [[] for _ in arguments]
    if grad:
        outs = [
            t
            for s, r in zip(chosen, results)
            for t in leaves(s.process(r))
            if isinstance(t, Tensor) and t.requires_grad
        ]
        wanted = [x for f in found for x in f]
        if outs and wanted:
            dense = [t.to_dense() if t.layout != torch.strided else t for t in outs]
            flat = iter(
                torch.autograd.grad(dense, wanted, [weights(t) for t in dense], allow_unused=True)
            )
            gradients = [[next(flat) for _ in f] for f in found]
    return [Run(leaves(r), leaves(a), g) for r, a, g in zip(results, arguments, gradients)]


#: Lets Dynamo capture what reads values or has sizes that depend on data.
CAPTURE = {
    "capture_scalar_outputs": True,
    "capture_dynamic_output_shape_ops": True,
    # Recurrent modules end the graph without this.
    "allow_rnn": True,
    # Where a frame of many samples is not captured, each of them still is.
    "recompile_limit": 1000,
}


def listed(call: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
    """`call` over a list of samples."""

    def every(arguments: list[Any]) -> list[Any]:
        return [call(x, *args, **kwargs) for x, args, kwargs in arguments]

    return every


def compiled(item: Item) -> Callable[[list[Any]], list[Any]]:
    torch._dynamo.reset()
    # Random numbers of our own kernels are other ones than eager's.
    options = {"fallback_random": True} if BACKEND == "ljcompile" else None
    return torch.compile(
        listed(item.database.call(item)), backend=BACKEND, dynamic=False, options=options
    )


def check(item: Item, count: int | None, note: Callable[[str], None] = lambda _: None) -> Outcome:
    """Compares the item's samples with eager.

    Args:
        item: What to check.
        count: Samples to draw from the database; `None` for all.
        note: Told the sample that is about to run alone, in case the process dies of it.
    """
    outcome = Outcome()
    chosen = exceptions.without_skipped(item, item.database.samples(item, count))
    grad = item.grad
    eager_call = listed(item.database.call(item))
    good, refused = [], []
    for s in chosen:
        try:
            torch.manual_seed(SEED)
            evaluate(eager_call, [s], [fresh(s.arguments)], grad)
            good.append(s)
        except Exception as error:
            refused.append((s, error))
    outcome.samples = len(good)
    for start in range(0, len(good), AT_ONCE):
        _compare_all(item, good[start : start + AT_ONCE], outcome, note)
    if item.mode in ("errors", "forward", "infer"):
        for s, error in refused[: count or len(refused)]:
            if "not implemented for" in str(error):
                # A dtype that ATen has no kernel for; ours may.
                continue
            note(s.name)
            outcome.samples += 1
            try:
                with torch._dynamo.config.patch(CAPTURE):
                    evaluate(compiled(item), [s], [fresh(s.arguments)], grad)
            except Exception:
                continue
            outcome.faults.append(f"{s.name}: no error; eager: {short(error)}")
    outcome.faults = [f for f in outcome.faults if not exceptions.excused(item, f)]
    return outcome


def _compare_all(item: Item, good: list[Sample], outcome: Outcome, note: Any) -> None:
    grad = item.grad
    expected_arguments = [fresh(s.arguments) for s in good]
    expected = evaluate(listed(item.database.call(item)), good, expected_arguments, grad)
    arguments = [fresh(s.arguments) for s in good]
    try:
        with torch._dynamo.config.patch(CAPTURE):
            found = evaluate(compiled(item), good, arguments, grad)
    except Exception as error:
        record(outcome)
        if len(good) == 1:
            outcome.faults.append(f"{good[0].name}: raises {short(error)}")
            return
        before = len(outcome.faults)
        for s in good:
            note(s.name)
            _compare_all(item, [s], outcome, note)
        if len(outcome.faults) == before:
            outcome.faults.append(f"only all samples together: raises {short(error)}")
        return
    record(outcome)
    for s, a, b, xs, ys in zip(good, found, expected, arguments, expected_arguments):
        label = s.name
        for kind in ("outputs", "inputs", "gradients"):
            ours, eager = getattr(a, kind), getattr(b, kind)
            if len(ours) != len(eager):
                outcome.faults.append(f"{label}: {len(ours)} {kind}, eager gives {len(eager)}")
                continue
            for i, (x, y) in enumerate(zip(ours, eager)):
                where = f"{label}, {kind[:-1]} {i}"
                fault = differs(x, y, kind, lambda k=kind, i=i, s=s: _exact(item, s, k, i))
                if fault:
                    outcome.faults.append(f"{where}: {fault}")
        ours, eager = _aliases(a.outputs, leaves(xs)), _aliases(b.outputs, leaves(ys))
        if ours != eager and not outcome.faults:
            outcome.faults.append(f"{label}: aliases {sorted(ours)}, eager {sorted(eager)}")


def _aliases(outputs: list[Any], inputs: list[Any]) -> set[tuple[int, int]]:
    """Pairs of an output and an input over the same memory."""

    def memory(x: Any) -> int | None:
        if not isinstance(x, Tensor) or x.layout != torch.strided or not x.numel():
            return None
        return x.untyped_storage().data_ptr()

    at = {memory(x): i for i, x in reversed(list(enumerate(inputs)))}
    at.pop(None, None)
    return {(i, at[m]) for i, x in enumerate(outputs) if (m := memory(x)) in at}


def record(outcome: Outcome) -> None:
    """Adds what the backend counted since the last reset."""
    if BACKEND != "ljcompile":
        return
    from ljcompile import stats

    outcome.graphs += len(stats.records)
    outcome.breaks += len(stats.breaks)
    for record in stats.records:
        if record.eager is not None:
            outcome.faults.append(f"a {record.name} graph ran uncompiled: {record.eager}")
        for fault in record.faults:
            outcome.faults.append(f"stage {fault['stage']} failed: {fault['message']}")
        for f in record.fallbacks:
            target = f["target"]
            outcome.fallbacks[target] = outcome.fallbacks.get(target, 0) + f["count"]


def short(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    # Dynamo's first line only says that a backend raised; the cause is the next.
    words = " ".join(line.strip() for line in lines[:2])
    return f"{type(error).__name__}: {words[:300]}"


def _exact(item: Item, s: Sample, kind: str, at: int) -> Tensor | None:
    """The same result in double precision, if eager can compute it."""
    try:
        run = evaluate(
            listed(item.database.call(item)), [s], [widened(fresh(s.arguments))], item.grad
        )[0]
        value = getattr(run, kind)[at]
    except Exception:
        return None
    return value.detach() if isinstance(value, Tensor) else None


def differs(a: Any, b: Any, kind: str, exact: Callable[[], Tensor | None]) -> str | None:
    """How `a` differs from eager's `b`."""
    if not isinstance(b, Tensor) or not isinstance(a, Tensor):
        if kind == "gradients" and b is None and isinstance(a, Tensor) and not a.any():
            # AOTAutograd gives zeros where eager gives no gradient.
            return None
        same = type(a) is type(b) and (a == b or a is b or (a != a and b != b))
        return None if same else f"{_brief(a)}, eager gives {_brief(b)}"
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return f"{_brief(a)}, eager gives {_brief(b)}"
    if kind == "outputs" and a.requires_grad != b.requires_grad:
        return f"requires_grad {a.requires_grad}, eager {b.requires_grad}"
    if a.layout != torch.strided:
        a, b = a.detach().to_dense(), b.detach().to_dense()
    elif kind in ("outputs", "gradients") and b.numel():
        real = [(s, t) for n, s, t in zip(b.shape, a.stride(), b.stride()) if n > 1]
        if any(s != t for s, t in real):
            return f"strides {a.stride()}, eager {b.stride()} (shape {tuple(b.shape)})"
    return values(a.detach(), b.detach(), exact)


def _brief(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)[:60]


def values(a: Tensor, b: Tensor, exact: Callable[[], Tensor | None]) -> str | None:
    """How the values differ by more than rounding explains, measured by a run in doubles."""
    if a.is_quantized:
        a, b = a.dequantize(), b.dequantize()
    if a.is_complex():
        # Parts of a NaN are not defined.
        nan = a.isnan() & b.isnan()
        a, b = a.resolve_conj().masked_fill(nan, 0), b.resolve_conj().masked_fill(nan, 0)
        a, b = torch.view_as_real(a.clone()), torch.view_as_real(b.clone())
        inner = exact
        exact = lambda: _real(inner())  # noqa: E731
    if not a.is_floating_point():
        wrong = a != b
        if not wrong.any():
            return None
        at = wrong.nonzero()[0].tolist()
        return f"{int(wrong.sum())} of {a.numel()} differ, first {_pair(a, b, at)}"
    if torch.equal(a, b) or not a.numel():
        return None
    odd = (a.isnan() != b.isnan()) | (a.isinf() != b.isinf()) | (b.isinf() & (a != b))
    if odd.any():
        return (
            f"NaN or inf in {int(odd.sum())} places, first {_pair(a, b, odd.nonzero()[0].tolist())}"
        )
    finite = b.isfinite()
    if not finite.any():
        return None
    distance = (a.double() - b.double()).abs().masked_fill(~finite, 0)
    if not float(distance.max()):
        return None
    at = (distance == distance.max()).nonzero()[0].tolist()
    r = exact()
    if r is None or r.shape != b.shape:
        r = b
    r = (r.to_dense() if r.layout != torch.strided else r).double()[finite]
    error = float((a.double()[finite] - r).abs().max())
    eager = float((b.double()[finite] - r).abs().max())
    scale = float(b.double()[finite].abs().max())
    if not math.isfinite(eager):
        error, eager = float(distance[finite].max()), 0.0
    eps = torch.finfo(b.dtype).eps
    allowed = 3 * eager + UNITS.get(b.dtype, 1) * eps * scale + torch.finfo(b.dtype).tiny
    if b.dtype in (torch.float32, torch.float64):
        # One unit of 1: losses and distances are small differences of values of that size.
        allowed += eps
    if error <= allowed:
        return None
    return (
        f"error {error:.3g}, eager's {eager:.3g}, scale {scale:.3g}, "
        f"allowed {allowed:.3g}; farthest {_pair(a, b, at)}"
    )


def _real(r: Tensor | None) -> Tensor | None:
    return None if r is None or not r.is_complex() else torch.view_as_real(r.resolve_conj())


def _pair(a: Tensor, b: Tensor, at: list[int]) -> str:
    return f"at {at}: {a[tuple(at)].item()!r}, eager {b[tuple(at)].item()!r}"
