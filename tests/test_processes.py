"""Threads that compile and run at once, and processes forked after a compilation."""

from __future__ import annotations

import os
import threading
import time

import torch

#: Seconds of the thread test; `LJ_STRESS=60 pytest tests/test_processes.py` for the long one.
SECONDS = float(os.environ.get("LJ_STRESS", "4"))


def compiled(fn, **kwargs):
    return torch.compile(fn, backend="ljcompile", **kwargs)


def shared(x, w):
    return torch.softmax(x @ w, -1).sum(0)


def test_threads_compile_and_run_different_and_same_functions():
    """Eight threads: each compiles functions of its own while all call one that is shared."""
    common = compiled(shared, dynamic=True)
    faults: list[str] = []
    rounds = [0] * 8
    end = time.monotonic() + SECONDS

    def work(number: int) -> None:
        g = torch.Generator().manual_seed(number)
        try:
            while time.monotonic() < end or rounds[number] == 0:
                k = rounds[number]
                scale = 1.0 + number + 10 * (k % 3)

                def own(x, scale=scale):
                    return (x * scale).cumsum(-1).tanh() - x.mean(0)

                f = compiled(own)
                for n in (5, 16, 33):
                    x = torch.randn(n, 24, generator=g)
                    w = torch.randn(24, 24, generator=g)
                    for got, want in ((f(x), own(x)), (common(x, w), shared(x, w))):
                        if not torch.allclose(got, want, rtol=1e-5, atol=1e-5):
                            faults.append(f"thread {number}, round {k}, size {n}: {got - want}")
                            return
                rounds[number] += 1
        except Exception as fault:
            faults.append(f"thread {number}: {type(fault).__name__}: {fault}")

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(8)]
    limit = torch._dynamo.config.patch(recompile_limit=64)
    with limit:
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=SECONDS + 200)
    assert not any(t.is_alive() for t in threads), "deadlock"
    assert not faults, "\n".join(faults)
    assert min(rounds) > 0


class Transformed(torch.utils.data.Dataset):
    """Items made by a compiled function, in whatever process asks for them."""

    def __init__(self, fn):
        self.fn = fn

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.fn(torch.full((300, 500), float(i)))


def test_forked_workers_run_and_compile():
    """A DataLoader's workers, forked after kernels have run in parallel in their parent."""

    def transform(x):
        return torch.softmax(x + torch.arange(500.0), -1) * 2

    fn = compiled(transform)
    big = torch.randn(2000, 500)
    torch.testing.assert_close(fn(big), transform(big))
    items = Transformed(fn)
    fn(items[0])
    loader = torch.utils.data.DataLoader(
        items, batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=120
    )
    for at, batch in enumerate(loader):
        for k in range(4):
            want = transform(torch.full((300, 500), float(4 * at + k)))
            torch.testing.assert_close(batch[k], want)
    # The parent goes on as before.
    torch.testing.assert_close(fn(big), transform(big))
    # A worker that must compile anew.
    later = Transformed(compiled(lambda x: x.cos().sum(0)))
    loader = torch.utils.data.DataLoader(
        later, batch_size=6, num_workers=1, multiprocessing_context="fork", timeout=120
    )
    first = next(iter(loader))
    torch.testing.assert_close(first[3], torch.full((300, 500), 3.0).cos().sum(0))


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_compilations_do_not_leak():
    """Memory after many compiles and resets is what it was after the first few."""
    import gc

    count = int(os.environ.get("LJ_COMPILES", "60"))
    x = torch.randn(64, 33)
    sizes = {}
    for k in range(count):
        torch._dynamo.reset()

        def f(x, k=k):
            return torch.softmax(x * (k % 7), -1).sum(0) + x[:, ::2].mean()

        compiled(f)(x)
        if k + 1 in (count // 3, count):
            gc.collect()
            sizes[k + 1] = resident()
    small, large = sizes[count // 3], sizes[count]
    assert large < 1.05 * small + (8 << 20), f"{small >> 20} MiB, later {large >> 20} MiB"
