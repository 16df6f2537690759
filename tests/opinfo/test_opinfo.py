"""A fixed sample of PyTorch's operator database, and the judge itself."""

from __future__ import annotations

import pytest
import torch
from judge import differs, values
from run_opinfo import run
from sample import STEPS, chosen


@pytest.mark.timeout(900)
@pytest.mark.parametrize("operators", [True, False], ids=["operators", "others"])
def test_sample(operators: bool) -> None:
    """Values, dtypes, shapes, strides, gradients, mutation and errors are eager's."""
    names, results = chosen([name for name in STEPS if (name == "op") == operators]), []
    run(names, 2, 100, 240.0, results.append)
    assert {r["done"] for r in results} == set(names)
    bad = [f"{r['done']}: {r['status']}\n{r['detail']}" for r in results if r["status"] != "ok"]
    assert not bad, "\n".join(bad)
    assert sum(r["counts"]["graphs"] for r in results) > len(names) // 2


def tensor(*items: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(items, dtype=dtype)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "eager"),
    [
        (tensor(1.0, 2.0), tensor(1.0, 2.001)),
        (tensor(1.0, NAN), tensor(1.0, 2.0)),
        (tensor(1.0, INF), tensor(1.0, -INF)),
        (tensor(1.0, INF), tensor(1.0, NAN)),
        (tensor(1, 2, dtype=torch.int64), tensor(1, 3, dtype=torch.int64)),
        (tensor(1.0, 1.03, dtype=torch.bfloat16), tensor(1.0, 1.0, dtype=torch.bfloat16)),
        (tensor(1 + 1j, dtype=torch.complex64), tensor(1 - 1j, dtype=torch.complex64)),
    ],
)
def test_judge_sees_values(ours: torch.Tensor, eager: torch.Tensor) -> None:
    assert values(ours, eager, lambda: None)
    assert not values(eager.clone(), eager, lambda: None)


@pytest.mark.parametrize(
    ("ours", "eager"),
    [
        (torch.ones(2, 3), torch.ones(3, 2)),
        (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64)),
        (torch.ones(2, 3), torch.ones(3, 2).t()),
        (torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)),
        (None, torch.ones(2)),
        (1, 1.0),
    ],
)
def test_judge_sees_kinds(ours: object, eager: object) -> None:
    assert differs(ours, eager, "outputs", lambda: None)


def test_judge_allows_what_eager_does() -> None:
    """An error like eager's own against a run in doubles, not more than four times of it."""
    exact = tensor(1.0, 1.0, dtype=torch.float64)
    eager = tensor(1.0, 1.0 + 1e-5)
    assert not values(tensor(1.0 - 2e-5, 1.0), eager, lambda: exact)
    assert values(tensor(1.0 - 5e-5, 1.0), eager, lambda: exact)
