"""The backend as a user meets it: by name, its options, its calling modes, its cache."""

import os
import pathlib
import threading

import ljcompile
import pytest
import torch
from torch import nn


def compiled(fn, **kwargs):
    return torch.compile(fn, backend="ljcompile", **kwargs)


def same(a, b, tol=1e-6):
    assert type(a) is type(b)
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y, tol)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=tol, atol=tol, equal_nan=True)
    else:
        assert a == b


def check(fn, *args, **kwargs):
    torch._dynamo.reset()
    expected = fn(*args)
    same(compiled(fn, **kwargs)(*args), expected)
    eager = [r.eager for r in ljcompile.records if r.eager]
    assert not eager, eager


def test_by_name_without_import(script):
    done = script(
        """
        import sys, torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        x = torch.randn(3, 4)
        out = torch.compile(model, backend="ljcompile")(x)
        assert torch.allclose(out, model(x), atol=1e-6)
        out.sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        assert all(torch.allclose(g, p.grad, atol=1e-6) for g, p in zip(grads, model.parameters()))
        from ljcompile import records
        assert [r.name for r in records] == ["forward", "backward"], records
        assert not any(r.eager for r in records), records
        print("kernels", sum(r.kernels for r in records))
        """
    )
    assert int(done.stdout.split()[-1]) >= 2


def test_import_of_torch_loads_next_to_nothing(script):
    done = script(
        """
        import torch, sys
        print(sorted(m for m in sys.modules if m.startswith("ljcompile")))
        """
    )
    assert done.stdout.strip() == (
        "['ljcompile', 'ljcompile.integrations', 'ljcompile.integrations.autoload']"
    )


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"rewrit": False}, ValueError, "did you mean 'rewrite'"),
        ({"zzz": 1}, ValueError, "known: "),
        ({"rewrite": 1}, TypeError, "'rewrite' must be bool, not int"),
        ({"node_limit": "many"}, TypeError, "'node_limit' must be int, not str"),
        ({"node_limit": 0}, ValueError, "must be at least 1"),
        ({"fence": "around"}, ValueError, "known: before, after"),
    ],
)
def test_wrong_options_are_errors(options, error, words):
    def f(x):
        return x + 1

    with pytest.raises(Exception) as caught:
        compiled(f, options=options)(torch.ones(3))
    chain = [caught.value]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = str(caught.value)
    assert (words in text and error.__name__ in text) or any(isinstance(e, error) for e in chain), (
        text
    )
    assert words in text
    torch._dynamo.reset()
    assert compiled(f)(torch.ones(3)).tolist() == [2, 2, 2]


def test_modes():
    def f(x):
        return x * 2

    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        assert compiled(f, mode=mode)(torch.ones(2)).tolist() == [2, 2]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="unknown mode 'max-autotun'; did you mean 'max-autotune'"):
        compiled(f, mode="max-autotun")(torch.ones(2))


def test_options_are_accepted():
    def f(x):
        return torch.relu(x) * 2

    check(f, torch.randn(7), options={"rewrite": False, "cache": False})


@pytest.mark.parametrize("fence", ["before", "after"])
def test_kernels_between_guard_pages(fence):
    """Every form of kernel, on odd sizes, with inaccessible memory beside its buffers."""

    def f(x, w, index):
        y = torch.softmax(x * w, -1) + x.sum(0)
        z = torch.cat([y[index], x.t()[:5, :17].reshape(5, 17)])
        return y, x.to(torch.bfloat16), z.mean(1), x.argmax(0), torch.nn.functional.pad(z, (1, 2))

    x, w, index = torch.randn(17, 17), torch.randn(17), torch.randint(0, 17, (9,))
    same(compiled(f, options={"fence": fence})(x, w, index), f(x, w, index))


