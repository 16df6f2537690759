"""Attention in eager form: found or not, in every model of the zoo: ``make report-attention``.

Models run with ``attn_implementation="eager"``. For each model and mode this prints how many
softmaxes feed a product in eager's run, how many operators were found in the captured graphs (a
frame that runs several times is captured once), in how many places one operator stands now, and why
not in the others. By default (``--operators always``) one is put wherever that is legal, whether it
is faster or not.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import ljcompile
import torch
from ljcompile import stats
from torch.overrides import TorchFunctionMode

HERE = Path(__file__).resolve().parent
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "__matmul__", "__rmatmul__"}
PASSING = """
dropout to float type type_as half bfloat16 contiguous clone view reshape expand unsqueeze squeeze
transpose permute flatten
""".split()  # noqa: SIM905
#: Models whose attention is no scaled dot product with a mask throughout, and why.
OTHERS = {
    "big_bird": "blocks of keys: weights of one softmax meet several blocks of values",
    "mask2former": "deformable attention has no products",
}


class Counting(TorchFunctionMode):
    """Counts softmaxes that feed a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, tuple[torch.Tensor, int]] = {}
        self.used: set[int] = set()
        self.made = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        operands = [a for a in args if isinstance(a, torch.Tensor)]
        marks = [self.weights[id(a)][1] for a in operands if id(a) in self.weights]
        if name == "softmax" and isinstance(out, torch.Tensor):
            self.made += 1
            self.weights[id(out)] = (out, self.made)
        elif name in PASSING and marks and isinstance(out, torch.Tensor):
            self.weights[id(out)] = (out, marks[0])
        elif name in PRODUCTS:
            self.used.update(marks)
        return out


def eagerly(module: torch.nn.Module) -> None:
    """Chooses the spelled-out attention wherever there is a choice."""
    for m in module.modules():
        config = getattr(m, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = "eager"


def look(zoo, name: str, mode: str, operators: str) -> dict:
    """One model in one mode."""
    torch._dynamo.reset()
    stats.clear()
    torch.manual_seed(0)
    prog = zoo.ENTRIES[name].build()
    train = mode == "train"
    eagerly(prog.module)
    counting = Counting()

    def counted(module):
        def run(*args, **kwargs):
            with counting:
                return module(*args, **kwargs)

        return run

    prog.runner(prog.module, counted, train)(zoo.gen_inputs(prog, 0, 0, train))
    options = {"operators": operators, "cache": False}
    wrap = lambda m: torch.compile(m, backend="ljcompile", options=options)  # noqa: E731
    prog.runner(prog.module, wrap, train)(zoo.gen_inputs(prog, 0, 0, train))
    sites = [s for s in stats.sites if s.family == "attention"]
    return {
        "eager": len(counting.used),
        "found": sum(s.found for s in sites),
        "missed": sum(not s.found for s in sites),
        "replaced": sum(s.declined is None for s in sites),
        "why": Counter(s.declined for s in sites if s.declined),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", type=Path, default=HERE.parent.parent / "shared" / "zoo")
    parser.add_argument("--models", help="comma separated; default: all of Hugging Face's")
    parser.add_argument("--modes", default="infer,train")
    parser.add_argument("--operators", default="always", choices=["always", "auto"])
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(args.zoo))
    import zoo

    zoo.load_entries()
    torch._dynamo.config.recompile_limit = 64
    chosen = args.models.split(",") if args.models else None
    names = chosen or [n for n, e in zoo.ENTRIES.items() if e.family == "hf"]
    missed = []
    print(f"{'model':<18} {'mode':<6} {'eager':>5} {'found':>5} {'one op':>6}  the others")
    for name in names:
        for mode in args.modes.split(","):
            if mode in zoo.ENTRIES[name].skip:
                continue
            row = look(zoo, name, mode, args.operators)
            if not row["eager"] and not row["found"]:
                continue
            why = "; ".join(f"{n} x {w}" for w, n in row["why"].items())
            counts = f"{row['eager']:5} {row['found']:5} {row['replaced']:6}"
            print(f"{name:<18} {mode:<6} {counts}  {why}", flush=True)
            if (row["missed"] or not row["found"]) and name not in OTHERS:
                missed.append(f"{name} {mode}")
    for name, why in OTHERS.items():
        print(f"{name}: {why}")
    print("found in every model" if not missed else f"not all found: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    assert ljcompile.counters is not None
    sys.exit(main())
