"""Whole models against eager: outputs, loss, every parameter's gradient, and buffers.

`make test-models` runs all of it; within `make test` a subset stands for the rest.
"""

from __future__ import annotations

import os
import re

import pytest
import torch
from reference import Worst, check
from stats import Stats
from zoo import BUILDERS, build

BACKEND = os.environ.get("LJ_BACKEND", "ljcompile")
ALL = os.environ.get("LJ_ALL_MODELS") == "1"
# Convolutions, a transformer with everything, and one of each kind of statistics.
QUICK = {"llama", "bert", "resnet", "unet"}

# What may run through ATen in a transformer's graph.
ALLOWED_FALLBACKS = re.compile(
    r"aten[.:]+(mm|bmm|addmm|baddbmm|convolution|convolution_backward|_scaled_dot_product\w*|cumsum)\b"
)

names = pytest.mark.parametrize("name", sorted(BUILDERS))


def quick(name: str, more: bool = True) -> None:
    if not ALL and not (more and name in QUICK):
        pytest.skip("not in the quick subset; `make test-models` runs it")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compiled(**options):
    return lambda module: torch.compile(module, backend=BACKEND, **options)


def tell(name: str, what: str, worst: Worst) -> None:
    print(f"\n{name:8s} {what:14s} worst {worst.ratio:5.2f} of allowed ({worst.name})", end="")


@names
def test_train(name: str) -> None:
    quick(name)
    case = build(name)
    with Stats() as stats:
        worst = check(case, compiled(), case.sizes[:1], train=True)
    tell(name, "train f32", worst)
    assert not stats.eager and not stats.faults, (stats.eager, stats.faults)
    if case.transformer and stats.available:
        print(f"\n         fallbacks: {stats.fallbacks}", end="")
        unexpected = {
            op: reasons
            for op, reasons in stats.fallbacks.items()
            if not ALLOWED_FALLBACKS.match(op)
        }
        assert not unexpected, f"these ops must be our own kernels: {unexpected}"
        assert all(all(reasons) for reasons in stats.fallbacks.values()), "a fallback has a reason"
        assert stats.kernels > 0


@names
def test_infer(name: str) -> None:
    quick(name, more=name in {"resnet", "llama"})
    case = build(name)
    tell(name, "infer f32", check(case, compiled(), case.sizes[:1], train=False))


@names
def test_train_bf16(name: str) -> None:
    quick(name, more=name == "llama")
    case = build(name)
    worst = check(case, compiled(), case.sizes[:1], train=True, dtype=torch.bfloat16)
    tell(name, "train bf16", worst)


@names
def test_dynamic_sizes_compile_once(name: str) -> None:
    quick(name, more=name == "llama")
    case = build(name)
    with torch._dynamo.config.patch(error_on_recompile=True):
        worst = check(case, compiled(dynamic=True), case.sizes, train=True, near_ties=True)
    tell(name, "dynamic", worst)