def test_reset_forgets():
    def f(x):
        return x + 1

    compiled(f)(torch.ones(3))
    assert ljcompile.counters["graphs"] == 1
    torch._dynamo.reset()
    assert ljcompile.counters["graphs"] == 0


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_sizes_compile_once(dynamic):
    def f(x, w):
        h = torch.softmax(x @ w, -1)
        return h.sum(0), h.reshape(-1)[: x.shape[0]] * x.shape[0]

    w = torch.randn(5, 6)
    g = compiled(f, dynamic=dynamic)
    for n in (3, 4, 9, 17, 2, 33):
        x = torch.randn(n, 5)
        same(g(x, w), f(x, w))
    # Without `dynamic` Dynamo specialises the first size, then generalises.
    assert ljcompile.counters["graphs"] == (1 if dynamic else 2), ljcompile.records
    assert ljcompile.counters["eager_graphs"] == 0


def test_dynamic_training():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    g = compiled(model, dynamic=True)
    for n in (4, 7, 12):
        x = torch.randn(n, 6)
        got = torch.autograd.grad(g(x).square().sum(), list(model.parameters()))
        want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        same(list(got), list(want), 1e-4)
    assert ljcompile.counters["graphs"] == 2
    assert ljcompile.counters["eager_graphs"] == 0


INPUTS = {
    "0-d": lambda: torch.tensor(2.5),
    "empty": lambda: torch.randn(0, 4),
    "empty inner": lambda: torch.randn(3, 0),
    "transposed": lambda: torch.randn(4, 3).t(),
    "strided": lambda: torch.randn(6, 8)[::2, 1::2],
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "offset": lambda: torch.randn(5, 4)[2:],
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", INPUTS)
def test_input_layouts(name):
    def f(x):
        return x * 2 + 1, x.sum(), torch.where(x > 0, x, -x)

    check(f, INPUTS[name]())


def test_outputs_that_alias_inputs():
    x = torch.randn(4, 6)

    def f(x):
        return x, x.t(), x[1:3], x + 1

    g = compiled(f)
    out = g(x)
    assert out[0] is x
    assert out[1].data_ptr() == x.data_ptr() and out[1].stride() == (1, 6)
    assert out[2].data_ptr() == x[1:].data_ptr()
    same(out[3], x + 1)


@pytest.mark.filterwarnings("ignore:ljcompile. a captured graph")
def test_outputs_that_alias_overlapping_inputs():
    """Inputs that overlap, one changed, and a view of the other returned: memory as in eager."""

    def row(base, tail):
        base.add_(100)
        return tail[0]

    def item(base, tail):
        base[1] = 7.0
        return tail.view(-1), base[0]

    def only_read(base, tail):
        return tail[0], base + 1

    for fn in (row, item, only_read):
        results = []
        for call in (fn, compiled(fn)):
            base = torch.arange(24.0).reshape(4, 6)
            out = call(base, base[1:])
            first = out if isinstance(out, torch.Tensor) else out[0]
            before = first.clone()
            first.fill_(-5.0)
            results.append((before, base))
        for got, want in zip(results[1], results[0]):
            assert torch.equal(got, want), fn.__name__


def test_mutated_inputs():
    def f(x, buffer):
        buffer.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x[0] = 7
        return x * buffer

    a, b = torch.randn(4, 3), torch.randn(3)
    a2, b2 = a.clone(), b.clone()
    want = f(a, b)
    got = compiled(f)(a2, b2)
    same((got, a2, b2), (want, a, b))


def test_batchnorm_statistics():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    import copy

    other = copy.deepcopy(model)
    g = compiled(other)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        want, got = model(x), g(x)
        same(got, want, 1e-5)
        want.square().sum().backward()
        got.square().sum().backward()
    for (k, a), (_, b) in zip(model.state_dict().items(), other.state_dict().items()):
        torch.testing.assert_close(b, a, msg=k)
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)


def test_grad_modes():
    model = nn.Linear(4, 4)
    g = compiled(lambda x: torch.tanh(model(x)).sum())
    x = torch.randn(2, 4)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            out = g(x)
            same(out, torch.tanh(model(x)).sum())
        assert out.requires_grad == (context is torch.enable_grad)


