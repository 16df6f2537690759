"""How a compiled function meets its caller: mutation, aliases, grad modes, autocast, threads."""

from __future__ import annotations

import threading

import harness
import pytest
import torch
from torch import nn


def test_mutated_inputs() -> None:
    def fn(x, y):
        x.add_(1)
        y[1:].mul_(2)
        x.t()[0].zero_()
        return x * y.sum()

    a, b = torch.randn(5, 4), torch.randn(5, 4)
    ours, eager = (a.clone(), b.clone()), (a.clone(), b.clone())
    harness.assert_same(harness.compiled(fn)(*ours), fn(*eager), "result", looser=4)
    harness.assert_same(ours, eager, "inputs")


def test_mutated_view_of_a_larger_tensor() -> None:
    def fn(x):
        x.mul_(3)
        return x + 1

    base = torch.randn(6, 8)
    ours, eager = base.clone(), base.clone()
    harness.assert_same(harness.compiled(fn)(ours[1::2, ::3]), fn(eager[1::2, ::3]), "result")
    harness.assert_same(ours, eager, "base")


def test_same_tensor_twice() -> None:
    def fn(x, y):
        x.add_(y)
        return x * y

    ours, eager = torch.ones(7), torch.ones(7)
    harness.assert_same(harness.compiled(fn)(ours, ours), fn(eager, eager), "result")
    harness.assert_same(ours, eager, "input")


def test_outputs_that_alias_inputs() -> None:
    def fn(x):
        return x, x.t(), x[1:], x + 0, x.view(-1)

    x = torch.randn(4, 6)
    out = harness.compiled(fn)(x)
    harness.assert_same(out, fn(x), "values")
    assert out[0] is x
    for i in (1, 2, 4):
        assert out[i].untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), i
        assert out[i]._base is x
    out[2].zero_()
    assert x[1:].eq(0).all()


def test_outputs_do_not_alias_the_arena() -> None:
    def fn(x):
        y = x * 2
        return y, y.sum(-1)

    call = harness.compiled(fn)
    x = torch.randn(64, 64)
    first = call(x)
    kept = [t.clone() for t in first]
    call(x + 1)
    call(x + 2)
    harness.assert_same(first, kept, "a result of the first call")


def test_output_returned_twice() -> None:
    def fn(x):
        y = x + 1
        return y, y, y.view(-1)

    a, b, c = harness.compiled(fn)(torch.zeros(3, 2))
    a.fill_(7)
    assert b.eq(7).all() and c.eq(7).all()


