"""Scatters in every dtype, layout and way of indexing, against eager."""

from __future__ import annotations

from collections.abc import Callable

import harness
import pytest
import torch
from ljcompile import stats
from torch import Tensor
from torch.nn import functional as F

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
aten = torch.ops.aten


def check(fn: Callable, *args: object, what: str, looser: float = 2.0) -> None:
    """Our result is eager's, and the arguments are as they were."""
    before = [x.clone() if isinstance(x, Tensor) else x for x in args]
    eager = harness.serially(fn, *args)
    harness.assert_same(harness.ours_alone(fn, *args), eager, what, looser=looser)
    harness.assert_same(args, before, f"arguments of {what}", strides=False)


def indices(shape: tuple[int, ...], n: int, seed: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draws(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(len(shapes))
    return [harness.draw(s, dtype, g) for s in shapes]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_scatter(dtype: torch.dtype) -> None:
    """Along every dim, with duplicates, and with an index smaller than the source."""
    x, src = draws(dtype, (5, 7, 40), (6, 9, 45))
    index = [indices(s, 5, d) for d, s in enumerate([(6, 7, 40), (5, 9, 40), (5, 7, 45)])]

    def fn(x, src):
        out = []
        for d, i in enumerate(index):
            out += [x.scatter(d, i, src), x.scatter(d, i, 1), x.scatter_add(d, i, src)]
            small = i[:3, :5, :33]
            out += [x.scatter(d, small, src), x.scatter_add(d, small, src)]
            out += [x.scatter(d, i, src, reduce="add"), x.scatter(d, small, 2, reduce="multiply")]
        return out

    for layout, y in harness.layouts(x).items():
        check(fn, y, src, what=f"{dtype} {layout}", looser=4.0)


@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(how: str) -> None:
    for dtype in FLOATS + INTEGERS:
        if how == "mean" and dtype == torch.bool:
            continue
        x, src = draws(dtype, (9, 20), (9, 33))
        if dtype.is_floating_point:
            x, src = x / 2, src / 2
        index = indices((9, 30), 8, 1)

        def fn(x, src, index=index):
            out = []
            for own in (True, False):
                out += [x.scatter_reduce(0, index[:, :20] % 6, src, how, include_self=own)]
                out += [x.scatter_reduce(1, index, src, how, include_self=own)]
            return out

        check(fn, x, src, what=f"{how} {dtype}", looser=8.0)
        if how == "sum" or dtype in (torch.bfloat16, torch.float16) or dtype == torch.bool:
            continue

        def rows(x, src, index=index):
            out = []
            for own in (True, False):
                out += [x.index_reduce(0, index[0, :9], src[:, :20], how, include_self=own)]
                out += [x.index_reduce(1, index[1, :20], src[:, :20], how, include_self=own)]
            return out

        if dtype != torch.uint8 and dtype != torch.bool:
            check(rows, x, src, what=f"index_reduce {how} {dtype}", looser=8.0)


def test_special_values() -> None:
    """NaN wins in extremes; infinities and −0 go where they should."""
    inf, nan = float("inf"), float("nan")
    src = torch.tensor([nan, 1.0, -0.0, inf, -inf, 2.0, nan, -0.0, 0.0, 3.0])
    x = torch.tensor([0.0, nan, -0.0, 5.0, -inf, inf])
    index = torch.tensor([0, 1, 2, 3, 3, 4, 5, 2, 2, 4])

    def fn(x, src):
        ways = ["sum", "prod", "mean", "amax", "amin"]
        both = [
            x.scatter_reduce(0, index, src, w, include_self=o) for w in ways for o in (True, False)
        ]
        return [*both, x.index_put((index,), src), x.index_add(0, index, src)]

    check(fn, x, src, what="special values")


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_slices(dtype: torch.dtype) -> None:
    """index_add, index_copy, index_fill, take, put and the like, in every dim."""
    x, src = draws(dtype, (5, 7, 40), (5, 7, 40))
    number = True if dtype == torch.bool else 2

    def fn(x, src):
        out = []
        for d, n in enumerate((4, 6, 33)):
            i = index[d]
            part = src.narrow(d, 0, n)
            out += [x.index_copy(d, i, part), x.index_fill(d, i - x.shape[d], number)]
            out += [x.index_fill(d, i, src[0, 0, 0]), x.index_add(d, i, part)]
            out += [x.index_add(d, i.int(), part)]
            if dtype != torch.bool:
                out += [x.index_add(d, i, part, alpha=2)]
        flat, row = index[2] * 34 - 17, src[0, 0, :33]
        out += [x.take(flat), x.put(flat, row), x.put(flat, row, accumulate=True)]
        out += [x[0, 0].index_add(0, index[2], row), x[0, 0].index_copy(0, index[2], row)]
        out += [x.slice_scatter(src[:, :, :13], 2, 1, 40, 3)]
        out += [
            x.slice_scatter(src[:, :3], 1, 1, 7, 2),
            x.diagonal_scatter(src[:, 0, 33:], 3, 1, 2),
        ]
        out += [x.diagonal_scatter(src[0, :, 37:], 37, 0, 2)]
        out += [x.diagonal_scatter(src[0, :, :5], 0, 2, 0)]
        return out

    index = [indices((n,), (5, 7, 40)[d], d) for d, n in enumerate((4, 6, 33))]
    for layout, y in harness.layouts(x).items():
        check(fn, y, src, what=f"{dtype} {layout}")


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_index_put(dtype: torch.dtype) -> None:
    """Integers in any dims, dims between them, broadcast, negative, accumulated or not; masks."""
    x, src, row = draws(dtype, (6, 7, 5, 40), (8, 6, 7, 5, 40), (40,))
    a, b = indices((8,), 6, 1), indices((3, 1), 5, 2) - 5
    mask = indices((6, 7, 5), 2, 3).bool()

    def fn(x, src, row):
        out = []
        for add in (False, True):
            ways = [
                ([a], src[:, 0]),
                ([a - 6], row),
                ([None, a], src[:6, 0, :1].expand(6, 8, 5, 40)),
                ([a, None, b], row),
                ([a, b % 7], src[0, 0, 0, 0, 0]),
                ([None, None, b, a], src[0, :, :, :3, :8]),
                ([a, a % 5, a % 3, a * 3], src[:, 0, 0, 0, 0]),
                ([a.int()], src[:, 1]),
                ([mask], row[0]),
                ([mask], row),
                ([mask[0, :6, 0]], row[:1]),
            ]
            out += [aten.index_put(x, i, values, add) for i, values in ways]
        return out

    for layout, y in harness.layouts(x).items():
        check(fn, y, src, row, what=f"{dtype} {layout}")


def test_sixteen_bit_steps() -> None:
    """Long sums: where eager rounds each step we do, where it rounds once we do."""
    for dtype in (torch.bfloat16, torch.float16):
        src = torch.full((300, 4), 0.37, dtype=dtype)
        zero = torch.zeros(3, 4, dtype=dtype)
        i = torch.zeros(300, dtype=torch.long)
        wide = i[:, None].expand(300, 4)

        def fn(src, zero, i=i, wide=wide):
            return [
                zero.scatter_add(0, wide, src),
                zero.scatter(0, wide, src, reduce="add"),
                zero.scatter_reduce(0, wide, src, "sum"),
                zero.scatter_reduce(0, wide, src, "mean"),
                (zero + 1).scatter_reduce(0, wide[:40], src + 0.7, "prod"),
                zero.index_add(0, i, src),
                zero.index_add(0, i.int(), src),
                zero.index_add(0, i, src, alpha=2),
                zero[:, 0].index_add(0, i, src[:, 0]),
                zero.index_put((i,), src, True),
                zero.put(i, src[:, 0], True),
                aten.embedding_dense_backward(src, i, 3, -1, False),
                (zero + 1).index_reduce(0, i[:40], src[:40] + 0.7, "prod"),
            ]

        for n, (a, b) in enumerate(
            zip(harness.ours_alone(fn, src, zero), harness.serially(fn, src, zero), strict=True)
        ):
            assert torch.equal(a, b), f"{dtype} {n}: {a[0]}, eager gives {b[0]}"


def test_masked_scatter() -> None:
    x, source = draws(torch.float32, (6, 40), (300,))
    mask = indices((6, 40), 2, 5).bool()

    def fn(x, source):
        return [
            x.masked_scatter(mask, source),
            x.masked_scatter(mask[:, :1], source),
            x.masked_scatter(mask & False, source[:0]),
            x.masked_scatter(mask[0], source.view(3, 100)),
            x[0].masked_scatter(mask, source),
        ]

    check(fn, x, source, what="masked_scatter")
    check(lambda x, s: x.masked_scatter(mask, s), x.long(), source.long(), what="integers")


def test_embedding_gradient() -> None:
    index = indices((4, 9), 11, 1)
    for dtype in FLOATS:
        (grad,) = draws(dtype, (4, 9, 20))
        ways = [(11, -1, False), (11, 3, False), (20, 0, False)]
        ways += [(11, 2, True)] if dtype in (torch.float32, torch.float64) else []
        for way in ways:

            def fn(grad, way=way):
                return aten.embedding_dense_backward(grad, index, *way)

            check(fn, grad, what=f"{dtype} {way}", looser=4.0)


def test_zero_sizes_and_scalars() -> None:
    x, empty = torch.randn(3, 4), torch.randn(0, 4)
    none = torch.zeros(0, dtype=torch.long)
    scalar, zero = torch.tensor(2.0), torch.tensor(0)

    def fn(x, empty, scalar):
        return [
            x.scatter(0, none.view(0, 4), empty),
            x.scatter_add(1, none.view(3, 0), x),
            empty.scatter_add(0, none.view(0, 4), empty),
            x.index_add(0, none, empty),
            x.index_put((none,), empty),
            empty.index_put((none,), empty, True),
            x.index_put((zero, zero), scalar),
            x.index_put((zero,), scalar, True),
            scalar.scatter(0, zero, 5.0),
            scalar.scatter_add(0, zero.view(1), scalar.view(1)),
            scalar.index_add(0, zero, scalar),
            scalar.index_fill(0, zero, 7.0),
            scalar.index_copy(0, zero, scalar + 1),
            scalar.scatter_reduce(0, zero, scalar, "mean"),
            empty.index_fill(1, zero, 1.0),
            x.masked_scatter(x > 99, scalar.view(1)),
            aten.embedding_dense_backward(empty, none, 5, -1, False),
        ]

    check(fn, x, empty, scalar, what="zero sizes")


@pytest.mark.parametrize("sized", [False, True], ids=["static", "dynamic"])
def test_out_of_range(sized: bool) -> None:
    """The exception is eager's, and nothing else in memory changes."""
    x, i = torch.zeros(4, 6), torch.tensor([1, 2])
    wide = i[:, None].expand(2, 6)
    src = torch.ones(2, 6)
    cases: dict[str, Callable] = {
        "index_put": lambda x, k: x.index_put((i + k,), src),
        "index_put add": lambda x, k: x.index_put((i + k,), src, True),
        "scatter": lambda x, k: x.scatter(0, wide + k, src),
        "scatter value": lambda x, k: x.scatter(0, wide + k, 1.0),
        "scatter_add": lambda x, k: x.scatter_add(0, wide + k, src),
        "scatter_reduce": lambda x, k: x.scatter_reduce(0, wide + k, src, "amax"),
        "index_add": lambda x, k: x.index_add(0, i + k, src),
        "index_add row": lambda x, k: x[:, 0].index_add(0, i + k, src[:, 0]),
        "index_copy": lambda x, k: x.index_copy(0, i + k, src),
        "index_fill": lambda x, k: x.index_fill(0, i + k, 1.0),
        "index_reduce": lambda x, k: x.index_reduce(0, i + k, src, "amin"),
        "take": lambda x, k: x.take(i + 8 * k),
        "put": lambda x, k: x.put(i + 8 * k, src[:, 0]),
    }
    for name, fn in cases.items():
        call = harness.compiled(fn, dynamic=sized)
        for k in (torch.tensor(0), torch.tensor(7), torch.tensor(-2), torch.tensor(-9)):
            try:
                eager: object = harness.serially(fn, x, k)
            except (IndexError, RuntimeError) as e:
                eager = type(e)
            if isinstance(eager, type):
                with pytest.raises(eager, match=name.split()[0]) as raised:
                    call(x, k)
                assert raised.type is eager, f"{name} {k}: {raised.type}, eager raises {eager}"
            else:
                harness.assert_same(call(x, k), eager, f"{name} {k}")


def test_gradients() -> None:
    i, wide = indices((6,), 5, 1), indices((6, 8), 5, 2)
    mask = indices((5, 8), 2, 3).bool()

    def fn(x, y):
        return [
            x.gather(0, wide),
            x[i],
            x[:, i],
            x.index_select(1, i),
            x.take(i * 3),
            (x * 2).scatter_add(0, wide, y),
            (x * 2).index_put((i,), y),
            (x * 2).index_put((i,), y, True),
            (x * 2).index_add(0, i, y, alpha=3),
            (x * 2).index_copy(0, torch.tensor([4, 0, 2]), y[:3]),
            (x * 2).masked_scatter(mask, y),
            (x * 2).scatter_reduce(0, wide, y, "mean"),
            (x * 2).scatter_reduce(0, wide, y, "amax"),
            x.cummax(0).values,
            x.diagonal(1),
            x[::2, 1::3],
            F.embedding(i, x, padding_idx=1, scale_grad_by_freq=True),
            x.sort(1).values,
        ]

    x, y = draws(torch.float32, (5, 8), (6, 8))
    out, eager = harness.with_gradients(fn, [x, y])
    got, ours = harness.with_gradients(harness.compiled(fn, dynamic=False), [x, y])
    harness.assert_same(got, out, "values", looser=8.0)
    harness.assert_same(ours, eager, "gradients", looser=40.0, strides=False)


def test_in_place() -> None:
    """Assignments to an argument: in its own memory where nothing else reads it."""
    i, k = indices((6,), 9, 1), indices((4,), 9, 2)

    def one(x, y):
        x[i] = y
        return x.sum(0)

    def chain(x, y):
        x[i] = y
        x[k, 1:3] += 5
        x.index_add_(0, i, y * 2)
        return x * 2

    def returned(x, y):
        x[i] = y
        return x[0], x

    def read_again(x, y):
        z = x * 3
        x.scatter_(0, i[:, None].expand(6, 7), y)
        return z, x.clone()

    def from_itself(x, y):
        x[i] = x[k][:1] + y
        x[k] = x[i[:4]]
        return y + 1

    for fn in (one, chain, returned, read_again, from_itself):
        x, y = draws(torch.float32, (9, 7), (6, 7))
        ours, eager = x.clone(), x.clone()
        got = harness.compiled(fn, dynamic=False)(ours, y)
        harness.assert_same(got, harness.serially(fn, eager, y), fn.__name__, looser=4.0)
        harness.assert_same(ours, eager, f"{fn.__name__}: the argument", looser=4.0)
    call = harness.compiled(one)
    stats.clear()
    call(x.clone(), y)
    assert [r.kernels for r in stats.records] == [2], "a scatter into the argument, and the sum"


def test_the_same_with_any_number_of_threads() -> None:
    i = indices((5000,), 40, 1)
    x, src = draws(torch.float32, (40, 300), (5000, 300))

    def fn(x, src):
        wide = i[:, None].expand(5000, 300)
        return x.index_add(0, i, src), x.scatter_add(0, wide, src), x.index_put((i,), src)

    call = harness.compiled(fn, dynamic=False)
    threads, results = torch.get_num_threads(), []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        results.append(call(x, src))
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    eager = harness.serially(fn, x, src)
    harness.assert_same(results[0][:2], eager[:2], "values", looser=30.0)
    assert torch.equal(results[0][2], eager[2])


def test_dynamic_shapes_compile_once() -> None:
    def fn(x, i, src):
        wide = i[:, None].expand(src.shape)
        return (
            x.index_put((i,), src),
            x.index_put((i,), src, True),
            x.scatter_add(0, wide, src * 2),
            x.index_add(0, i, src).relu(),
            x.scatter_reduce(0, wide, src, "mean", include_self=False),
            x.masked_scatter(x > 0, torch.cat([x, x])),
            x.slice_scatter(x[:, ::2] * 2, 1, 1, None, 2),
        )

    call = harness.compiled(fn, dynamic=True)
    g = torch.Generator().manual_seed(0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows, cols, n in [(3, 6, 7), (17, 40, 4), (64, 34, 100), (2, 1000, 24)]:
            x, src = torch.randn(rows, cols, generator=g), torch.randn(n, cols, generator=g)
            i = indices((n,), rows, n)
            eager = harness.serially(fn, x, i, src)
            harness.assert_same(call(x, i, src), eager, f"{rows}x{cols}+{n}", looser=8.0)
