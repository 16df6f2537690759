"""Attention spelled out: found in every spelling, left alone where it must be, and as eager's."""

from __future__ import annotations

import dataclasses
import json

import pytest
import spellings
import torch
from ljcompile import stats
from spellings import CASES, Case
from torch.nn import functional

OPTIONS = {"operators": "always", "strict": True, "cache": False}


def compiled(fn, **options):
    return torch.compile(fn, backend="ljcompile", options=OPTIONS | options)


def worst(got: torch.Tensor, ref: torch.Tensor) -> float:
    gap = (got.double() - ref).abs()
    return gap.nan_to_num().max().item()


def check(case: Case, dtype: torch.dtype, grad: bool, fn=None, args=None) -> None:
    """Result and gradients of a spelling, against eager and a run in float64."""
    args = case.inputs(dtype) if args is None else args
    wide = {k: m.double() if m.is_floating_point() else m for k, m in case.masks.items()}
    exact = dataclasses.replace(case, masks=wide)
    with torch.set_grad_enabled(grad):
        want = spellings.run(case.fn, case, args, grad)
        ref = spellings.run(case.fn, exact, [a.double() for a in args], grad)
        got = spellings.run(fn or compiled(case.fn), case, args, grad)
    assert got[0].stride() == want[0].stride()
    for w, g, r in zip(want, got, ref, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        assert torch.equal(g.isnan(), w.isnan())
        # In float64 a row may be no longer NaN, or be it for another reason.
        r = torch.where(w.isnan(), torch.nan, r)
        size = r.nan_to_num().abs().max().item()
        assert worst(g, r) <= 3 * worst(w, r) + 1e-5 * size + 1e-9


@pytest.mark.parametrize("name", CASES)
def test_spelling(name):
    case = CASES[name]
    for dtype in (torch.float32, torch.bfloat16):
        for grad in (False, True)[: 1 + case.train]:
            torch._dynamo.reset()
            stats.clear()
            check(case, dtype, grad)
            (site,) = stats.sites
            reason = (case.train_reason if grad else None) or case.reason
            assert site.declined == reason
            ran = [f["target"] for r in stats.records for f in r.fallbacks]
            assert any("flash" in t for t in ran) == (reason is None)


@pytest.mark.parametrize("name", ["additive", "causal_tril", "boolean_finite", "batched"])
def test_symbolic_sizes(name):
    case = CASES[name]
    sizes = [(6, 10), (9, 10), (5, 10)] if case.masks else [(6, 10), (9, 12), (5, 7)]
    for length in sizes:
        args = case.inputs(torch.float32, length)
        keep = case.masks
        if name == "boolean_finite":
            case = dataclasses.replace(case, masks={"mask": torch.rand(2, 1, *length) > 0.3})
        torch._dynamo.reset()
        stats.clear()
        fn = torch.compile(case.fn, backend="ljcompile", options=OPTIONS, dynamic=True)
        check(case, torch.float32, False, fn, args)
        assert [s.declined for s in stats.sites] == [None], length
        case = dataclasses.replace(case, masks=keep)


def test_one_graph_for_all_sizes():
    case = CASES["causal_triu"]
    fn = torch.compile(case.fn, backend="ljcompile", options=OPTIONS, dynamic=True)
    for n in (5, 8, 13):
        check(case, torch.float32, True, fn, case.inputs(torch.float32, (n, n)))
    assert len(stats.sites) == 1


def test_mask_with_a_gradient():
    def fn(q, k, v, bias):
        return (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v

    q, k, v = CASES["plain"].inputs(torch.float32)
    bias = torch.randn(1, 4, 6, 10, requires_grad=True)
    got = compiled(fn)(q, k, v, bias)
    (have,) = torch.autograd.grad(got.sum(), [bias])
    (want,) = torch.autograd.grad(fn(q, k, v, bias).sum(), [bias])
    torch.testing.assert_close(have, want)
    assert [s.declined for s in stats.sites] == ["the mask needs a gradient"]
    stats.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(compiled(fn)(q, k, v, bias), fn(q, k, v, bias))
    assert [s.declined for s in stats.sites] == [None]


def test_dropout_is_left_alone():
    def fn(q, k, v):
        return functional.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.5) @ v

    q, k, v = CASES["plain"].inputs(torch.float32)
    compiled(fn)(q, k, v)
    (site,) = stats.sites
    assert site.found
    assert site.declined == "dropout: the kernel draws no random numbers"


def test_autocast():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.matmul((q @ k.transpose(-1, -2) * 0.3).softmax(-1), v)

    q, k, v = CASES["plain"].inputs(torch.float32)
    got, want = compiled(fn)(q, k, v), fn(q, k, v)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    assert [s.declined for s in stats.sites] == [None]


def test_only_where_it_is_faster():
    q, k, v = CASES["plain"].inputs(torch.float32)
    compiled(CASES["plain"].fn, operators="auto")(q, k, v)
    (site,) = stats.sites
    assert site.found
    assert site.declined == "6 × 10 scores: products and a fused softmax are faster"
    stats.clear()
    torch._dynamo.reset()
    fn = compiled(CASES["causal_tril"].fn, operators="auto")
    fn(*(torch.randn(1, 1, 1024, 8) for _ in range(3)))
    assert [s.declined for s in stats.sites] == [None]


def test_explain_counts_them(capsys):
    import ljcompile

    report = ljcompile.explain(CASES["capped"].fn, options=OPTIONS)
    report(*CASES["capped"].inputs(torch.float32))
    assert f"1 x attention: not found: {spellings.MORE}" in capsys.readouterr().out


def test_dump_lists_them(tmp_path):
    case = CASES["plain"]
    compiled(case.fn, dump=str(tmp_path))(*case.inputs(torch.float32))
    (path,) = tmp_path.glob("operators_*.json")
    (site,) = json.loads(path.read_text())
    assert (site["family"], site["found"], site["declined"]) == ("attention", True, None)
    assert "softmax" in site["line"]


def test_graphs_without_softmax_are_not_searched(monkeypatch):
    from ljcompile import _native

    def fail(*args):
        raise AssertionError("searched")

    monkeypatch.setattr(_native, "find_operators", fail)
    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(lambda x: (x @ x).relu())(x), (x @ x).relu())
