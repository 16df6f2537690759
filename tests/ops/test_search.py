"""bucketize, searchsorted and isin, against eager."""

from __future__ import annotations

import harness
import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
SPECIAL = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions(dtype: torch.dtype) -> None:
    """Lengths around powers of two, repeated and special values, both sides, rows, a sorter."""
    g = torch.Generator().manual_seed(1)
    cases = []
    for n in (1, 2, 3, 7, 8, 9, 100):
        rows = harness.draw((3, n), dtype, g, 0, 9)
        values = harness.draw((3, 41), dtype, g, -1, 10)
        if dtype.is_floating_point:
            values[:, :6] = SPECIAL.to(dtype)
            rows[1, : min(n, 6)] = SPECIAL.to(dtype)[:n]
        order = rows.argsort(-1)
        cases.append((rows, rows.sort(-1).values, order, values))

    def every(cases):
        out = []
        for rows, ordered, order, values in cases:
            for right in (False, True):
                out += [torch.bucketize(values, ordered[0], right=right)]
                # Not sorted: eager's steps, eager's positions.
                out += [torch.bucketize(values.mT, rows[0], right=right, out_int32=True)]
                out += [torch.searchsorted(ordered, values, right=right)]
                out += [torch.searchsorted(rows, values, right=right, sorter=order)]
            out += [torch.searchsorted(ordered[1], 3)]
        return out

    for k, (a, b) in enumerate(zip(harness.ours_alone(every, cases), every(cases), strict=True)):
        harness.assert_same(a, b, f"{dtype} result {k}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_membership(dtype: torch.dtype) -> None:
    """Few elements and many, NaN (a member of nothing), mixed dtypes, numbers."""
    g = torch.Generator().manual_seed(2)
    x = harness.draw((5, 60), dtype, g, 0, 90)
    if dtype.is_floating_point:
        x[0, :6] = SPECIAL.to(dtype)
    for n in (0, 1, 5, 40):
        among = x.reshape(-1)[torch.randperm(300, generator=g)[:n]]

        def every(x, among):
            return [
                torch.isin(x, among),
                torch.isin(x.mT, among, invert=True),
                torch.isin(x, among.double()),
                torch.isin(x, 3),
                torch.isin(7, among),
            ]

        got = torch.compile(every, backend="ljcompile")(x, among)
        for k, (a, b) in enumerate(zip(got, every(x, among), strict=True)):
            harness.assert_same(a, b, f"{dtype} {n} elements, result {k}")
