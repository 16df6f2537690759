"""`torch.func` within what is compiled."""

from __future__ import annotations

import pytest
import torch
from compare import check, drawn
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)


def energy(x):
    return (x.sin() * x.exp()).sum()


def both(x):
    return torch.tanh(x) * x.sum()


MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def loss(parameters, x):
    return functional_call(MODEL, parameters, (x,)).square().mean()


PARAMETERS = {k: drawn(*p.shape) for k, p in MODEL.named_parameters()}


FUNCTIONS = {
    "grad": lambda x: grad(energy)(x),
    "grad_and_value": lambda x: grad_and_value(energy)(x),
    "grad of grad": lambda x: grad(lambda y: grad(energy)(y).square().sum())(x),
    "vjp": lambda x: vjp(both, x)[1](torch.ones_like(x)),
    "jvp": lambda x: jvp(both, (x,), (torch.cos(x),)),
    "jacrev": lambda x: jacrev(both)(x[0]),
    "jacfwd": lambda x: jacfwd(both)(x[0]),
    "hessian": lambda x: hessian(energy)(x[0]),
    "vmap": lambda x: vmap(lambda r: r.softmax(0) * r.sum())(x),
    "vmap of dims": lambda x: vmap(torch.dot, in_dims=(1, None), out_dims=0)(x, x[:, 0]),
    "vmap of vmap": lambda x: vmap(vmap(lambda a: a * a + 1))(x),
    "vmap of grad": lambda x: vmap(grad(energy))(x),
    "vmap of index": lambda x: vmap(lambda r: r[r.argmax()] + torch.where(r > 0, r, 0).sum())(x),
    "per sample gradients": lambda x: vmap(grad(loss), in_dims=(None, 0))(PARAMETERS, x),
    "functional_call": lambda x: functional_call(MODEL, PARAMETERS, (x,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str) -> None:
    check(FUNCTIONS[name], lambda: [drawn(3, 4)], aliases=False)


def test_differentiated_from_outside() -> None:
    def fn(x):
        return vmap(grad(energy))(x), jvp(both, (x,), (x,))[1]

    check(fn, lambda: [drawn(3, 4, grad=True)], grad=True)


def test_random_per_sample() -> None:
    """Different numbers for each sample, the same for all, as asked."""
    from compare import compiled

    x = torch.zeros(50, 40)
    for mode in ("different", "same"):
        fn = lambda x, mode=mode: vmap(lambda r: r + torch.rand_like(r), randomness=mode)(x)  # noqa: E731
        out = compiled(fn)(x)
        assert 0.4 < float(out.mean()) < 0.6
        assert torch.equal(out[0], out[1]) == (mode == "same")


def test_linearize() -> None:
    def fn(x):
        y, tangent = linearize(both, x)
        return y, tangent(x)

    x = drawn(3, 4)
    from compare import assert_same, compiled

    assert_same(compiled(fn, fullgraph=False)(x), fn(x), "linearize")