def test_retain_graph():
    w = torch.randn(3, requires_grad=True)
    out = compiled(lambda w: (w.exp() * w).sum())(w)
    out.backward(retain_graph=True)
    first = w.grad.clone()
    out.backward()
    same(w.grad, first * 2)


def test_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    x = torch.randn(4, 8)
    g = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        want, got = model(x), g(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_dropout_draws_one_mask():
    x = torch.randn(64, 64, requires_grad=True)
    y = compiled(lambda x: torch.nn.functional.dropout(x * 2, 0.5))(x)
    y.sum().backward()
    assert ((x.grad != 0) == (y != 0)).all()
    assert 0.3 < (y == 0).float().mean() < 0.7


def test_many_threads_at_once():
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    g = compiled(model)
    inputs = [torch.randn(16, 32) for _ in range(4)]
    with torch.no_grad():
        want = [model(x) for x in inputs]
        g(inputs[0])
        wrong = []

        def work(i):
            with torch.no_grad():
                for _ in range(50):
                    if not torch.allclose(g(inputs[i]), want[i], atol=1e-5):
                        wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_python_operators_and_custom_ops():
    @torch.library.custom_op("ljtest::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    check(lambda x: twice(x + 1) * 3, torch.randn(5))
    (record,) = ljcompile.records
    assert [f["target"] for f in record.fallbacks] == ["ljtest.twice.default"]
    assert record.fallbacks[0]["reason"]


def test_saved_activations_are_freed():
    import gc
    import weakref

    g = compiled(lambda x, w: ((x @ w).exp() * x).sum())
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    out = g(x, w)
    out.backward()
    refs = [weakref.ref(x), weakref.ref(out)]
    del x, out
    gc.collect()
    assert [r() for r in refs] == [None, None]


CACHED = """
    import torch, ljcompile, json
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    x = torch.randn(4, 8)
    out = torch.compile(model, backend="ljcompile")(x)
    out.square().sum().backward()
    assert torch.allclose(out, model(x), atol=1e-5)
    print(json.dumps([r.cache for r in ljcompile.records]))
"""


def entries(path):
    return [os.path.join(d, f) for d, _, files in os.walk(path) for f in files]


def test_cache_across_processes(script, tmp_path):
    env = {"LJCOMPILE_CACHE_DIR": str(tmp_path / "shared")}
    assert script(CACHED, env=env).stdout.strip() == '["miss", "miss"]'
    assert script(CACHED, env=env).stdout.strip() == '["hit", "hit"]'


@pytest.mark.parametrize(
    "damage",
    {
        "truncated": lambda data: data[: len(data) // 2],
        "empty": lambda data: b"",
        "flipped": lambda data: data[:-40] + bytes([data[-40] ^ 0x55]) + data[-39:],
        "foreign": lambda data: b"another version" + data[15:],
        "random": lambda data: os.urandom(len(data)),
    }.items(),
    ids=lambda item: item[0],
)
def test_damaged_cache_entries_are_rewritten(damage, tmp_path):
    def f(x):
        return torch.softmax(x * 3, -1) + 1

    x = torch.randn(3, 5)
    options = {"cache_dir": str(tmp_path / "shared")}
    run = lambda: compiled(f, options=options)(x)  # noqa: E731
    same(run(), f(x))
    files = entries(tmp_path / "shared")
    assert files
    for path in files:
        data = pathlib.Path(path).read_bytes()
        pathlib.Path(path).write_bytes(damage[1](data))
    for expected in ("miss", "hit"):
        torch._dynamo.reset()
        same(run(), f(x))
        assert [r.cache for r in ljcompile.records] == [expected]


def test_cache_tells_graphs_apart(tmp_path):
    options = {"cache_dir": str(tmp_path / "shared")}
    for c in (1.0, 2.0, float("inf"), -float("inf"), float("nan")):
        torch._dynamo.reset()
        x = torch.randn(3)
        same(
            compiled(lambda x, c=c: torch.clamp(x, max=c) * c, options=options)(x),
            torch.clamp(x, max=c) * c,
        )
    assert ljcompile.records[-1].cache == "miss"
