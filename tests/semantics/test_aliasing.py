"""Views, changes in place, and results that lie where others lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import check, compiled, drawn, memory


def view_then_change(x):
    y = x + 1
    v = y[1:3].t()
    v.mul_(2)
    y.view(-1)[0] = 9
    return y, v


def change_input_through_view(x):
    x[:, 1].add_(1)
    x.t()[0].zero_()
    return x.sum(0)


def change_then_return_view(x):
    x.mul_(2)
    return x[1:], x.view(-1), x


def results_share(x):
    y = x * 2
    return y, y[0], y.t(), y.view(2, -1), y.detach()


def input_and_its_views(x):
    return x, x[0], x.t(), x.unsqueeze(0), x.expand(3, *x.shape), x.view(-1)[3:]


def chained_as_strided(x):
    y = torch.as_strided(x, (2, 3), (1, 2), 1)
    y.add_(5)
    return y * 2, torch.as_strided(x, (4,), (2,))


def as_strided_change(x):
    y = x * 1
    torch.as_strided(y, (3,), (4,), 2).fill_(7)
    return y


def copy_between_views(x):
    x[0].copy_(x[1])
    x[:, ::2] = x[:, 1::2]
    return x + 0


def set_by_mask(x):
    y = x.clone()
    y[y > 0] = -1.0
    y[y < -0.5] += 3
    return y


def fill_diagonal(x):
    y = x.clone()
    y.diagonal().fill_(0)
    y.fill_diagonal_(1)
    return y, y.diagonal()


def split_parts_change(x):
    y = x + 0
    a, b = y.split([1, 3])
    a.add_(b[0])
    b.sub_(1)
    return y


def unbind_parts(x):
    y = x.clone()
    for i, row in enumerate(y.unbind(0)):
        row.mul_(i)
    return y


def transpose_in_place(x):
    y = x + 1
    y.t_()
    y.unsqueeze_(0)
    y.squeeze_(0)
    return y


def resize_alias(x):
    y = x.reshape(-1)
    y[0] = 5
    return y, x.flatten()


def dtype_view(x):
    bits = x.view(torch.int32)
    return bits & 0x7FFFFFFF, bits


def real_of_complex(x):
    c = torch.view_as_complex(x.reshape(-1, 2))
    return c.real, c.conj().imag, torch.view_as_real(c * 2)


def nested_views(x):
    y = x * 2
    y[1:].select(1, 0).mul_(3)
    y[:, 1:3] = y[:, :1] * 4
    return y.narrow(0, 1, 2).t(), y


FUNCTIONS = [
    view_then_change, change_input_through_view, change_then_return_view, results_share,
    input_and_its_views, chained_as_strided, as_strided_change, copy_between_views, set_by_mask,
    fill_diagonal, split_parts_change, unbind_parts, transpose_in_place, resize_alias, dtype_view,
    real_of_complex, nested_views,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_eager(fn: Callable[..., Any], dynamic: bool) -> None:
    check(fn, lambda: [drawn(4, 4)], dynamic=dynamic)


# Not parts of `split` and `unbind`: autograd does not let them be changed.
@pytest.mark.parametrize(
    "fn",
    [view_then_change, as_strided_change, set_by_mask, fill_diagonal, nested_views],
    ids=lambda f: f.__name__,
)
def test_gradients_through_changes(fn: Callable[..., Any]) -> None:
    check(fn, lambda: [drawn(4, 4, grad=True)], grad=True)


def test_one_tensor_twice_and_overlapping() -> None:
    def fn(a, b):
        a.add_(1)
        return a * b

    def same():
        x = drawn(3, 4)
        return [x, x]

    def overlapping():
        x = drawn(5, 4)
        return [x[:3], x[2:]]

    def neighbours():
        x = drawn(6, 4)
        return [x[:3], x[3:]]

    def transposed():
        x = drawn(4, 4)
        return [x, x.t()]

    for make in (same, overlapping, neighbours, transposed):
        check(fn, make)


def test_expanded_and_overlapping_inputs_are_read() -> None:
    def fn(x, y):
        return x * 2 + y, (x + y).sum(0), x.clone(), x.contiguous()

    check(fn, lambda: [drawn(1, 4).expand(3, 4), drawn(3, 1).expand(3, 4)])
    check(fn, lambda: [drawn(9).unfold(0, 4, 2), drawn(3, 4)])
    check(fn, lambda: [drawn(20).as_strided((3, 4), (1, 2)), drawn(3, 4)])


def test_change_of_an_expanded_input_raises() -> None:
    def fn(x):
        x.add_(1)
        return x * 2

    with pytest.raises(RuntimeError):
        fn(drawn(1, 4).expand(3, 4))
    with pytest.raises(Exception, match=r"(?i)memory|overlap|expand"):
        compiled(fn)(drawn(1, 4).expand(3, 4))


def test_a_leaf_that_wants_a_gradient_is_not_changed() -> None:
    def fn(x):
        x.add_(1)
        return x * 2

    with pytest.raises(RuntimeError):
        fn(drawn(3, grad=True))
    with pytest.raises(Exception, match="leaf"):
        compiled(fn)(drawn(3, grad=True))


def test_results_can_be_changed_by_the_caller() -> None:
    """A result that is a view keeps its relation to the input, in autograd too."""

    def fn(x):
        y = x * 2
        return y, y[1:]

    for call in (fn, compiled(fn)):
        x = drawn(3, 4, grad=True)
        y, part = call(x)
        part.mul_(3)
        assert memory([y, part], []) == [(0, 1, 4)]
        y.sum().backward()
        assert torch.equal(x.grad, torch.tensor([[2.0], [6.0], [6.0]]).expand(3, 4))


def test_no_result_lies_in_a_later_ones() -> None:
    def fn(x):
        a = x * 2
        b = a + 1
        return b, a.sum(0), a.clone(), b.contiguous()

    ours = check(fn, lambda: [drawn(8, 8)], calls=2)
    first = ours(drawn(8, 8))
    kept = [t.clone() for t in first]
    ours(drawn(8, 8, seed=3))
    assert all(torch.equal(a, b) for a, b in zip(first, kept))
