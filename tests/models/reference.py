"""Running a case and judging a compiled run against eager by their errors to float64."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from zoo import Case, Inputs, flatten

Results = dict[str, Tensor]


class Float64Casts(TorchFunctionMode):
    """Turns the casts to float32 inside a model (norms, softmax, rotary tables) into float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()

        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        kwargs = {name: wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(wide, args), **kwargs)


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """A copy of the inputs, floating-point ones in `dtype`."""
    return {
        name: value.detach().clone().to(dtype if value.is_floating_point() else value.dtype)
        for name, value in inputs.items()
    }


def step(case: Case, module: nn.Module, call: Callable, inputs: Inputs, train: bool) -> Results:
    """One step of `call`; outputs, loss, all gradients and buffers of `module`, detached."""
    for parameter in module.parameters():
        parameter.grad = None
    if train:
        out = call(**inputs)
        loss = case.loss(out)
        loss.backward()
    else:
        with torch.no_grad():
            out, loss = call(**inputs), None
    results = flatten("out", out)
    if loss is not None:
        results["loss"] = loss
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, f"{name} got no gradient"
            results[f"grad.{name}"] = parameter.grad
    for name, buffer in module.named_buffers():
        results[f"buffer.{name}"] = buffer
    return {name: value.detach().clone() for name, value in results.items()}


def reference_step(case: Case, module: nn.Module, inputs: Inputs, train: bool) -> Results:
    """The same step in float64; `module` is the case's module in float64."""
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64Casts():
            return step(case, module, module, cast(inputs, torch.float64), train)
    finally:
        torch.set_default_dtype(old)


@dataclasses.dataclass
class Worst:
    """The largest error of a comparison, as a share of what is allowed."""

    ratio: float = 0.0
    name: str = ""


def sensitivity(case: Case, exact: nn.Module, inputs: Inputs, reference: Results) -> Results:
    """How far each float64 result moves when every weight moves by a rounding error of float32.

    A ReLU or a maximum whose operands nearly tie can go either way; what then jumps is the model's
    doing, not the compiler's. Buffers are put back.
    """
    generator = torch.Generator().manual_seed(3)
    moved = {name: torch.zeros(()) for name in reference}
    train = exact.training
    for _ in range(4):
        nudged = copy.deepcopy(exact)
        with torch.no_grad():
            for p in nudged.parameters():
                noise = torch.rand(p.shape, generator=generator, dtype=torch.float64) - 0.5
                p.mul_(1 + 4e-7 * noise)
        for name, value in reference_step(case, nudged, inputs, train).items():
            if value.is_floating_point() and value.numel() and not name.startswith("buffer"):
                moved[name] = torch.maximum(moved[name], (value - reference[name]).abs().max())
    return moved


def compare(
    reference: Results,
    eager: Results,
    compiled: Results,
    factor: float,
    slack: float,
    moved: Callable[[], Results] | None,
) -> Worst:
    """Checks `compiled` against `reference`: at most `factor` times eager's error plus `slack`.

    `slack` is relative to the largest value of the tensor's group (outputs, gradients, buffers):
    some gradients are zero but for rounding, and have no scale of their own; nor has a loss whose
    terms cancel, which is judged by the outputs that it is a mean of. `moved` is asked only where
    that is not enough.
    """
    assert set(compiled) == set(eager)
    scale: dict[str, float] = {}

    def group_of(name: str) -> str:
        return "out" if name == "loss" else name.split(".")[0]

    for name, value in reference.items():
        if value.is_floating_point() and value.numel():
            group = group_of(name)
            scale[group] = max(scale.get(group, 0.0), float(value.abs().max()))
    worst, faults = Worst(), []
    for name, ours in compiled.items():
        theirs, exact = eager[name], reference[name]
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        assert ours.stride() == theirs.stride() or name.startswith(("grad", "buffer")), (
            f"{name}: strides {ours.stride()}, eager has {theirs.stride()}"
        )
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs), f"{name}: integers differ"
            continue
        if not ours.numel():
            continue
        assert torch.isfinite(ours).all(), f"{name}: not finite"
        ours_error = float((ours.double() - exact).abs().max())
        eager_error = float((theirs.double() - exact).abs().max())
        allowed = factor * eager_error + slack * scale[group_of(name)] + 1e-12
        if ours_error > allowed and moved is not None:
            allowed += 3 * float(moved()[name])
        if ours_error / allowed > worst.ratio:
            worst = Worst(ours_error / allowed, name)
        if ours_error > allowed:
            faults.append(f"{name}: error {ours_error:.3g}, eager {eager_error:.3g}")
    assert not faults, "\n".join(faults)
    return worst


def check(
    case: Case,
    compile_module: Callable[[nn.Module], Callable],
    sizes: list[tuple[int, int]],
    *,
    train: bool,
    dtype: torch.dtype = torch.float32,
    near_ties: bool = False,
) -> Worst:
    """Runs the case at each size, compiled and eager, and compares every result.

    With `near_ties` a result that fails may also differ by what a rounding error of the weights
    does to it: over many sizes some ReLU or maximum meets operands that all but tie.

    Two steps are taken at each size, with different data: a constant that was baked in shows.
    """
    case.module.train(train)
    case.module.to(dtype)
    eager, ours = copy.deepcopy(case.module), copy.deepcopy(case.module)
    exact = copy.deepcopy(case.module).double()
    call = compile_module(ours)
    factor, slack = (3.0, 1e-6) if dtype == torch.float32 else (2.0, 2.0**-8)
    generator = torch.Generator().manual_seed(99)
    worst = Worst()
    for batch, length in sizes:
        for _ in range(2):
            inputs = cast(case.inputs(batch, length, generator), dtype)
            reference = reference_step(case, exact, inputs, train)
            found = compare(
                reference,
                step(case, eager, eager, cast(inputs, dtype), train),
                step(case, ours, call, cast(inputs, dtype), train),
                factor,
                slack,
                functools.cache(lambda i=inputs, r=reference: sensitivity(case, exact, i, r))
                if near_ties
                else None,
            )
            worst = max(worst, found, key=lambda w: w.ratio)
    return worst
