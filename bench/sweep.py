"""Time per token over 32 lengths × 4 batch sizes, one dynamic compile: ``make bench-sweep``.

A kernel whose inner length is no multiple of the vector width has a masked tail. For every length
this prints the time per token, forward and backward, as a ratio to the nearest multiples of 16
(interpolated), so that what the tails cost shows whatever the rest of the model does.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

WIDTH = 16
LENGTHS = range(97, 129)
BATCHES = (1, 2, 4, 8)


def model(name: str) -> torch.nn.Module:
    """A decoder of four layers with a hidden size of 256."""
    from transformers import AutoConfig, AutoModelForCausalLM

    size = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    if name == "gpt2":
        size = {"n_embd": 256, "n_layer": 4, "n_head": 4}
    else:
        size |= {"intermediate_size": 704, "num_key_value_heads": 2}
    config = AutoConfig.for_model(name, vocab_size=1000, use_cache=False, **size)
    return AutoModelForCausalLM.from_config(config)


def measure(name: str, rounds: int) -> dict[tuple[int, int], float]:
    """Seconds of a step by `(batch, length)`: the least of interleaved rounds."""
    torch.manual_seed(0)
    module = model(name).train()
    compiled = torch.compile(module, backend="ljcompile", dynamic=True)
    ids = torch.randint(0, 1000, (max(BATCHES), max(LENGTHS)))
    best: dict[tuple[int, int], float] = {}
    for turn in range(rounds + 1):
        for batch in BATCHES:
            for length in LENGTHS:
                x = ids[:batch, :length].contiguous()
                start = time.perf_counter()
                compiled(input_ids=x, labels=x).loss.backward()
                seconds = time.perf_counter() - start
                module.zero_grad(set_to_none=True)
                if turn:
                    key = (batch, length)
                    best[key] = min(best.get(key, seconds), seconds)
    return best


def ratios(best: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Time per token at lengths that are no multiple of the width over that at those around."""
    found = {}
    for (batch, length), seconds in best.items():
        low = length // WIDTH * WIDTH
        around = [n for n in (low, low + WIDTH) if n in LENGTHS]
        if length % WIDTH and around:
            at = statistics.mean(best[batch, n] / n for n in around)
            found[batch, length] = seconds / length / at
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="llama,qwen2,gpt2")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for name in args.models.split(","):
        found = ratios(measure(name, args.rounds))
        print(f"{name}: time per token at lengths with a tail over that at multiples of {WIDTH}")
        for batch in BATCHES:
            row = [r for (b, _), r in found.items() if b == batch]
            length = max((r, n) for (b, n), r in found.items() if b == batch)[1]
            print(
                f"  batch {batch}: median {statistics.median(row):.3f}, "
                f"largest {max(row):.3f} (length {length})"
            )


if __name__ == "__main__":
    main()
