"""Gradients by other ways than a plain backward: checkpoints, hooks, own functions, twice over."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same, check, compiled, drawn, uncompiled
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)


def region(x, w):
    return torch.tanh(x @ w).exp().sin()


@pytest.mark.parametrize("reentrant", [False, True], ids=["nonreentrant", "reentrant"])
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_checkpoint(reentrant: bool, outside: bool) -> None:
    """A checkpoint within what is compiled, and around it."""
    run = compiled(region) if outside else region

    def fn(x, w):
        y = checkpoint(run, x, w, use_reentrant=reentrant)
        return checkpoint(run, y * 2, w, use_reentrant=reentrant) + x

    def plain(x, w):
        return region(region(x, w) * 2, w) + x

    ours = fn if outside else compiled(fn, fullgraph=not reentrant)
    args = [[drawn(5, 5, grad=True), drawn(5, 5, grad=True, seed=1)] for _ in range(2)]
    a, b = ours(*args[0]), plain(*args[1])
    assert_same(a, b, "result")
    a.sum().backward()
    b.sum().backward()
    assert_same([x.grad for x in args[0]], [x.grad for x in args[1]], "gradient")
    assert not uncompiled()


def dropping(x):
    return F.dropout(torch.cos(x) + 3, 0.5)


@pytest.mark.parametrize("reentrant", [False, True], ids=["nonreentrant", "reentrant"])
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_a_recomputed_mask_is_the_same(reentrant: bool, outside: bool) -> None:
    x = drawn(3000, grad=True)
    if outside:
        run = compiled(dropping)
        out = checkpoint(run, x, use_reentrant=reentrant)
    else:
        fn = lambda x: checkpoint(dropping, x, use_reentrant=reentrant)  # noqa: E731
        out = compiled(fn, fullgraph=not reentrant)(x)
    out.sum().backward()
    kept = out != 0
    assert 0.4 < float(kept.float().mean()) < 0.6
    assert torch.equal(x.grad != 0, kept)


def test_checkpointed_modules() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])

    def fn(x):
        return checkpoint_sequential(model, 2, x, use_reentrant=False)

    x = drawn(3, 6)
    ours = compiled(fn, fullgraph=False)(x)
    assert_same(ours, model(x), "result")
    parameters = list(model.parameters())
    a = torch.autograd.grad(ours.sum(), parameters)
    assert_same(a, torch.autograd.grad(model(x).sum(), parameters), "gradient")


def policy(ctx, op, *args, **kwargs):
    saved = op == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


CONTEXTS = functools.partial(create_selective_checkpoint_contexts, policy)


def test_selective_checkpoint() -> None:
    def fn(x, w):
        return checkpoint(region, x, w, use_reentrant=False, context_fn=CONTEXTS)

    def make():
        return [drawn(5, 5, grad=True), drawn(5, 5, grad=True, seed=1)]

    ours = compiled(fn)
    args, eager = make(), make()
    a, b = ours(*args), region(*eager)
    assert_same(a, b, "result")
    assert_same(torch.autograd.grad(a.sum(), args), torch.autograd.grad(b.sum(), eager), "gradient")


def test_module_hooks() -> None:
    """Forward hooks, before and after, that change what passes; full backward hooks too."""

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        seen = []
        model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model[1].register_forward_hook(lambda m, args, out: out + args[0])
        model[2].register_full_backward_pre_hook(lambda m, grad: (grad[0] * 3,))
        model[0].register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()) and None)
        return model, seen

    eager, expected = build()
    model, seen = build()
    ours = compiled(model, fullgraph=False)
    for n in range(2):
        x, y = drawn(3, 4, grad=True, seed=n), drawn(3, 4, grad=True, seed=n)
        a, b = ours(x), eager(y)
        assert_same(a, b, "result")
        a.square().sum().backward()
        b.square().sum().backward()
        assert_same(x.grad, y.grad, "gradient")
    assert_same(seen, expected, "what the hook saw")
    assert_same(
        [p.grad for p in model.parameters()], [p.grad for p in eager.parameters()], "parameters"
    )


def test_tensor_hooks() -> None:
    """On an input outside, on an intermediate inside, on a result outside."""

    def fn(x):
        y = x.exp()
        y.register_hook(lambda g: g * 5)
        return y.sin() * 2

    for hooked in (fn, compiled(fn, fullgraph=False)):
        x = drawn(7, grad=True)
        seen = []
        x.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        z = hooked(x)
        z.register_hook(lambda g: g + 1)
        z.sum().backward()
        want = (2 * 5 * 2 * x.exp().cos() * x.exp()).detach()
        assert_same(x.grad, want, "gradient")
        assert_same(seen, [want], "seen")


def test_hooks_after_accumulation_and_retained_gradients() -> None:
    def fn(x, w):
        return (x * w).tanh()

    for call in (fn, compiled(fn)):
        w, seen = drawn(5, grad=True), []
        w.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad.clone()))
        y = call(drawn(5, seed=2), w)
        y.retain_grad()
        (y * 3).sum().backward()
        assert torch.equal(y.grad, torch.full((5,), 3.0))
        assert len(seen) == 1 and torch.equal(seen[0], w.grad)


class Cube(torch.autograd.Function):
    """Saves tensors and an attribute; the second result has no gradient."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        index = x.argmax()
        ctx.mark_non_differentiable(index)
        return k * x**3, index

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        # Not the true factor, to tell this from a derived gradient.
        return g * ctx.k * x * x * 7, None


