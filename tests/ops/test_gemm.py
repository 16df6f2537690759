"""Matrix products by our own kernels: layouts, sizes around every edge, gradients, the choice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import ljcompile
import pytest
import torch
from harness import BACKEND
from ljcompile import stats
from ljcompile.options import Options
from torch import Tensor

pytestmark = pytest.mark.skipif(BACKEND != "ljcompile", reason="our kernels")

OWN = {"options": {"gemm": "own", "cache": False}}
DTYPES = [torch.float32, torch.bfloat16]
EPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

#: Which dims of an operand a layout makes contiguous.
LAYOUTS = ["rows", "columns", "gaps", "offset"]


def has_kernels(dtype: torch.dtype) -> bool:
    flags = next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in x).split()
    return {torch.float32: "avx2", torch.bfloat16: "avx512_bf16"}[dtype] in flags


def draw(shape: tuple[int, ...], dtype: torch.dtype, layout: str, g: torch.Generator) -> Tensor:
    """A random tensor whose last two dims lie in memory as `layout` says."""
    *batch, rows, cols = shape

    def new(*size: int) -> Tensor:
        return torch.randn(*batch, *size, generator=g).to(dtype)

    match layout:
        case "rows":
            return new(rows, cols)
        case "columns":
            return new(cols, rows).transpose(-1, -2)
        case "gaps":
            return new(rows, cols + 3)[..., :cols]
        case "offset":
            return new(cols + 2, rows + 1)[..., 1 : cols + 1, 1:].transpose(-1, -2)
    raise ValueError(layout)


def compiled(fn: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    stats.clear()
    return torch.compile(fn, backend=BACKEND, fullgraph=True, **{**OWN, **options})


def own_products() -> int:
    assert all(r.eager is None for r in stats.records), [r.eager for r in stats.records]
    return sum(r.own_matmuls for r in stats.records)


def check(got: Tensor, eager: Tensor, exact: Tensor, depth: int, scale: float) -> None:
    """At most three times eager's error against float64, and the same metadata."""
    assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    if not exact.numel():
        return
    ours, theirs = ((x.double() - exact).abs().max().item() for x in (got, eager))
    tiny = EPS[got.dtype] * scale * max(depth, 1) ** 0.5
    assert ours <= 3 * theirs + tiny, (ours, theirs, tiny)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_and_sizes_against_eager(dtype):
    if not has_kernels(dtype):
        pytest.skip("no kernels for this machine")
    g = torch.Generator().manual_seed(1)
    sizes = [(13, 35, 20), (40, 33, 64), (1, 70, 96), (5, 40, 33), (64, 3, 40), (17, 1, 50)]

    def products(pairs: list, biases: list) -> list:
        out = []
        for (a, b), bias in zip(pairs, biases, strict=True):
            out += [a @ b, torch.addmm(bias, a, b)]
        return out

    pairs, biases = [], []
    for (m, n, k), (la, lb) in itertools.product(sizes, itertools.product(LAYOUTS, LAYOUTS)):
        pairs.append((draw((m, k), dtype, la, g), draw((k, n), dtype, lb, g)))
        shape = [(n,), (1, n), (m, 1), (m, n), (1,)][len(biases) % 5]
        biases.append(torch.randn(shape, generator=g).to(dtype))
    got = compiled(products)(pairs, biases)
    assert own_products() == len(got)
    eager = products(pairs, biases)
    double = [(a.double(), b.double()) for a, b in pairs]
    exact = products(double, [b.double() for b in biases])
    for i, (a, _) in enumerate(pairs):
        for j in (2 * i, 2 * i + 1):
            check(got[j], eager[j], exact[j], a.shape[1], 4.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_products_in_blocks_and_threads(dtype):
    if not has_kernels(dtype):
        pytest.skip("no kernels for this machine")
    g = torch.Generator().manual_seed(2)
    sizes = [(130, 200, 1100), (300, 70, 2100), (520, 600, 700)]
    pairs = [
        (draw((m, k), dtype, la, g), draw((k, n), dtype, lb, g))
        for (m, n, k), la, lb in itertools.product(sizes, LAYOUTS[:2], LAYOUTS[:2])
    ]

    def products(pairs: list) -> list:
        return [a @ b for a, b in pairs]

    call = compiled(products)
    got = call(pairs)
    assert own_products() == len(got)
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            for x, y in zip(got, call(pairs), strict=True):
                assert torch.equal(x, y), f"{n} threads"
    finally:
        torch.set_num_threads(threads)
    for x, (a, b) in zip(got, pairs, strict=True):
        check(x, a @ b, a.double() @ b.double(), a.shape[1], 4.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(dtype):
    if not has_kernels(dtype):
        pytest.skip("no kernels for this machine")
    g = torch.Generator().manual_seed(3)
    a, b = draw((3, 14, 40), dtype, "rows", g), draw((3, 40, 50), dtype, "columns", g)
    one = draw((1, 40, 50), dtype, "rows", g)
    heads = draw((2, 9, 4 * 16), dtype, "rows", g).view(2, 9, 4, 16).transpose(1, 2)

    def products(a: Tensor, b: Tensor, one: Tensor, heads: Tensor, bias: Tensor) -> list:
        return [
            torch.bmm(a, b),
            torch.bmm(a, one.expand(3, 40, 50)),
            torch.baddbmm(bias, a, b),
            torch.baddbmm(bias[0, :1], a, b),
            heads @ heads.transpose(-1, -2),
            torch.bmm(a[:, :2], b),
        ]

    args = (a, b, one, heads, torch.randn(3, 14, 50, generator=g).to(dtype))
    got = compiled(products)(*args)
    assert own_products() == len(got)
    eager, exact = products(*args), products(*(x.double() for x in args))
    for x, y, z in zip(got, eager, exact, strict=True):
        check(x, y, z, 40, 4.0)


def test_nothing_to_add_up_and_nothing_to_make():
    def products(a: Tensor, b: Tensor, bias: Tensor) -> tuple:
        return a @ b, torch.addmm(bias, a, b)

    for m, n, k in [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (1, 1, 0)]:
        args = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        for x, y in zip(compiled(products)(*args), products(*args), strict=True):
            assert torch.equal(x, y) and x.stride() == y.stride(), (m, n, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dynamic_sizes_with_gradients_through_linear(dtype):
    if not has_kernels(dtype):
        pytest.skip("no kernels for this machine")
    torch.manual_seed(4)
    w, bias = torch.randn(70, 48).to(dtype), torch.randn(70).to(dtype)

    def layer(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, w, bias)

    call = compiled(layer, dynamic=True)
    for rows in (13, 40, 5, 130):
        x, out = torch.randn(rows, 48).to(dtype), torch.randn(rows, 70).to(dtype)
        results = []
        for f, to in ((call, dtype), (layer, dtype), (layer, torch.float64)):
            leaves = [t.detach().to(to).requires_grad_() for t in (x, w, bias)]
            y = f(*leaves)
            y.backward(out.to(to))
            results.append([y.detach(), *(t.grad for t in leaves)])
        for got, eager, exact in zip(*results, strict=True):
            check(got, eager, exact, 130, 4.0)
    assert len(stats.records) == 2 and own_products() == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinities(dtype):
    if not has_kernels(dtype):
        pytest.skip("no kernels for this machine")
    inf, nan = float("inf"), float("nan")
    for m, n, k in [(20, 40, 50), (2, 40, 64)]:
        a, b = torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)
        a[0, 3], a[1, k - 1], b[5, 7], b[k - 1, n - 1] = nan, inf, -inf, nan
        got = compiled(torch.mm)(a, b)
        assert own_products() == 1
        torch.testing.assert_close(got, a @ b, equal_nan=True, rtol=0, atol=0)


def test_what_stays_with_aten():
    def scaled(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(c, a, b, alpha=2.0)

    def products(call: Any, *args: Tensor) -> list[dict]:
        torch.testing.assert_close(compiled(call)(*args), call(*args), rtol=1e-4, atol=1e-4)
        return [p for r in stats.records for p in r.products]

    a, b = torch.randn(6, 8), torch.randn(8, 5)
    (p,) = products(torch.mm, a.double(), b.double())
    assert (p["by"], p["reason"]) == ("aten", "no kernels")
    # Contiguous in no dim.
    (p,) = products(torch.mm, torch.randn(12, 16)[::2, ::2], b)
    assert (p["by"], p["reason"]) == ("aten", "no kernels")
    (p,) = products(scaled, torch.randn(5), a, b)
    assert p["by"] == "own"
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        compiled(torch.mm)(a, b)
    finally:
        torch.set_float32_matmul_precision(precision)
    (p,) = stats.records[-1].products
    assert (p["by"], p["reason"]) == ("aten", "option")
    compiled(torch.mm, options={"gemm": "aten", "cache": False})(a, b)
    (p,) = stats.records[-1].products
    assert (p["by"], p["reason"]) == ("aten", "option")


def test_a_choice_is_reported_and_kept(tmp_path, capsys):
    options = {"cache_dir": str(tmp_path / "cache"), "dump": str(tmp_path / "dump")}
    options |= {"gemm": "auto", "cache": True, "gemm_budget_ms": 500}
    a, b = torch.randn(150, 170), torch.randn(170, 190)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).relu()

    report = ljcompile.explain(product, options=options)(a, b)
    torch.testing.assert_close(report.result, product(a, b))
    (p,) = report.graphs[0].products
    assert p["what"] == "f32 [150,170] @ [170,190]" and p["count"] == 1
    assert p["reason"] == "timed" and p["own_ns"] > 0 and p["aten_ns"] > 0
    assert p["by"] == "aten" or p["own_ns"] < p["aten_ns"]
    assert f"1 x {p['what']} by {p['by']} ({p['reason']}" in capsys.readouterr().out
    (meta,) = (tmp_path / "dump").glob("**/meta.json")
    assert json.loads(meta.read_text())["products"] == [p]
    (schedule,) = (tmp_path / "dump").glob("**/*schedule*")
    assert f"# {p['by']} ({p['reason']}" in schedule.read_text()
    # The same choice, with the same figures, from the disk.
    del options["dump"]
    for _ in range(2):
        again = ljcompile.explain(product, options=options)(a, b)
        assert again.graphs[0].products == [p]
    assert again.graphs[0].cache == "hit"


def test_products_are_timed_while_graphs_are_traced():
    """ATen's call of a measurement must not reach the modes of tracing."""
    torch.manual_seed(5)
    layer = torch.nn.Linear(130, 140)
    x = torch.randn(150, 130, requires_grad=True)
    options = {"gemm": "auto", "cache": False, "gemm_budget_ms": 500}
    call = compiled(layer, options=options)
    call(x).sum().backward()
    assert all(r.eager is None and not r.faults for r in stats.records)
    products = [p for r in stats.records for p in r.products]
    assert len(products) == 3 and all(p["reason"] == "timed" for p in products), products


def test_without_a_budget_the_model_decides():
    options = {"gemm": "auto", "cache": False, "gemm_budget_ms": 0}
    a, b = torch.randn(150, 131), torch.randn(131, 140)
    for _ in range(2):
        compiled(torch.mm, options=options)(a, b)
        (p,) = stats.records[-1].products
        assert p["reason"] == "model" and p["own_ns"] > 0 and p["aten_ns"] > 0


def test_an_unknown_value_of_the_option_is_an_error():
    with pytest.raises(ValueError, match="'gemm': 'mkl'; known: auto, own, aten"):
        Options.parse({"gemm": "mkl"})
