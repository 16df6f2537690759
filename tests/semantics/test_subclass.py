"""Tensor subclasses that AOTAutograd takes apart."""

from __future__ import annotations

import torch
from compare import assert_same, compiled, drawn, uncompiled
from torch.testing._internal.two_tensor import TwoTensor


def pair(*shape: int, grad: bool = False, seed: int = 0) -> TwoTensor:
    return TwoTensor(drawn(*shape, seed=seed), drawn(*shape, seed=seed + 50)).requires_grad_(grad)


def parts(x):
    return [x.a, x.b] if isinstance(x, TwoTensor) else [x]


def assert_pairs(ours, eager, what: str) -> None:
    assert len(ours) == len(eager)
    for a, b in zip(ours, eager):
        assert type(a) is type(b), f"{what}: {type(a)}, eager gives {type(b)}"
        assert_same(
            [p.detach() for p in parts(a)], [p.detach() for p in parts(b)], what, strides=True
        )


def test_values_and_gradients() -> None:
    def fn(x, y, w):
        z = torch.tanh(x @ w) + y
        return z, z.sum(), z.t()[1:]

    ours = compiled(fn)
    for n in range(2):
        a_args = pair(3, 4, grad=True, seed=n), pair(3, 5, seed=n), drawn(4, 5, grad=True)
        b_args = pair(3, 4, grad=True, seed=n), pair(3, 5, seed=n), drawn(4, 5, grad=True)
        a, b = ours(*a_args), fn(*b_args)
        assert_pairs(a, b, "result")
        # AOTAutograd wants a tangent of the same kind for every result.
        sum(t.sum() for t in a).backward()
        sum(t.sum() for t in b).backward()
        assert_pairs([a_args[0].grad, a_args[2].grad], [b_args[0].grad, b_args[2].grad], "gradient")
    assert not uncompiled()


def test_changed_in_place_and_made_within() -> None:
    def fn(x, y):
        x.mul_(2)
        x[0].add_(y[1])
        return TwoTensor(y.a + 1, y.b) * 3, x.view(-1), x

    def make():
        return pair(3, 4), pair(3, 4, seed=1)

    (x, y), (u, v) = make(), make()
    a, b = compiled(fn)(x, y), fn(u, v)
    assert_pairs(a, b, "result")
    assert_pairs([x, y], [u, v], "argument")
    assert a[2] is x
    assert not uncompiled()


def test_dynamic_sizes_and_parameters() -> None:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(pair(4, 4))

        def forward(self, x):
            return torch.relu(x @ self.w).sum(0)

    net = Net()
    ours = compiled(net, dynamic=True)
    for n in (3, 6, 9):
        a, b = ours(drawn(n, 4)), net(drawn(n, 4))
        assert_pairs([a], [b], "result")
        (g,) = torch.autograd.grad(a.sum(), net.w)
        (h,) = torch.autograd.grad(b.sum(), net.w)
        assert_pairs([g], [h], "gradient")
    assert not uncompiled()