def test_grad_modes() -> None:
    def fn(x, w):
        return (x @ w).relu().sum(-1)

    x, w = torch.randn(5, 6), torch.randn(6, 7, requires_grad=True)
    call = harness.compiled(fn)
    expected = fn(x, w).detach()
    with torch.no_grad():
        out = call(x, w)
        assert not out.requires_grad
        harness.assert_same(out, expected, "no_grad", looser=4)
    with torch.inference_mode():
        harness.assert_same(call(x, w).clone(), expected, "inference_mode", looser=4)
    out = call(x, w)
    assert out.requires_grad
    out.sum().backward()
    (eager,) = torch.autograd.grad(fn(x, w).sum(), w)
    harness.assert_same(w.grad, eager, "gradient", looser=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
    x = torch.randn(4, 16)

    def run(call):
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            out = call(x)
            loss = out.softmax(-1).square().mean()
        loss.backward()
        return out, loss, *[p.grad.clone() for p in model.parameters()]

    eager = run(model)
    ours = run(harness.compiled(model))
    harness.assert_same(ours, eager, f"{dtype}", looser=4e3 if dtype == torch.bfloat16 else 1e3)


def test_autocast_inside() -> None:
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float() + 1, y

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    harness.assert_same(harness.compiled(fn)(x, w), fn(x, w), "autocast", looser=4)


def test_threads_call_one_function() -> None:
    def fn(x, w):
        return (x @ w).softmax(-1) * x.sum(-1, keepdim=True)

    call = harness.compiled(fn)
    w = torch.randn(32, 32)
    call(torch.randn(64, 32), w)
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        try:
            for _ in range(30):
                x = torch.randn(64, 32, generator=g)
                harness.assert_same(call(x, w), fn(x, w), f"thread {seed}", looser=10)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


def test_threads_train() -> None:
    """Forward and backward from several threads, each with its own gradients."""

    def fn(x, w):
        return torch.tanh(x * w).sum()

    call = harness.compiled(fn)
    call(torch.randn(500), torch.randn(500, requires_grad=True)).backward()
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        try:
            for _ in range(20):
                x = torch.randn(500, generator=g)
                w = torch.randn(500, generator=g, requires_grad=True)
                call(x, w).backward()
                (eager,) = torch.autograd.grad(fn(x, w), w)
                harness.assert_same(w.grad, eager, f"thread {seed}", looser=4)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


def test_batch_norm_statistics() -> None:
    torch.manual_seed(0)
    eager, ours = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    call = harness.compiled(ours)
    for step in range(4):
        x = torch.randn(5, 6)
        harness.assert_same(call(x), eager(x), f"step {step}", looser=10)
    harness.assert_same(list(ours.buffers()), list(eager.buffers()), "statistics", looser=4)
    eager.eval(), ours.eval()
    harness.assert_same(call(x), eager(x), "eval", looser=4)


def test_gradient_accumulation_and_retained_graph() -> None:
    def fn(x, w):
        return (x * w).exp().mean()

    x, w = torch.randn(40), torch.randn(40, requires_grad=True)
    loss = harness.compiled(fn)(x, w)
    loss.backward(retain_graph=True)
    once = w.grad.clone()
    loss.backward()
    harness.assert_same(w.grad, 2 * once, "accumulated")


def test_error_at_run_time_and_the_call_after_it() -> None:
    """An index out of range raises as in eager, and the function still works."""

    def fn(table, index):
        return table[index] * 2

    call = harness.compiled(fn)
    table = torch.randn(5, 3)
    good = torch.tensor([0, 4, 2])
    harness.assert_same(call(table, good), fn(table, good), "before")
    with pytest.raises((IndexError, RuntimeError)):
        call(table, torch.tensor([0, 5, 2]))
    harness.assert_same(call(table, good), fn(table, good), "after")


def test_random_ops_follow_the_seed() -> None:
    def fn(x):
        return nn.functional.dropout(x, 0.5), torch.rand_like(x)

    call = harness.compiled(fn)
    x = torch.ones(1000)
    torch.manual_seed(3)
    first = call(x)
    torch.manual_seed(3)
    harness.assert_same(call(x), first, "one seed")
    assert not torch.equal(call(x)[1], first[1])
    assert 350 < int((first[0] == 0).sum()) < 650
    assert torch.isin(first[0], torch.tensor([0.0, 2.0])).all()


def test_scalar_and_none_arguments() -> None:
    def fn(x, scale, bias, flag):
        y = x * scale
        if bias is not None:
            y = y + bias
        return y if flag else -y

    call = harness.compiled(fn)
    x = torch.randn(9)
    for args in [(2.0, None, True), (3, x, False), (2.5, x, True)]:
        harness.assert_same(call(x, *args), fn(x, *args), f"{args[0]}")


def test_conjugate_and_negative_bits() -> None:
    """Tensors that are the conjugate or the negative of what lies in their memory."""

    def fn(x):
        return x.clone(), x * 2, x.t().reshape(-1)

    x = torch.randn(3, 4, dtype=torch.complex64).conj()
    harness.assert_same(harness.compiled(fn)(x), fn(x), "conjugate")
    imaginary = x.imag
    assert imaginary.is_neg()
    harness.assert_same(harness.compiled(fn)(imaginary), fn(imaginary), "negative")


def test_negative_bit_of_a_gradient() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    given = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    (ours,) = torch.autograd.grad(harness.compiled(lambda x: x * 2)(x), x, given)
    harness.assert_same(ours, given * 2, "gradient")


def test_complex_input_overwritten() -> None:
    def fn(x, y):
        y.copy_(x.t().reshape(4, 3))
        return x.t().clone()

    x = torch.randn(4, 3, dtype=torch.complex64)
    ours, eager = torch.zeros(4, 3, dtype=x.dtype), torch.zeros(4, 3, dtype=x.dtype)
    harness.assert_same(harness.compiled(fn)(x, ours), fn(x, eager), "result")
    assert torch.equal(ours, eager)


def test_index_read_from_a_tensor() -> None:
    """A view whose place is known at run time only is a view of the input all the same."""

    def fn(x, i):
        n = i.item()
        torch._check(n >= 0)
        torch._check(n <= 5)
        return x[:, n : n + 3], (x * 2)[:, :n] + 1

    x = torch.randn(4, 10, 3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        call = harness.compiled(fn, dynamic=False)
        for n in (0, 2, 5):
            found, wanted = call(x, torch.tensor(n)), fn(x, torch.tensor(n))
            harness.assert_same(found, wanted, str(n))
            assert found[0].data_ptr() == wanted[0].data_ptr()
