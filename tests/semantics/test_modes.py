"""What is in force around a call: autocast, inference mode, deterministic algorithms."""

from __future__ import annotations

import contextlib

import pytest
import torch
from compare import assert_same, check, compiled, drawn, uncompiled
from torch import nn


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_around_and_within(dtype: torch.dtype) -> None:
    """Entered outside, inside, both, and left inside: dtypes and bits of the roundings."""

    def plain(x, w):
        return x @ w, torch.softmax(x @ w, -1), (x @ w) + x.sum(), torch.nn.functional.gelu(x)

    def inside(x, w):
        with torch.autocast("cpu", dtype):
            y = x @ w
            with torch.autocast("cpu", enabled=False):
                z = x @ w
            return y, z, (y @ w.t().to(dtype)), y.float().exp()

    def half_inside(x, w):
        y = x @ w
        with torch.autocast("cpu", dtype):
            y = y @ w
        return y @ w.to(y.dtype)

    for fn in (plain, inside, half_inside):
        ours = compiled(fn)
        for around in (contextlib.nullcontext(), torch.autocast("cpu", dtype)):
            with around:
                a = ours(drawn(6, 6), drawn(6, 6, seed=1))
                b = fn(drawn(6, 6), drawn(6, 6, seed=1))
            assert_same(a, b, fn.__name__)
    assert not uncompiled()


def test_autocast_cache_and_training() -> None:
    """A weight used twice is cast once; gradients arrive in the weight's dtype."""

    def fn(net, x):
        return net(x).float() + net(x * 2).float()

    results = []
    for call in (fn, compiled(fn)):
        net = model()
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=True):
                out = call(net, drawn(5, 8))
            out.square().sum().backward()
        results.append([out, *[p.grad for p in net.parameters()]])
    for a, b in zip(*results):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2 * float(b.detach().abs().max()))


def test_autocast_changes_between_calls() -> None:
    fn = lambda x, w: x @ w  # noqa: E731
    ours = compiled(fn)
    x, w = drawn(4, 4), drawn(4, 4, seed=1)
    for on in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            assert ours(x, w).dtype == (torch.bfloat16 if on else torch.float32)


def test_inference_mode() -> None:
    """Around, within, and on tensors made under it."""

    def within(x, w):
        with torch.inference_mode():
            y = x.exp()
        return y * 2, y[1:] + w

    for context in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with context():
            check(lambda x, w: (x * w, x.t(), (x + 1).view(-1)), lambda: [drawn(3, 3)] * 2)
    with torch.no_grad():
        a = compiled(within, fullgraph=False)(drawn(3), drawn(2))
        assert_same(a, within(drawn(3), drawn(2)), "within")
    with torch.inference_mode():
        frozen = drawn(3, 3) * 1
    net = nn.Linear(3, 3)
    ours = compiled(lambda x: net(x) + x)
    with torch.inference_mode():
        out = ours(frozen)
        assert_same(out, net(frozen) + frozen, "inference tensor")
        assert out.is_inference()
    trained = ours(drawn(3, 3))
    assert trained.requires_grad and not trained.is_inference()


def test_change_in_place_under_inference_mode() -> None:
    def fn(x, buffer):
        buffer.add_(x.sum(0))
        return x * buffer

    with torch.inference_mode():
        check(fn, lambda: [drawn(3, 4), drawn(4)], calls=2)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_algorithms() -> None:
    """Runs under it, gives eager's values, and the same bits each time."""

    def fn(x, i, table):
        y = torch.zeros(4, 3).index_add(0, i, x)
        z = torch.zeros(4, 3).index_put((i,), x, accumulate=True)
        t = torch.zeros(4, 3).scatter_add(0, i[:, None].expand(-1, 3), x)
        e = torch.nn.functional.embedding(i, table)
        return y, z, t, e.sum(0), x.cumsum(0), torch.cat([y, z]).median(0)

    def make():
        g = torch.Generator().manual_seed(0)
        i = torch.randint(0, 4, (500,), generator=g)
        return [drawn(500, 3, grad=True), i, drawn(4, 3, grad=True)]

    with deterministic():
        ours = check(fn, make, grad=True, aliases=False)
        first = ours(*make())
        for _ in range(3):
            again = ours(*make())
            for a, b in zip(first, again):
                assert all(
                    torch.equal(x, y)
                    for x, y in zip(torch.atleast_1d(a[0]), torch.atleast_1d(b[0]))
                )


def test_uninitialised_memory_is_filled_when_deterministic() -> None:
    """`empty` is NaN or the largest integer then, by torch's own setting."""

    def fn(x):
        return (
            torch.empty(3),
            torch.empty_like(x),
            torch.empty(2, dtype=torch.int32),
            x.new_empty(2),
        )

    with deterministic():
        assert_same(compiled(fn)(drawn(2)), fn(drawn(2)), "empty")


def test_default_dtype() -> None:
    def fn(x):
        return torch.ones(3) + 1, torch.tensor(1.5) * x, torch.full((2,), 2.0), x.long() / 2

    torch.set_default_dtype(torch.float64)
    try:
        check(fn, lambda: [drawn(3)])
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_of_autocast_do_not_leak() -> None:
    """A compiled call leaves the modes as they were."""
    ours = compiled(lambda x: torch.relu(x @ x))
    with torch.autocast("cpu", torch.bfloat16):
        ours(drawn(3, 3))
        assert torch.is_autocast_enabled("cpu")
        assert (drawn(3, 3) @ drawn(3, 3)).dtype == torch.bfloat16
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