class InPlace(torch.autograd.Function):
    """Changes its argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Unmaterialised(torch.autograd.Function):
    """Is told that a result was not used."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        total = 0
        if a is not None:
            total = total + a * 2
        if b is not None:
            total = total + b * 3
        return total


class SetUp(torch.autograd.Function):
    """The newer form: `setup_context` apart."""

    @staticmethod
    def forward(x, y):
        return torch.sinh(x) * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, y, out = ctx.saved_tensors
        return g * torch.cosh(x) * y, (g * out / y).sum_to_size(y.shape)


def test_own_functions() -> None:
    def make():
        return [drawn(4, 5, grad=True), drawn(5, grad=True)]

    def cube(x, y):
        a, i = Cube.apply(x * 1, 2.0)
        return a * y, i

    def unused(x, y):
        return Unmaterialised.apply(x)[0] * y

    def setup(x, y):
        return SetUp.apply(x, y.exp())

    for fn in (cube, unused, setup):
        check(fn, make, grad=True)


def test_own_function_in_place() -> None:
    """Dynamo does not capture `mark_dirty`; the rest of the frame is."""

    def fn(x):
        y = x.exp() + 1
        z = InPlace.apply(y)
        return z * y

    args = [drawn(4, grad=True), drawn(4, grad=True)]
    a, b = compiled(fn, fullgraph=False)(args[0]), fn(args[1])
    assert_same(a, b, "result")
    a.sum().backward()
    b.sum().backward()
    assert_same(args[0].grad, args[1].grad, "gradient")


def test_double_backward_raises_as_aot_autograd_does() -> None:
    """Not computed, and not silently wrong."""

    def fn(x):
        return x.exp().sin()

    x = drawn(5, grad=True)
    (g,) = torch.autograd.grad(compiled(fn)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


def test_gradient_within_the_graph() -> None:
    """A gradient penalty: the first derivative is compiled too."""

    def fn(x, w):
        y = torch.tanh(x @ w).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g.square().sum() + y

    args = [[drawn(3, 4, grad=True), drawn(4, 2, grad=True)] for _ in range(2)]
    a, b = compiled(fn, fullgraph=False)(*args[0]), fn(*args[1])
    assert_same(a, b, "result")
    assert_same(torch.autograd.grad(a, args[0]), torch.autograd.grad(b, args[1]), "gradient")


def test_parts_without_gradient() -> None:
    def fn(x, w, frozen):
        with torch.no_grad():
            scale = (x * w).mean()
        y = x.detach() * w + x * frozen
        with torch.enable_grad():
            y = y * scale
        return y, (x > 0), scale, y.detach()

    def make():
        return [drawn(6, grad=True), drawn(6, grad=True, seed=1), drawn(6, seed=2)]

    check(fn, make, grad=True)


def test_results_used_in_part() -> None:
    """Gradients of one result of several; a tangent that is not contiguous."""

    def fn(x):
        return x.exp(), x.sin(), x.t() * 2

    ours = compiled(fn)
    for i in range(3):
        x, y = drawn(3, 4, grad=True), drawn(3, 4, grad=True)
        a, b = ours(x)[i], fn(y)[i]
        tangent = drawn(*reversed(a.shape)).t()
        a.backward(tangent)
        b.backward(tangent)
        assert_same(x.grad, y.grad, f"{i}", strides=False)
        assert x.grad.stride() == x.stride()
