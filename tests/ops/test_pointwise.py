"""Every pointwise operator, in every dtype and layout, in one graph an operator and dtype class."""

from __future__ import annotations

import harness
import pytest
import table
import torch

OPS = table.pointwise()
# Exact functions of their inputs keep the sign of zero, whatever the order of evaluation.
UNSIGNED = {"fused_formula", "addcmul", "lerp", "maximum", "minimum", "fmax", "fmin", "frac"}


def inputs(op: table.Op, dtype: torch.dtype) -> dict[str, list[torch.Tensor]]:
    g = torch.Generator().manual_seed(len(op.name))
    variants = harness.pointwise_variants(
        op.arity, dtype, g, low=op.low, high=op.high, nonzero=op.nonzero
    )
    if op.special and dtype not in table.APART.get(op.name, ()):
        variants.update(harness.special_variants(op.arity, dtype))
    return variants


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_values(op: table.Op) -> None:
    cases = {
        f"{dtype} {layout}": args
        for dtype in op.dtypes
        for layout, args in inputs(op, dtype).items()
    }

    def every(arguments):
        return [op.fn(*args) for args in arguments]

    arguments = list(cases.values())
    eager = every(arguments)
    ours = harness.compiled(every, dynamic=False)(arguments)
    for name, a, b in zip(cases, ours, eager, strict=True):
        looser = 4.0 if "special" in name else 1.0
        harness.assert_same(
            a,
            b,
            f"{op.name} {name}",
            signs=op.name not in UNSIGNED,
            looser=looser,
        )


def differentiable(op: table.Op) -> bool:
    if not op.grad or not op.dtypes[0].is_floating_point:
        return False
    args = [torch.ones(2, requires_grad=True, dtype=op.dtypes[0]) for _ in range(op.arity)]
    return op.fn(*args).requires_grad


DIFFERENTIABLE = [op for op in OPS if differentiable(op)]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradients(op: table.Op) -> None:
    g = torch.Generator().manual_seed(5)
    floats = [d for d in op.dtypes if d in (torch.float32, torch.bfloat16)]
    cases = {
        f"{dtype} {layout}": args
        for dtype in floats
        for layout, args in harness.pointwise_variants(
            op.arity, dtype, g, low=op.low, high=op.high, nonzero=op.nonzero
        ).items()
        if layout in {"0d", "empty", "17", "broadcast", "transposed", "sliced"}
    }
    flat = [x for args in cases.values() for x in args]

    def every(*values):
        rows = [values[i : i + op.arity] for i in range(0, len(values), op.arity)]
        return [op.fn(*row) for row in rows]

    _, eager = harness.with_gradients(every, flat)
    _, ours = harness.with_gradients(harness.compiled(every, dynamic=False), flat)
    names = [f"{op.name} {name} #{i}" for name in cases for i in range(op.arity)]
    for name, a, b in zip(names, ours, eager, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            # A broadcast operand's gradient is a sum, rounded once per term in eager's bf16.
            looser = 8.0 if "broadcast" in name else 2.0
            harness.assert_same(a, b, name, looser=looser, strides=False)


@pytest.mark.parametrize("source", table.ALL, ids=str)
def test_casts(source: torch.dtype) -> None:
    """Every pair of dtypes, edge values included where C defines the result."""

    def every(x):
        return [x.to(target) for target in table.ALL]

    x = harness.draw((5, 33), source, torch.Generator().manual_seed(1), low=0, high=100)
    harness.assert_same(harness.compiled(every)(x), every(x), f"cast of {source}")
    edge = harness.special(source)

    def floating(x):
        return [x.to(target) for target in (*table.FLOATS, torch.bool)]

    def integers(x):
        return [x.to(target) for target in table.INTS]

    harness.assert_same(harness.compiled(floating)(edge), floating(edge), f"edges of {source}")
    if not source.is_floating_point:
        harness.assert_same(harness.compiled(integers)(edge), integers(edge), f"wrap {source}")


@pytest.mark.parametrize(
    "pair",
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float16),
        (torch.int64, torch.float16),
        (torch.uint8, torch.int8),
        (torch.int32, torch.bool),
        (torch.float64, torch.float32),
        (torch.bool, torch.bool),
    ],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def test_promotion(pair: tuple[torch.dtype, torch.dtype]) -> None:
    """Mixed operands, 0-d against dimensioned, and Python scalars."""
    g = torch.Generator().manual_seed(3)
    x, y = harness.draw((4, 19), pair[0], g), harness.draw((19,), pair[1], g)
    scalar = harness.draw((), pair[1], g)

    def every(x, y, scalar):
        return [x + y, x * scalar, scalar * x, torch.where(x > 0, x, y), x + 2, x * 2.5, x + True]

    harness.assert_same(harness.compiled(every)(x, y, scalar), every(x, y, scalar), f"{pair}")
