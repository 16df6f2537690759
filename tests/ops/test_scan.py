"""Scans along every dim, against eager."""

from __future__ import annotations

import harness
import pytest
import torch
from ljcompile import stats
from torch import Tensor

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
INF, NAN = float("inf"), float("nan")


def each(x: Tensor, d: int) -> list[Tensor]:
    out = [x.cumsum(d), *x.cummax(d), *x.cummin(d)]
    out += [] if x.dtype == torch.bool else [x.cumprod(d)]
    return out + ([x.logcumsumexp(d)] if x.is_floating_point() else [])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_values(dtype: torch.dtype) -> None:
    """All dims, layouts and lengths around that of a vector."""
    g = torch.Generator().manual_seed(3)
    cases = {}
    for shape in [(37,), (5, 3, 40), (3, 17, 2), (70, 130), (2, 16), (200, 3)]:
        x = harness.draw(shape, dtype, g, -1.2, 1.2)
        for layout, y in harness.layouts(x).items():
            cases |= {f"{shape} {layout} dim {d}": (y, d) for d in range(len(shape))}

    def every(arguments):
        return [each(x, d) for x, d in arguments]

    arguments = list(cases.values())
    for name, a, b in zip(
        cases, harness.ours_alone(every, arguments), every(arguments), strict=True
    ):
        harness.assert_same(a, b, f"{dtype} {name}", looser=2.0)


def test_accumulates_in_double() -> None:
    """Running sums of `float32` are those of `float64`, rounded: bit for bit as eager's."""
    x = torch.randn(40, 3000, generator=torch.Generator().manual_seed(1)) * 100

    def fn(x):
        return x.cumsum(0), x.cumsum(1), (x / 300 + 1).cumprod(1)

    for a, b in zip(harness.ours_alone(fn, x), fn(x), strict=True):
        differ = (a != b).float().mean().item()
        assert differ < 1e-4, f"{differ:.1%} of the elements differ"


@pytest.mark.parametrize("n", [1, 2, 7, 8, 16, 33, 1000])
def test_ties_and_special_values(n: int) -> None:
    """The last of equal elements, NaN, infinities and −0, in places all over the row."""
    g = torch.Generator().manual_seed(n)
    pool = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1.0, -INF, 2.0])
    x = pool[torch.randint(0, 10, (40, n), generator=g)]
    x[:20] = pool[torch.randint(0, 6, (20, n), generator=g)]
    x[20:25] = -INF
    x[25:30] = INF

    def fn(x):
        return [each(y, d) for y in (x, x.t()) for d in (0, 1)]

    harness.assert_same(harness.ours_alone(fn, x), fn(x), f"n={n}", signs=True)
    ties = torch.randint(0, 3, (9, n), generator=g)

    def extremes(x):
        return [(*x.cummax(d), *x.cummin(d)) for d in (0, 1)]

    for dtype in (torch.int64, torch.uint8, torch.int8):
        info = torch.iinfo(dtype)
        y = torch.tensor([info.min, info.max, 0])[ties].to(dtype)
        harness.assert_same(harness.ours_alone(extremes, y), extremes(y), f"{dtype} n={n}")


def test_result_dtypes() -> None:
    """`dtype=` converts first, integers sum in i64, and what overflows wraps."""
    x = torch.arange(-40, 60).reshape(4, 25)

    def fn(x):
        small = x.to(torch.int8)
        return [
            small.cumsum(1),
            small.cumsum(1, dtype=torch.int8),
            small.cumprod(0, dtype=torch.int16),
            x.cumsum(0, dtype=torch.float32),
            (x / 7).cumsum(1, dtype=torch.int32),
            (x / 7).cumsum(1, dtype=torch.bfloat16),
            (x > 0).cumsum(0),
            (x > 0).cumprod(1),
            (x / 7).half().cumsum(1, dtype=torch.float64),
        ]

    harness.assert_same(harness.ours_alone(fn, x), fn(x), "dtypes")


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (1, 1), (2, 1, 3)], ids=str)
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    dims = range(max(len(shape), 1))

    def fn(x):
        return [each(y, d) for y in (x, x.long()) for d in dims]

    harness.assert_same(harness.ours_alone(fn, x), fn(x), str(shape))


def test_fused() -> None:
    """What comes before and after at the same coordinates is in the scan's kernel."""

    def fn(x, y):
        s = (x * y + 1).cumsum(-1)
        return s.tanh() * y, s / s.sum(-1, keepdim=True), s.softmax(-1).cumsum(-1), s.flip(-1)

    g = torch.Generator().manual_seed(2)
    for shape in [(9, 50), (300, 7), (4, 40000)]:
        x, y = torch.randn(shape, generator=g), torch.randn(shape, generator=g) / 9
        harness.assert_same(harness.ours_alone(fn, x, y), fn(x, y), str(shape), looser=16.0)

    def across(x):
        s = x.exp().cumsum(0)
        return s.log(), s.cumsum(0) - s.cummax(0).values, s.mean(0)

    x = torch.randn(60, 90, generator=g)
    harness.assert_same(harness.ours_alone(across, x), across(x), "across", looser=8.0)
    call = harness.compiled(lambda x: (x * 2).cumsum(1).relu() + 1)
    stats.clear()
    call(x)
    assert [r.kernels for r in stats.records] == [1]


def test_long_rows_in_pieces() -> None:
    """Rows in pieces, with values before and after, and whole in reductions of the same row."""
    x = torch.randn(2, 100_003, generator=torch.Generator().manual_seed(5))

    def fn(x):
        s = (x * 2).cumsum(1)
        return s + 1, (x / 400 + 1).cumprod(-1), x.cummax(1), x.logcumsumexp(1), x[0].cumsum(0) * 3

    first = harness.ours_alone(fn, x)
    harness.assert_same(first, fn(x), "long", looser=8.0)
    threads = torch.get_num_threads()
    call = harness.compiled(fn, dynamic=False)
    results = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        results.append(harness.tensors(call(x)))
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_gradients() -> None:
    def fn(x):
        y = x.sigmoid() + 0.1
        out = [x.cumsum(0), y.cumprod(1), x.cummax(1).values, x.cummin(0).values, x.logcumsumexp(1)]
        return [*out, (x * 2).cumsum(-1).sin()]

    x = torch.randn(7, 21, generator=torch.Generator().manual_seed(4))
    out, eager = harness.with_gradients(fn, [x])
    got, ours = harness.with_gradients(harness.compiled(fn, dynamic=False), [x])
    harness.assert_same(got, out, "values", looser=8.0)
    harness.assert_same(ours, eager, "gradients", looser=40.0, strides=False)


def test_dynamic_shapes_compile_once() -> None:
    def fn(x):
        return x.cumsum(0), (x * 2).cumsum(1).cummax(1), x.cummin(0), x.view(-1).cumprod(0)

    call = harness.compiled(fn, dynamic=True)
    g = torch.Generator().manual_seed(0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shape in [(3, 5), (17, 40), (64, 33), (2, 90_000), (4000, 2)]:
            x = torch.randn(shape, generator=g)
            harness.assert_same(call(x), fn(x), str(shape), looser=4.0)
