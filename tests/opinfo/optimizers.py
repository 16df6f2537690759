"""PyTorch's optimizer database: parameters and state after some compiled steps."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import judge
import torch
from database import DTYPES, SEED, Item, importable, spread
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

MODES = ("step", "loop")

#: Steps that are compared, each of them.
STEPS = 4


@functools.cache
def entries() -> dict[str, Any]:
    """Every `OptimizerInfo` by name (`optim.Adam`)."""
    importable()
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        # Eager refuses `capturable` on a CPU; compiled steps have it there, so eager is to have it.
        module = sys.modules[info.optim_cls.__module__]
        devices = getattr(module, "_get_capturable_supported_devices", None)
        if devices is not None:
            module._get_capturable_supported_devices = lambda *a, f=devices, **k: [
                *f(*a, **k),
                "cpu",
            ]
    return {f"optim.{info.name}": info for info in optim_db}


def supports(name: str, dtype: str, mode: str) -> bool:
    if entries()[name].only_supports_sparse_grads and mode == "loop":
        return False
    return DTYPES[dtype].is_floating_point


@dataclasses.dataclass
class Setting:
    """An optimizer's options."""

    name: str
    options: dict[str, Any]


def settings(item: Item, count: int | None) -> list[Setting]:
    """All option sets; for single steps also each way of going through the parameters."""
    info, dtype = item.entry, DTYPES[item.dtype]
    ways = {"": {}}
    if item.mode == "step":
        ways = {"one by one": {way: False for way in info.supported_impls}}
        ways |= {way: {**ways["one by one"], way: True} for way in info.supported_impls}
        if "cpu" not in info.supports_fused_on:
            ways.pop("fused", None)
    found = []
    # Sets with `capturable` are those of an accelerator.
    for chosen in info.optim_inputs_func("cuda", dtype):
        for way, flags in ways.items():
            options = {**chosen.kwargs, **flags}
            numbers = isinstance(options.get("lr"), Tensor) or isinstance(
                options.get("betas", (0,))[0], Tensor
            )
            if numbers and options.get("foreach") and not options.get("capturable"):
                continue
            name = f"{chosen.desc}, {way}" if way else chosen.desc
            found.append(Setting(name, options))
    return spread(found, count)


class Net(nn.Module):
    """A small model whose parameters have several ranks and layouts."""

    def __init__(self, matrices: bool, flat: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 17, bias=not matrices)
        self.second = nn.Linear(17, 3, bias=not matrices)
        if not flat:
            self.second.weight = nn.Parameter(torch.randn(17, 3).mul_(0.3).t())
        self.scale = None if matrices else nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return y if self.scale is None else y * self.scale


def run(item: Item, setting: Setting, dtype: torch.dtype, wrap: Callable[..., Any]) -> list[Any]:
    """Parameters and state after each step, in a fixed order.

    Args:
        item: Optimizer and mode.
        setting: Its options.
        dtype: Of the parameters.
        wrap: What compiles a function, or nothing.
    """
    torch.manual_seed(SEED)
    info = item.entry
    # LBFGS views its gradients as vectors.
    model = Net(info.name == "Muon", info.name == "LBFGS").to(dtype)
    parameters = list(model.parameters())
    optimizer = info.optim_cls(parameters, **copy.deepcopy(setting.options))
    data = [torch.randn(5, 6).to(dtype) for _ in range(STEPS)]
    gradients = [[torch.randn(p.shape).to(dtype) for p in parameters] for _ in range(STEPS)]

    def closure(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def train(x: Tensor) -> Tensor:
        if info.step_requires_closure:
            return optimizer.step(lambda: closure(x)).detach()
        loss = closure(x)
        optimizer.step()
        return loss.detach()

    step = wrap(train if item.mode == "loop" or info.step_requires_closure else optimizer.step)
    seen: list[Any] = []
    for x, given in zip(data, gradients):
        if step.__name__ == "train" or info.step_requires_closure:
            seen.append(step(x))
        else:
            for p, g in zip(parameters, given):
                # Eager's gradients have the layout of their parameter.
                p.grad = torch.empty_like(p).copy_(g)
                if info.only_supports_sparse_grads:
                    p.grad = p.grad.to_sparse()
            if setting.options.get("differentiable"):
                # A step that is differentiated through changes what its graph needs; not here.
                with torch.no_grad():
                    step()
            else:
                step()
        seen += [p.detach().clone() for p in parameters]
        for p in parameters:
            state = optimizer.state[p]
            for key in sorted(state, key=str):
                for value in tree_leaves(state[key]):
                    seen.append(value.detach().clone() if isinstance(value, Tensor) else value)
    return seen


def check(item: Item, count: int | None, note: Callable[[str], None]) -> judge.Outcome:
    """Compares every option set of an optimizer with eager."""
    import exceptions

    outcome = judge.Outcome()
    for setting in settings(item, count):
        note(setting.name)
        before = len(outcome.faults)
        _check(item, setting, outcome)
        mine = outcome.faults[before:]
        outcome.faults[before:] = [f"{setting.name}: {f}" for f in mine]
    outcome.faults = [f for f in outcome.faults if not exceptions.excused(item, f)]
    return outcome


def _check(item: Item, setting: Setting, outcome: judge.Outcome) -> None:
    dtype = DTYPES[item.dtype]
    try:
        expected = run(item, setting, dtype, lambda f: f)
    except Exception:
        return
    outcome.samples += 1
    torch._dynamo.reset()
    options = {"fallback_random": True} if judge.BACKEND == "ljcompile" else None
    try:
        with torch._dynamo.config.patch(judge.CAPTURE):
            found = run(
                item,
                setting,
                dtype,
                lambda f: torch.compile(f, backend=judge.BACKEND, options=options),
            )
    except Exception as error:
        judge.record(outcome)
        outcome.faults.append(f"raises {judge.short(error)}")
        return
    judge.record(outcome)
    faults = _differences(item, setting, found, expected)
    if faults:
        # A compiled step keeps in tensors what eager has in Python's numbers: what Dynamo captured
        # is then what can be asked of a backend.
        torch._dynamo.reset()
        with torch._dynamo.config.patch(judge.CAPTURE):
            captured = run(item, setting, dtype, lambda f: torch.compile(f, backend="eager"))
        faults = _differences(item, setting, found, captured)
    outcome.faults += faults[:3]


def _differences(item: Item, setting: Setting, found: list[Any], expected: list[Any]) -> list[str]:
    if len(found) != len(expected):
        return [f"{len(found)} tensors, eager has {len(expected)}"]

    @functools.cache
    def wide() -> list[Any]:
        return run(item, setting, torch.float64, lambda f: f)

    def exact(i: int) -> Tensor | None:
        try:
            value = wide()[i]
        except Exception:
            return None
        return value if isinstance(value, Tensor) else None

    faults = []
    for i, (a, b) in enumerate(zip(found, expected)):
        fault = judge.differs(a, b, "outputs", lambda i=i: exact(i))
        if fault:
            faults.append(f"tensor {i} of {len(expected)}: {fault}")
    return faults
