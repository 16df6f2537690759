"""Trains a small Llama for 50 steps eagerly and with ljcompile, step by step side by side.

The text is whatever is at hand (the system's licence files, else Python's own), read as bytes.
Both models start from the same weights and see the same batches; dropout is zero. Prints both
loss curves, times and what was compiled; writes `out/demo.png`. Ends with an error when the
curves differ by more than 1e-3, relative, at any step.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-3


def corpus() -> tuple[str, Tensor]:
    """Some real text that is on this machine, as byte tokens, and where it is from."""
    candidates = [
        *sorted(Path("/usr/share/common-licenses").glob("*GPL-3")),
        Path("/usr/share/common-licenses/Apache-2.0"),
        Path(sysconfig.get_path("stdlib")) / "LICENSE.txt",
        Path(sysconfig.get_path("stdlib")) / "argparse.py",
        ROOT / "README.md",
    ]
    found = [path for path in candidates if path.is_file()]
    data = b"\n".join(path.read_bytes() for path in found)
    names = ", ".join(path.name for path in found)
    return names, torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def build_model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=512,
            attention_dropout=0.0,
            use_cache=False,
        )
    )


class Run:
    """One model with its optimizer, and what its steps gave."""

    def __init__(self, name: str, model: nn.Module, call: Callable) -> None:
        self.name, self.call = name, call
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Tensor) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.call(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)

    @property
    def first(self) -> float:
        return self.seconds[0]

    @property
    def steady(self) -> float:
        return statistics.median(self.seconds[1:])


def draw(runs: list[Run], split: dict[str, float], path: Path) -> None:
    """The loss curves, and where the first call's time went."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for run, style in zip(runs, ("-", "--"), strict=True):
        left.plot(run.losses, style, label=run.name)
    left.set(title="loss", xlabel="step", ylabel="cross-entropy, nats per byte")
    left.legend()
    bars = middle.bar([r.name for r in runs], [r.steady * 1e3 for r in runs], color=["C0", "C1"])
    middle.bar_label(bars, fmt="%.1f")
    middle.set(title="steady step (median)", ylabel="ms")
    right.barh(list(split), list(split.values()), color="C1")
    right.invert_yaxis()
    right.set(title=f"first compiled step: {runs[1].first:.2f} s", xlabel="seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--backend", default=os.environ.get("LJ_BACKEND", "ljcompile"))
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo.png")
    options = parser.parse_args()

    # The first step is to show a whole compilation, not what an earlier run left in the cache.
    os.environ.setdefault("LJCOMPILE_CACHE", "0")
    torch.manual_seed(0)
    source, text = corpus()
    eager_model = build_model()
    model = copy.deepcopy(eager_model)
    runs = [
        Run("eager", eager_model, eager_model),
        Run(options.backend, model, torch.compile(model, backend=options.backend)),
    ]
    count = sum(p.numel() for p in model.parameters())
    print(f"Llama, {count / 1e6:.1f} M parameters; {len(text)} bytes of text from {source}")
    print(f"batch {options.batch} x {options.length} tokens, {options.steps} steps of AdamW\n")
    print(f"{'step':>4} {'eager loss':>11} {runs[1].name + ' loss':>15} {'difference':>11}")

    sys.path.insert(0, str(ROOT / "bench"))
    from compile_split import Watch

    generator = torch.Generator().manual_seed(7)
    worst = 0.0
    watch = Watch()
    for step in range(options.steps):
        starts = torch.randint(0, len(text) - options.length, (options.batch,), generator=generator)
        batch = torch.stack([text[s : s + options.length] for s in starts.tolist()])
        runs[0].step(batch)
        with watch:
            runs[1].step(batch)
        eager, ours = (run.losses[-1] for run in runs)
        gap = abs(ours - eager) / abs(eager)
        worst = max(worst, gap)
        if step < 5 or step % 5 == 4:
            print(f"{step + 1:4} {eager:11.6f} {ours:15.6f} {gap:11.1e}")

    tokens = options.batch * options.length
    print(f"\n{'':16} {'first step':>11} {'steady step':>12} {'tokens/s':>10}")
    for run in runs:
        rate = tokens / run.steady
        print(f"{run.name:16} {run.first:9.2f} s {run.steady * 1e3:9.1f} ms {rate:10.0f}")
    print(f"speed-up of a steady step: {runs[0].steady / runs[1].steady:.2f} x\n")

    split = watch.split(runs[1].first)
    print("first compiled step, seconds by part:")
    for part, seconds in split.items():
        print(f"  {part:34} {seconds:7.3f}")
    print()
    print(watch.summary())
    draw(runs, split, options.out)
    print(f"\npicture: {options.out}")

    print(f"largest relative difference of the losses: {worst:.1e} (allowed {TOLERANCE:.0e})")
    if not worst <= TOLERANCE:
        print("FAILED: the loss curves differ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
