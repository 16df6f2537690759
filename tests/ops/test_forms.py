"""Reductions, norms, layout and indexing: values in every layout, and gradients."""

from __future__ import annotations

import harness
import pytest
import table
import torch

FORMS = table.reductions() + table.layout()


def inputs(form: table.Form, dtype: torch.dtype) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(len(form.name))
    return [harness.draw(shape, dtype, g) for shape in form.shapes]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_values(form: table.Form) -> None:
    cases = {}
    for dtype in form.dtypes:
        first, *rest = inputs(form, dtype)
        for layout, x in harness.layouts(first).items():
            cases[f"{dtype} {layout}"] = [x, *rest]

    def every(arguments):
        return [form.fn(*args) for args in arguments]

    arguments = list(cases.values())
    eager = every(arguments)
    ours = harness.compiled(every, dynamic=False)(arguments)
    for name, a, b in zip(cases, ours, eager, strict=True):
        looser = 8.0 if "f16" in name or "long" in form.name else 4.0
        harness.assert_same(a, b, f"{form.name} {name}", looser=looser)


@pytest.mark.parametrize("form", [f for f in FORMS if f.grad], ids=lambda form: form.name)
def test_gradients(form: table.Form) -> None:
    args = inputs(form, torch.float32)
    out, eager = harness.with_gradients(form.fn, args)
    if not eager:
        pytest.skip("not differentiable")
    fn = harness.compiled(form.fn, dynamic=False)
    got, ours = harness.with_gradients(fn, args)
    harness.assert_same(got, out, form.name, looser=8.0)
    for i, (a, b) in enumerate(zip(ours, eager, strict=True)):
        assert (a is None) == (b is None), f"{form.name} gradient {i}"
        if a is not None:
            harness.assert_same(a, b, f"{form.name} gradient {i}", looser=20.0, strides=False)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (1,), (1, 1), (2, 1, 3)], ids=str)
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    """Zero-size and one-element inputs, where eager defines a result."""
    dims = range(len(shape))

    def every(x):
        out = [x.sum(), x * 2, torch.cat([x, x]), x.reshape(-1)]
        for d in dims:
            out += [x.sum(d), x.mean(d), x.softmax(d), (x > 0).any(d), (x > 0).all(d), x.prod(d)]
        return out

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    harness.assert_same(harness.compiled(every)(x), every(x), f"{shape}", looser=4.0)


def test_nan_in_selections() -> None:
    """NaN wins in max and min, and argmax finds the first one."""

    def every(x):
        return [x.amax(-1), x.amin(0), x.max(-1), x.min(-1), x.argmax(), x.argmin(-1), x.argmax(0)]

    for n in (1, 6, 19, 40):
        for at in {0, n // 2, n - 1}:
            x = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
            x[1, at] = float("nan")
            harness.assert_same(harness.compiled(every)(x), every(x), f"n={n} at={at}")


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 1000, 4099])
def test_row_lengths(n: int) -> None:
    """Whole vectors, tails, and rows too long for one pass."""

    def every(x):
        return [x.sum(-1), x.amax(-1), x.softmax(-1), x.var(-1, correction=0), x.argmax(-1)]

    x = torch.randn(7, n, generator=torch.Generator().manual_seed(n))
    harness.assert_same(harness.compiled(every, dynamic=False)(x), every(x), f"n={n}", looser=4.0)


def test_dynamic_shapes_compile_once() -> None:
    """One compile serves many sizes: reductions, broadcasts, cat, slices and arange of a size."""

    def fn(x, y):
        z = torch.cat([x * 2, y], 1)
        z = z.softmax(-1) + torch.arange(z.shape[-1]) / z.shape[1]
        return z.sum(0), z[:, 1:-1].amax(1), z.transpose(0, 1).reshape(-1), z.mean() * x.shape[0]

    call = harness.compiled(fn, dynamic=True)
    g = torch.Generator().manual_seed(0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows, a, b in [(3, 5, 7), (17, 4, 2), (64, 33, 100), (2, 1000, 24), (128, 16, 16)]:
            x, y = torch.randn(rows, a, generator=g), torch.randn(rows, b, generator=g)
            harness.assert_same(call(x, y), fn(x, y), f"{rows}x{a}+{b}", looser=4.0)
