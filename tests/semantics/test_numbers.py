"""The numbers at the edges: NaN, infinities, ends of ranges, nothing at all."""

from __future__ import annotations

import pytest
import torch
from compare import check

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

ODD = [1.0, NAN, -INF, 3.0, -0.0, 0.0, INF, NAN, -2.5, 1e-40, -1e-40, 3e38, 0.5]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_selections_with_nan(dtype: torch.dtype) -> None:
    def fn(x):
        return (
            torch.sort(x),
            torch.sort(x, descending=True, stable=True),
            torch.argsort(x, stable=True),
            torch.topk(x, 4),
            torch.topk(x, 4, largest=False),
            torch.kthvalue(x, 3),
            x.max(0),
            x.min(0),
            x.max(),
            x.min(),
            x.argmax(),
            x.argmin(),
            x.amax(),
            x.amin(),
            torch.aminmax(x),
            x.median(),
            x.nanmedian(),
            torch.nan_to_num(x, 2.0),
            x.nansum(),
        )

    check(fn, lambda: [torch.tensor(ODD, dtype=dtype)], aliases=False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clamps_and_comparisons_with_nan(dtype: torch.dtype) -> None:
    def fn(x, y):
        return (
            x.clamp(-1, 1),
            x.clamp(min=0.0),
            x.clamp(max=NAN),
            x.clamp(2.0, 1.0),
            torch.clamp(x, y, y + 1),
            torch.maximum(x, y),
            torch.minimum(x, y),
            torch.fmax(x, y),
            torch.fmin(x, y),
            x.relu(),
            torch.nn.functional.relu6(x),
            torch.sign(x),
            torch.sgn(x),
            torch.heaviside(x, y),
            x == x,
            x != y,
            x < y,
            x >= y,
            torch.signbit(x),
            torch.copysign(y, x),
            torch.nextafter(x, y) if x.dtype != torch.float16 else x,
            torch.isclose(x, y, equal_nan=True),
            torch.where(x > y, x, y),
            x.isfinite(),
        )

    odd = torch.tensor(ODD, dtype=dtype)
    check(fn, lambda: [odd.clone()[:, None].expand(13, 13), odd.clone()])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    """By more than the width, and by less than nothing."""
    bits = torch.iinfo(dtype).bits
    info = torch.iinfo(dtype)
    x = torch.tensor([0, 1, 2, 5, info.max, info.min, info.max // 3], dtype=dtype)
    by = [0, 1, bits - 1, bits, bits + 1, 100]
    by += [] if dtype == torch.uint8 else [-1, -bits]
    y = torch.tensor(by, dtype=dtype)

    def fn(x, y):
        return x[:, None] << y, x[:, None] >> y, x << 3, x >> 2, x << bits, x >> bits

    check(fn, lambda: [x.clone(), y.clone()])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_and_divide_by_sign(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([0, 1, 7, info.max, info.min, info.max - 1, 100], dtype=dtype)
    x = torch.cat([x, -x])
    y = torch.tensor([1, 2, 3, 7, info.max, 5], dtype=dtype)
    y = y if dtype == torch.uint8 else torch.cat([y, -y])

    def fn(x, y):
        a = x[:, None]
        return (
            a + y,
            a - y,
            a * y,
            -a,
            a.abs(),
            a // y,
            a % y,
            torch.fmod(a, y),
            torch.div(a, y, rounding_mode="trunc"),
            a / y,
            x.sum(),
            x.prod(),
            x.cumsum(0),
            torch.gcd(a, y),
            a**2,
            a & y,
            a ^ y,
            ~a,
            x.square(),
        )

    # The smallest integer by −1 traps in eager.
    if dtype != torch.uint8:
        x = x[x != info.min]
    check(fn, lambda: [x.clone(), y.clone()])


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_floats_to_integers(dtype: torch.dtype) -> None:
    """NaN, infinities and what is out of range, in long rows and short."""
    values = torch.tensor([*ODD, 300.0, -300.0, 1e10, -1e10, 1e20, 2.0**31, -(2.0**31), 2.0**63])

    def fn(x):
        return x.to(dtype), (x * 2).to(dtype), x[:3].to(dtype), x[0].to(dtype)

    for count in (1, 5):
        check(fn, lambda count=count: [values.repeat(count)])
        check(fn, lambda count=count: [values.double().repeat(count)])


def test_denormals() -> None:
    """Kept, whatever arithmetic they meet."""

    def fn(x):
        return x * 0.5, x + x, x / 2, x.sqrt(), x.exp(), x.log(), x.sum(), x.to(torch.float16), -x

    tiny = [1e-40, -1e-40, 1e-45, 1.2e-38, 5e-39, 0.0, 6e-8, -3e-8, 1.0]
    check(fn, lambda: [torch.tensor(tiny * 3)])
    check(fn, lambda: [torch.tensor([5e-324, 1e-310, 2e-308, 1.0], dtype=torch.float64)])
    check(fn, lambda: [torch.tensor([6e-8, 1e-7, 6e-5, 1.0], dtype=torch.float16)])


def test_reductions_of_nothing() -> None:
    def fn(x):
        return (
            x.sum(1),
            x.sum(),
            x.mean(1),
            x.prod(1),
            x.var(1),
            x.std(1),
            x.any(1),
            x.all(1),
            x.logsumexp(1),
            x.norm(dim=1),
            x.cumsum(1),
            x.softmax(1),
            x.amax(0),
            x.max(0),
            x.argmin(0),
        )

    check(fn, lambda: [torch.empty(3, 0)], aliases=False)

    def raises(x):
        return x.amax(1)

    from compare import compiled

    for call in (raises, compiled(raises)):
        with pytest.raises((IndexError, RuntimeError)):
            call(torch.empty(3, 0))


def test_sizes_of_nothing_and_of_no_dims() -> None:
    def fn(x, s):
        return (
            x + s,
            torch.cat([x, x]),
            torch.stack([s, s]),
            x @ x.t(),
            x.t() @ x,
            s.sum(),
            s.max(),
            s.sort(),
            s.reshape(1, 1),
            s.expand(0, 3),
            x.reshape(-1, 7),
            x.flatten(),
            s.cumsum(0),
            s.softmax(0),
            s.unsqueeze(0)[0],
            torch.nonzero(s),
            torch.where(s > 0),
            s.argmax(),
        )

    check(fn, lambda: [torch.empty(0, 7), torch.tensor(2.5)], aliases=False)


def test_zeros_have_signs() -> None:
    def fn(x):
        return x * 1, x + 0.0, -x, x - x, x.abs(), x.neg().sqrt(), x.round(), x.trunc(), x / -3

    x = torch.tensor([0.0, -0.0, 0.4, -0.4])
    ours = check(fn, lambda: [x.clone()])
    for a, b in zip(ours(x), fn(x)):
        zero = b == 0
        assert torch.equal(torch.signbit(a)[zero], torch.signbit(b)[zero])


def test_python_numbers_and_promotion() -> None:
    def fn(b, u, i, h, f):
        return (
            b + 1, b * 2.5, u + 300, u * 1.5, i / 2, i + 2.5, h + 1e-3, h * f, i + h, u + i,
            b + b, b & True, i // 2.0, i % 3, torch.add(i, 2, alpha=3), f + True, h / i, u**2,
            2**i, 2.0**i, f.sum() + i, h.sum() + f,
        )  # fmt: skip

    def make():
        return [
            torch.tensor([True, False]),
            torch.tensor([250, 3], dtype=torch.uint8),
            torch.tensor([7, 2]),
            torch.tensor([1.5, -2.0], dtype=torch.float16),
            torch.tensor([0.1, 3.0]),
        ]

    check(fn, make)
