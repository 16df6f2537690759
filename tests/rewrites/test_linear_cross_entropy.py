"""Cross-entropy of a linear head: found as models write it, and as eager's in parts."""

from __future__ import annotations

import pytest
import torch
from ljcompile import linear_loss, stats
from torch.nn import functional

OPTIONS = {"operators": "always", "strict": True, "cache": False}
ROWS, FEATURES, CLASSES = 137, 16, 50


def plain(x, w, b, t):
    return functional.cross_entropy(functional.linear(x, w), t)


def with_bias(x, w, b, t):
    return functional.cross_entropy(functional.linear(x, w, b), t, reduction="mean")


def padded_labels(x, w, b, t):
    scores = functional.linear(x.view(1, ROWS, FEATURES), w).float()
    labels = functional.pad(t.view(1, ROWS), (0, 1), value=-100)[..., 1:].contiguous()
    scores, labels = scores.view(-1, CLASSES), labels.view(-1)
    loss = functional.cross_entropy(scores, labels, ignore_index=-100, reduction="sum")
    return loss / 5.0


def shifted_scores(x, w, b, t):
    scores = functional.linear(x.view(1, ROWS, FEATURES), w).float()
    scores = scores[..., :-1, :].contiguous().view(-1, CLASSES)
    labels = t.view(1, ROWS)[..., 1:].contiguous().view(-1)
    return torch.nn.CrossEntropyLoss()(scores, labels)


def tied(x, w, b, t):
    x = x + functional.embedding(t.clamp(0), w)
    return functional.cross_entropy(functional.linear(x, w), t)


def scores_read(x, w, b, t):
    scores = functional.linear(x, w)
    return functional.cross_entropy(scores, t) + scores.sum() * 0.1


def smoothed(x, w, b, t):
    return functional.cross_entropy(functional.linear(x, w), t, label_smoothing=0.1)


REASONS = {scores_read: ["something else reads the scores"], smoothed: []}
FNS = [plain, with_bias, padded_labels, shifted_scores, tied, scores_read, smoothed]


def operands(dtype, ignored):
    g = torch.Generator().manual_seed(1)
    x, w, b = (
        torch.randn(*s, generator=g).to(dtype)
        for s in ((ROWS, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    )
    t = torch.randint(0, CLASSES, (ROWS,), generator=g)
    if ignored:
        t[:: 3 if ignored == "some" else 1] = -100
    return [x, w, b, t]


def run(fn, values, wanted):
    *floats, t = values
    floats = [v.clone().requires_grad_(n) for v, n in zip(floats, wanted, strict=True)]
    loss = fn(*floats, t)
    if loss.requires_grad:
        (loss * 3).backward()
    return [loss.detach(), *(v.grad for v in floats)]


def close(got, want, ref):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.equal(got.isnan(), want.isnan())
    got, want, ref = (v.double().nan_to_num() for v in (got, want, ref))
    limit = 3 * (want - ref).abs().max() + 1e-5 * ref.abs().max() + 1e-9
    assert (got - ref).abs().max() <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("fn", FNS, ids=lambda f: f.__name__)
def test_spelling(fn, dtype, monkeypatch):
    # Parts of 64 rows.
    monkeypatch.setattr(linear_loss, "PART", 1)
    for wanted in ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 0)):
        wanted = [bool(n) for n in wanted]
        torch._dynamo.reset()
        stats.clear()
        compiled = torch.compile(fn, backend="ljcompile", options=OPTIONS)
        for ignored in ("", "some", "all"):
            values = operands(dtype, ignored)
            ref = run(fn, [v.double() if v.is_floating_point() else v for v in values], wanted)
            for got, want, r in zip(
                run(compiled, values, wanted), run(fn, values, wanted), ref, strict=True
            ):
                assert (got is None) == (want is None)
                if want is not None:
                    close(got, want, r)
        assert [s.declined for s in stats.sites] == REASONS.get(fn, [None])


def test_targets_out_of_range():
    x, w, b, t = operands(torch.float32, "")
    t[3] = CLASSES
    with pytest.raises(IndexError, match="out of bounds"):
        torch.compile(plain, backend="ljcompile", options=OPTIONS)(x, w, b, t)


def test_few_scores_are_left_alone():
    auto = OPTIONS | {"operators": "auto"}
    torch.compile(plain, backend="ljcompile", options=auto)(*operands(torch.float32, ""))
    assert [s.declined for s in stats.sites] == ["the scores are few"]


def test_backward_twice():
    x, w, b, t = operands(torch.float32, "some")
    x.requires_grad_()
    loss = torch.compile(plain, backend="ljcompile", options=OPTIONS)(x, w, b, t)
    (first,) = torch.autograd.grad(loss, [x], retain_graph=True)
    (second,) = torch.autograd.grad(loss, [x])
    assert torch.equal(first, second)


def test_symbolic_rows():
    fn = torch.compile(plain, backend="ljcompile", options=OPTIONS, dynamic=True)
    x, w, b, t = operands(torch.float32, "some")
    for n in (137, 20, 90):
        args = x[:n].clone(), w, b, t[:n].clone()
        torch.testing.assert_close(fn(*args), plain(*args))
    assert len(stats.sites) == 1
