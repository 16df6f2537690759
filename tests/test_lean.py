"""The short way through a compiled forward and backward behaves as AOTAutograd's long one."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from ljcompile import lean


@pytest.fixture
def shortened(monkeypatch):
    """Counts the graphs that take the short way, and its calls."""
    counts = {"graphs": 0, "calls": 0}
    make = lean._function

    def counting(*args):
        counts["graphs"] += 1
        run = make(*args)

        def counted(args):
            counts["calls"] += 1
            return run(args)

        return counted

    monkeypatch.setattr(lean, "_function", counting)
    return counts


def warmed(fn, *inputs):
    """`fn` compiled, with its backward, so that the next call is short."""
    compiled = torch.compile(fn, backend="ljcompile")
    out = compiled(*inputs)
    out = out if isinstance(out, tuple) else (out,)
    sum(o.sum() for o in out if o.requires_grad).backward()
    for x in inputs:
        x.grad = None
    return compiled


def leaf(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).requires_grad_()


def test_values_gradients_and_reuse(shortened) -> None:
    """Outputs of all kinds; some outputs unused; the graph kept, and not."""
    x, w = leaf(4, 8), leaf(8, 8, seed=1)

    def fn(x, w):
        y = torch.tanh(x @ w)
        return y, (x.cos() @ w).reshape(2, 16), (y > 0), y.detach() * 2, (x * w.sum()).exp()

    compiled = warmed(fn, x, w)
    for used in ([0], [1], [4], [0, 1, 4]):
        grads = []
        for f in (compiled, fn):
            out = f(x, w)
            assert [o.requires_grad for o in out] == [True, True, False, False, True]
            loss = sum(out[i].sum() for i in used)
            first = torch.autograd.grad(loss, [x, w], retain_graph=True)
            again = torch.autograd.grad(loss, [x, w])
            assert [o.stride() for o in out] == [(8, 1), (16, 1), (8, 1), (8, 1), (8, 1)]
            grads.append([*out, *first, *again])
            with pytest.raises(RuntimeError, match="second time"):
                torch.autograd.grad(loss, [x, w])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert shortened == {"graphs": 1, "calls": 4}


def test_tangents_in_any_layout(shortened) -> None:
    """Expanded, transposed, of a subclass that is a parameter: the backward takes them all."""
    x = leaf(6, 6)
    compiled = warmed(lambda x: x.t() * 3 + x.sin(), x)
    for tangent in (
        torch.ones(()).expand(6, 6),
        leaf(6, 6).detach().t(),
        leaf(12, 6)[::2].detach(),
    ):
        expected = torch.autograd.grad(x.t() * 3 + x.sin(), x, tangent)[0]
        got = torch.autograd.grad(compiled(x), x, tangent)[0]
        torch.testing.assert_close(got, expected)
    assert shortened["calls"] == 3


def test_an_input_without_gradient_gets_none(shortened) -> None:
    """Not zeros: what made it is not even visited."""
    x, unused = leaf(3), leaf(3)
    compiled = torch.compile(lambda x, y: x * 2 + y.detach(), backend="ljcompile")
    for _ in range(3):
        compiled(x, unused * 1).sum().backward()
    assert unused.grad is None
    assert torch.equal(x.grad, torch.full((3,), 6.0))
    assert shortened["calls"] == 2


def test_double_backward_raises(shortened) -> None:
    x = leaf(5)
    compiled = warmed(lambda x: x.sin() * x, x)
    (grad,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad((x.sin() * x).sum(), x)[0])
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()
    assert shortened["calls"] == 1


def test_a_saved_tensor_changed_in_place_is_noticed(shortened) -> None:
    x, w = leaf(4), leaf(4, seed=1)
    compiled = warmed(lambda x, w: x * w, x, w)
    loss = compiled(x, w).sum()
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert shortened["calls"] == 1


def test_hooks_on_saved_tensors_see_them(shortened) -> None:
    x, w = leaf(4), leaf(4, seed=1)

    def fn(x, w):
        return (x * w).tanh()

    compiled = warmed(fn, x, w)
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.clone()

    def unpack(t):
        unpacked.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = compiled(x, w)
    got = torch.autograd.grad(out.sum(), [x, w])
    assert packed and len(packed) == len(unpacked)
    for a, b in zip(got, torch.autograd.grad(fn(x, w).sum(), [x, w]), strict=True):
        torch.testing.assert_close(a, b)


def test_grad_mode_set_inside(shortened) -> None:
    x = leaf(4)

    def fn(x):
        with torch.enable_grad():
            return x.sin()

    compiled = torch.compile(fn, backend="ljcompile")
    for _ in range(3):
        with torch.no_grad():
            y = compiled(x)
        assert y.requires_grad
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.cos())


def test_what_needs_the_long_way_takes_it(shortened) -> None:
    """Changed buffers, returned inputs and views of them."""
    x, state = leaf(4), torch.zeros(4)

    def fn(x, state):
        state.add_(1)
        return x * state, x, x[:2]

    compiled = torch.compile(fn, backend="ljcompile")
    for i in range(3):
        y, same, view = compiled(x, state)
        assert same is x and view._base is x
        assert torch.equal(state, torch.full((4,), i + 1.0))
        y.sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 6.0))
    assert shortened["graphs"] == 0


def test_sizes_that_vary(shortened) -> None:
    w = leaf(8, 8)
    compiled = torch.compile(lambda x, w: (x @ w).relu().sum(0), backend="ljcompile", dynamic=True)
    for n in (4, 5, 9, 30):
        x = leaf(n, 8, seed=n)
        got = torch.autograd.grad(compiled(x, w).sum(), [x, w])
        expected = torch.autograd.grad((x @ w).relu().sum(0).sum(), [x, w])
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert shortened["graphs"] == 1 and shortened["calls"] >= 3


def test_nothing_outlives_the_step(shortened) -> None:
    """Activations go with the graph, with a backward and without one."""
    x = leaf(64, 64)
    compiled = warmed(lambda x: (x.sin().exp() @ x).tanh(), x)
    gc.collect()
    gc.disable()
    try:
        for backward in (True, False):
            y = compiled(x)
            node = weakref.ref(y.grad_fn)
            if backward:
                y.sum().backward()
            del y
            assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_graph_may_be_kept_on_the_long_way(shortened, dynamic: bool) -> None:
    """Whether the backward was compiled with the forward or when first wanted."""
    w, state = leaf(8, 8), torch.zeros(8)

    def fn(x, w, state):
        state.add_(1)
        return (x @ w).tanh() * w.exp().sum(0)

    compiled = torch.compile(fn, backend="ljcompile", dynamic=dynamic)
    for _ in range(2):
        x = leaf(5, 8)
        loss = compiled(x, w, state).sum()
        first = torch.autograd.grad(loss, [x, w], retain_graph=True)
        again = torch.autograd.grad(loss, [x, w])
        expected = torch.autograd.grad(fn(x, w, state.clone()).sum(), [x, w])
        for a, b, c in zip(first, again, expected, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c)
    assert shortened["graphs"] == 0
