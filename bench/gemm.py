"""Matrix products by our kernels and by ATen's, in turns within one process.

Every row is a graph of a few products of one shape with operands of their own, compiled once with
`gemm="own"` and once with `gemm="aten"`: all that differs is who multiplies. The last column is
what `gemm="auto"` chooses.

    gemm.py [--dtypes f32,bf16] [--threads 1,2] [--seconds 0.4] [--only decode]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
#: Bytes that the operands of a row take up together, so that weights come from memory in `decode`.
WORKING_SET = {"decode": 80 << 20}


@dataclass(frozen=True)
class Row:
    """Products of `[m, k]` and `[k, n]`; `layout` says which are transposed in memory."""

    family: str
    name: str
    m: int
    n: int
    k: int
    layout: str = "NN"
    batch: int = 0

    def operands(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        lead = (self.batch,) if self.batch else ()

        def matrix(rows: int, cols: int, transposed: bool) -> Tensor:
            size = (cols, rows) if transposed else (rows, cols)
            x = torch.randn(*lead, *size).to(dtype)
            return x.transpose(-1, -2) if transposed else x

        turned = [c == "T" for c in self.layout]
        return matrix(self.m, self.k, turned[0]), matrix(self.k, self.n, turned[1])

    def copies(self, dtype: torch.dtype) -> int:
        item = torch.empty(0, dtype=dtype).element_size()
        one = item * max(self.batch, 1) * (self.m * self.k + self.k * self.n)
        flops = 2 * max(self.batch, 1) * self.m * self.n * self.k
        amortised = int(max(1, min(8, 2e8 // flops)))
        return max(amortised, WORKING_SET.get(self.family, 0) // one)


def llama() -> Iterator[Row]:
    """The products of the 6-layer Llama of `bench_first`, 512 tokens: forward, gradients."""
    layers = {"q, o": (512, 512), "k, v": (256, 512), "gate, up": (1408, 512), "down": (512, 1408)}
    for name, (n, k) in [*layers.items(), ("head", (8192, 512))]:
        yield Row("forward", name, 512, n, k, "NT")
        yield Row("gradient of x", name, 512, k, n, "NN")
        yield Row("gradient of w", name, n, k, 512, "TN")


ROWS = [
    *llama(),
    Row("attention", "scores", 256, 256, 64, "NT", 16),
    Row("attention", "values", 256, 64, 256, "NN", 16),
    *(Row("decode", f"{m} rows", m, 2048, 2048, "NT") for m in (1, 4, 8, 16, 32)),
    Row("small", "8 x 16 x 4", 8, 16, 4),
    Row("small", "64 x 64 x 64", 64, 64, 64, "NT"),
    Row("large", "2048 x 2048 x 2048", 2048, 2048, 2048, "NT"),
]


def products(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [a @ b for a, b in pairs]


def compiled(gemm: str) -> Callable[[Any], Any]:
    options = {"gemm": gemm, "gemm_budget_ms": 1000}
    return torch.compile(products, backend="ljcompile", dynamic=False, options=options)


def measure(row: Row, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    """Times of one product in microseconds, and the choice."""
    from ljcompile import stats

    torch._dynamo.reset()
    pairs = [row.operands(dtype) for _ in range(row.copies(dtype))]
    calls = {by: compiled(by) for by in ("own", "aten")}
    for call in calls.values():
        call(pairs)
        call(pairs)
    torch._dynamo.reset()
    stats.clear()
    compiled("auto")(pairs)
    (choice,) = stats.records[-1].products
    # Compiled again after the reset.
    for call in calls.values():
        call(pairs)
    times: dict[str, list[float]] = {by: [] for by in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["aten"]) < 8:
        for by, call in calls.items():
            start = time.perf_counter()
            call(pairs)
            times[by].append((time.perf_counter() - start) * 1e6 / len(pairs))
    least = {by: min(t) for by, t in times.items()}
    median = {by: statistics.median(t) for by, t in times.items()}
    return {
        "own": least["own"],
        "aten": least["aten"],
        "ratio": least["own"] / least["aten"],
        "median": median["own"] / median["aten"],
        "auto": choice["by"],
        "reason": choice["reason"],
        "calls": len(times["own"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.4, help="a row")
    parser.add_argument("--only", default="", help="families, comma-separated")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    rows = [r for r in ROWS if not args.only or r.family in args.only.split(",")]
    torch.manual_seed(0)
    found = []
    for dtype in args.dtypes.split(","):
        for threads in map(int, args.threads.split(",")):
            torch.set_num_threads(threads)
            print(f"\n{dtype}, {threads} thread{'s' * (threads > 1)}\n")
            print("| product | own us | ATen us | own / ATen | of medians | auto |")
            print("|---|---|---|---|---|---|")
            for row in rows:
                r = measure(row, DTYPES[dtype], args.seconds)
                batch = f"{row.batch} x " if row.batch else ""
                shape = f"{batch}{row.m} x {row.n} x {row.k} {row.layout}"
                print(
                    f"| {row.family}, {row.name}: {shape} | {r['own']:.1f} | {r['aten']:.1f} "
                    f"| {r['ratio']:.3f} | {r['median']:.3f} | {r['auto']} ({r['reason']}) |",
                    flush=True,
                )
                found.append({"dtype": dtype, "threads": threads, "row": str(row), **r})
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
