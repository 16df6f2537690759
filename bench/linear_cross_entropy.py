"""Loss of a linear head, forward and backward: time and peak memory, eager against ljcompile.

``make bench-linear-cross-entropy``. Times are interleaved in one process; the peak of each is taken
in a process of its own, over what the operands need anyway.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional

LIMITS = {"memory": 0.4, "time": 1.0}


def loss(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss as language models write it."""
    scores = functional.linear(x, w).float()
    return functional.cross_entropy(scores.view(-1, w.shape[0]), labels.view(-1))


def operands(args: argparse.Namespace) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    dtype = getattr(torch, args.dtype)
    x = torch.randn(1, args.tokens, args.hidden, generator=g).to(dtype).requires_grad_()
    w = (torch.randn(args.classes, args.hidden, generator=g) * 0.02).to(dtype).requires_grad_()
    return [x, w, torch.randint(0, args.classes, (1, args.tokens), generator=g)]


def step(fn, x, w, labels) -> None:
    x.grad = w.grad = None
    fn(x, w, labels).backward()


def compiled():
    return torch.compile(loss, backend="ljcompile")


def peak(args: argparse.Namespace) -> int:
    """Bytes by which a step raises the peak of this process."""
    values = operands(args)
    fn = loss if args.peak == "eager" else compiled()
    # First on fewer tokens, but enough for the loss to be taken in parts: what is compiled holds
    # for any number.
    few = min(args.tokens, (32 << 20) // args.classes + 64)
    some = [values[0][:, :few], values[1], values[2][:, :few]]
    some = [v.detach().clone().requires_grad_(v.requires_grad) for v in some]
    for i in (0, 2):
        torch._dynamo.mark_dynamic(some[i], 1)
    step(fn, *some)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _high_water()
    step(fn, *values)
    return _high_water() - before


def _high_water() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=32_000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peak", choices=["eager", "ljcompile"], help="print one peak")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak:
        print(json.dumps(peak(args)))
        return 0
    peaks = {}
    for which in ("eager", "ljcompile"):
        command = [sys.executable, __file__, *sys.argv[1:], "--peak", which]
        peaks[which] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    values, fns = operands(args), {"eager": loss, "ljcompile": compiled()}
    times: dict[str, list[float]] = {which: [] for which in fns}
    for turn in range(args.repeat + 1):
        for which, fn in fns.items():
            start = time.perf_counter()
            step(fn, *values)
            if turn:
                times[which].append(time.perf_counter() - start)
    ratios = {
        "memory": peaks["ljcompile"] / peaks["eager"],
        "time": statistics.median(
            b / a for a, b in zip(times["eager"], times["ljcompile"], strict=True)
        ),
    }
    print(f"{args.tokens} tokens, {args.classes} classes, {args.hidden} features, {args.dtype}")
    for which in fns:
        least, middle = min(times[which]), statistics.median(times[which])
        print(
            f"  {which:<10} {least * 1e3:8.0f} ms least {middle * 1e3:8.0f} ms median "
            f"{peaks[which] / 2**20:8.0f} MiB"
        )
    for what, ratio in ratios.items():
        print(f"  {what} {ratio:.2f} of eager's (limit {LIMITS[what]})")
    return int(any(ratio > LIMITS[what] for what, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(main())
