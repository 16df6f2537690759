"""The first benchmark: a 6-layer Llama in float32, forward and backward.

Prints, for eager, Inductor and ljcompile: steady step times (measured in turns within one
process, so that a busy machine troubles all alike), the first call and its parts, and the peak
memory of a step (each in a process of its own). A second process shows what a warm cache saves.
Checks the limits of the project and appends the figures to `bench/history/`.

    bench_first.py [--steps 12] [--skip-inductor] [--layers 6]
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

#: What the project has promised of itself.
LIMITS = {
    "our share of the first call, s": 1.5,
    "our share with a warm cache, s": 0.5,
    "step / eager": 1.0,
    "peak memory / eager": 1.1,
}
BATCH, LENGTH = 2, 256


def build(layers: int) -> tuple[Any, Any]:
    """The model and one batch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
    return LlamaForCausalLM(config), torch.randint(0, 8192, (BATCH, LENGTH))


def step_of(model: Any, call: Callable, ids: Any) -> float:
    """Seconds of one forward and backward."""
    start = time.perf_counter()
    call(input_ids=ids, labels=ids).loss.backward()
    seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return seconds


def status_mib(field: str) -> float:
    """A memory figure of this process as the kernel keeps it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def settle(plans: list[Any]) -> None:
    """Gives back memory that is only kept for the next call, so that every backend starts even."""
    gc.collect()
    for plan in plans:
        plan.release_memory()
    ctypes.CDLL(None).malloc_trim(0)


def child(task: str, backend: str, layers: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    import torch
    from compile_split import Watch

    model, ids = build(layers)
    call = model if backend == "eager" else torch.compile(model, backend=backend)
    if task == "first":
        watch = Watch()
        with watch:
            first = step_of(model, call, ids)
        return {
            "first": first,
            "ours": watch.our_share,
            "split": watch.split(first),
            "summary": watch.summary(),
        }
    with Watch() as watch:
        for _ in range(2):
            step_of(model, call, ids)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    settle(watch.plans)
    base = status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(3):
        # zero_grad() frees the gradients, so each step holds them once.
        step_of(model, call, ids)
    # Python, torch and what compiling left behind are in `base`; the parameters are the model's.
    return {"peak": status_mib("VmHWM") - base + parameters, "whole": status_mib("VmHWM")}


def in_child(task: str, backend: str, options: argparse.Namespace, env: dict[str, str]) -> Any:
    command = [sys.executable, __file__, "--child", task, backend, "--layers", str(options.layers)]
    done = subprocess.run(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{task} with {backend} failed: exit {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def steady(backends: list[str], options: argparse.Namespace) -> dict[str, list[float]]:
    """Step times in seconds, one step of each backend in turn."""
    import torch

    model, ids = build(options.layers)
    calls = {}
    for backend in backends:
        own = copy.deepcopy(model)
        calls[backend] = (
            own,
            own if backend == "eager" else torch.compile(own, backend=backend, dynamic=False),
        )
        for _ in range(2):
            step_of(*calls[backend], ids)
    times: dict[str, list[float]] = {backend: [] for backend in backends}
    for _ in range(options.steps):
        for backend, (own, call) in calls.items():
            times[backend].append(step_of(own, call, ids))
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--skip-inductor", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child, options.layers)))
        return 0

    ours = os.environ.get("LJ_BACKEND", "ljcompile")
    backends = ["eager", *([] if options.skip_inductor else ["inductor"]), ours]
    with tempfile.TemporaryDirectory() as cache:
        env = {
            "LJCOMPILE_CACHE_DIR": f"{cache}/lj",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        }
        first = {b: in_child("first", b, options, env) for b in backends}
        warm = in_child("first", ours, options, env)
        memory = {b: in_child("memory", b, options, env) for b in backends}
        times = steady(backends, options)

    print(
        f"Llama, {options.layers} layers, batch {BATCH} x {LENGTH}, float32, forward + backward\n"
    )
    print(f"{'':12} {'min ms':>9} {'median ms':>10} {'/ eager':>8} {'first s':>8} {'peak MiB':>9}")
    low = {b: min(t) for b, t in times.items()}
    for b, t in times.items():
        print(
            f"{b:12} {low[b] * 1e3:9.1f} {statistics.median(t) * 1e3:10.1f} "
            f"{low[b] / low['eager']:8.3f} {first[b]['first']:8.2f} {memory[b]['peak']:9.0f}"
        )
    for title, run in (("first call", first[ours]), ("first call, warm cache", warm)):
        print(f"\n{ours}, {title}: {run['first']:.2f} s, our share {run['ours']:.3f} s")
        for part, seconds in run["split"].items():
            print(f"  {part:32} {seconds:8.3f}")
    print(f"\n{first[ours]['summary']}\n")

    figures = {
        "our share of the first call, s": first[ours]["ours"],
        "our share with a warm cache, s": warm["ours"],
        "step / eager": low[ours] / low["eager"],
        "peak memory / eager": memory[ours]["peak"] / memory["eager"]["peak"],
    }
    if "inductor" in times:
        figures["step / inductor"] = low[ours] / low["inductor"]
    failed = False
    for name, value in figures.items():
        limit = LIMITS.get(name)
        verdict = ""
        if limit is not None:
            failed |= value > limit
            verdict = f"limit {limit:5.2f}   {'ok' if value <= limit else 'MISSED'}"
        print(f"{name:34} {value:8.3f}   {verdict}")
    record(options, figures, times, first, warm, memory)
    return 1 if failed else 0


def record(options: argparse.Namespace, figures: dict, times: dict, *more: Any) -> None:
    """Appends this run to the history of this machine."""
    import torch

    folder = HERE / "history"
    folder.mkdir(exist_ok=True)
    names = ("first", "warm", "memory")
    entry = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "layers": options.layers,
        "figures": figures,
        "seconds": times,
        **dict(zip(names, more, strict=True)),
    }
    with open(folder / "first.jsonl", "a") as f:
        f.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main())
