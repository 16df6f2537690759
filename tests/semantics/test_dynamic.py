"""Sizes that are not known when a graph is compiled, and values that become sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import BACKEND, CAPTURE, assert_same, check, compiled, drawn, uncompiled


def split_by_data(x, n):
    return [p.sum(0) for p in torch.split(x, n.tolist())]


def slice_by_tensor(x, n):
    return x[n[0] : n[0] + 1] * 2, x[: n[1]] + 1


def size_from_item(x, n):
    k = n[0].item()
    return torch.zeros(k) + x[0, 0], torch.arange(k), x.new_ones(k, 2).sum(0)


def narrow_by_item(x, n):
    k = n[1].item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    return x.narrow(0, 0, k).sum(0)


def item_as_number(x, n):
    return x * n[0].item() + n[1].item(), x + n.sum().item()


def float_item(x, n):
    v = x.max().item()
    return x / v, n * v


def truth_item(x, n):
    flag = (x.sum() > 0).item()
    chosen = torch.where(torch.full((), flag, dtype=torch.bool), x, -x)
    return x * flag, chosen, torch.sym_ite(flag, 2, 3) * x, torch.tensor(flag), flag, n


def nonzero_rows(x, n):
    at = torch.nonzero(x[:, 0] > 0)
    return at, x[at[:, 0]].sum(0), at.shape[0] + n


def boolean_mask(x, n):
    kept = x[x > 0]
    return kept, kept.sum(), kept.exp() * 2, n


def mask_of_rows(x, n):
    return x[x[:, 1] > 0] * 2 + 1, n


def masked_select(x, n):
    return torch.masked_select(x, x < 0).abs().sort().values, n


def unique_values(x, n):
    values, inverse, counts = torch.unique(n, return_inverse=True, return_counts=True)
    return values * 2, inverse, counts.sum()


def repeat_by_tensor(x, n):
    return torch.repeat_interleave(x[:2], n, dim=0) + 1


def where_positions(x, n):
    i, j = torch.where(x > 0.5)
    return i + j, x[i, j], n


FUNCTIONS = [
    split_by_data, slice_by_tensor, size_from_item, narrow_by_item, item_as_number, float_item,
    truth_item, nonzero_rows, boolean_mask, mask_of_rows, masked_select, unique_values,
    repeat_by_tensor, where_positions,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_data_decides(fn: Callable[..., Any]) -> None:
    """One graph, for whatever the data say."""
    ours = compiled(fn, dynamic=False)
    for seed, sizes in enumerate([(2, 4), (5, 1), (6, 0), (1, 5), (0, 6)]):
        n = torch.tensor(sizes)
        x = drawn(6, 3, seed=seed)
        with torch._dynamo.config.patch(CAPTURE):
            assert_same(ours(x, n), fn(x, n), str(sizes))
    assert not uncompiled(), uncompiled()
    if BACKEND == "ljcompile":
        from ljcompile import stats

        assert len(stats.records) == 1, [r.name for r in stats.records]


@pytest.mark.parametrize(
    "fn",
    [boolean_mask, mask_of_rows, nonzero_rows, slice_by_tensor, narrow_by_item],
    ids=lambda f: f.__name__,
)
def test_gradients_where_data_decide(fn: Callable[..., Any]) -> None:
    check(fn, lambda: [drawn(6, 3, grad=True), torch.tensor([2, 4])], grad=True, dynamic=False)


def test_marked_dynamic() -> None:
    def fn(x, w):
        y = torch.softmax(x @ w, -1)
        return y, y.sum(0), x.shape[0] * 2, torch.cat([x, x[:1]]), y.reshape(-1)

    ours = compiled(fn)
    w = drawn(4, 5)
    for n in (7, 2, 16, 33):
        x = drawn(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(ours(x, w), fn(x, w), str(n))
    assert not uncompiled()
    if BACKEND == "ljcompile":
        from ljcompile import stats

        assert len(stats.records) == 1


def test_marked_unbacked() -> None:
    """Zero and one are among the sizes."""

    def fn(x):
        return x * 2 + 1, x.sum(0), x.sum(1), torch.relu(x).t()

    ours = compiled(fn)
    for n in (5, 1, 0, 17):
        x = drawn(n, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        assert_same(ours(x), fn(x), str(n))
    assert not uncompiled()
    if BACKEND == "ljcompile":
        from ljcompile import stats

        assert len(stats.records) == 1


def test_nothing_and_one_after_a_dynamic_compile() -> None:
    def fn(x, w):
        y = torch.tanh(x @ w)
        return y.mean(0), y.sum(), torch.cat([y, x]), y.cumsum(0), y * x[:, :1], y.t()

    ours = compiled(fn, dynamic=True)
    for n in (6, 3, 1, 0, 1, 40):
        make = lambda n=n: (drawn(n, 4, grad=True), drawn(4, 4, grad=True))  # noqa: E731
        (x, w), (y, v) = make(), make()
        a, b = ours(x, w), fn(y, v)
        assert_same(a, b, str(n))
        if n:
            ours_grad = torch.autograd.grad(a[1] + a[3].sum(), [x, w])
            assert_same(ours_grad, torch.autograd.grad(b[1] + b[3].sum(), [y, v]), f"{n} gradient")
    assert not uncompiled()


def test_every_dim_dynamic() -> None:
    def fn(x):
        n, c, h, w = x.shape
        y = x.permute(0, 2, 3, 1).reshape(n, h * w, c)
        return y.softmax(1), y.mean((0, 1)), x.flatten(1)[:, : c * h], x.view(n * c, -1).amax(1)

    ours = compiled(fn, dynamic=True)
    for shape in [(2, 3, 4, 5), (3, 2, 7, 6), (5, 4, 3, 2), (2, 8, 9, 17)]:
        assert_same(ours(drawn(*shape)), fn(drawn(*shape)), str(shape))
    assert not uncompiled()


def test_numbers_that_change() -> None:
    """Python numbers become symbols."""

    def fn(x, n, f):
        return x * n + f, x[:n], torch.full((n,), f), x.sum() ** 2 * f

    ours = compiled(fn, dynamic=True)
    for n, f in [(2, 0.5), (3, 1.5), (5, -2.0), (4, 3.25)]:
        assert_same(ours(drawn(6), n, f), fn(drawn(6), n, f), f"{n} {f}")
    assert not uncompiled()


def test_data_out_of_range_raises() -> None:
    def fn(x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 4)
        return x[:k].sum(0)

    with torch._dynamo.config.patch(CAPTURE):
        ours = compiled(fn)
        assert_same(ours(drawn(6, 2), torch.tensor(3)), fn(drawn(6, 2), torch.tensor(3)), "3")
        for bad in (5, -1):
            with pytest.raises(RuntimeError):
                ours(drawn(6, 2), torch.tensor(bad))
        assert_same(ours(drawn(6, 2), torch.tensor(4)), fn(drawn(6, 2), torch.tensor(4)), "4")
