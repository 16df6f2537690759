"""Checks PyTorch's operator database against eager, in subprocesses: a crash costs one item.

    run_opinfo.py --samples 4                                 # every operator, dtype and mode
    run_opinfo.py --resume build/opinfo.json                  # all samples; go on where it stopped
    run_opinfo.py --dtypes f32,bf16 --modes forward,grad --ops 'special.*'
    run_opinfo.py --item add:f32:grad                         # one item, in this process

An item is an operator in one dtype and mode; all its samples are one compiled function.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import workers  # noqa: E402
from workers import Result  # noqa: E402


def check_one(name: str, samples: int | None, note: Callable[[str], None]) -> Result:
    """Checks one item by name."""
    import judge
    from database import Item

    item = Item.parse(name)
    check = getattr(item.database, "check", judge.check)
    result: Result = {"done": name, "status": "ok", "detail": ""}
    try:
        outcome = check(item, samples, note)
    except Exception as fault:
        detail = f"{type(fault).__name__}: {fault}\n{traceback.format_exc()[-3000:]}"
        return {**result, "status": "error", "detail": detail}
    result["counts"] = {k: v for k, v in dataclasses.asdict(outcome).items() if k != "faults"}
    if outcome.faults:
        shown = outcome.faults[:8]
        if len(outcome.faults) > len(shown):
            shown.append(f"and {len(outcome.faults) - len(shown)} more")
        result.update(status="mismatch", detail="\n".join(shown))
    return result


def worker(names: list[str], samples: int | None) -> None:
    """Checks items by name, a line of JSON before and after each."""
    import warnings

    warnings.filterwarnings("ignore")
    for name in names:
        print(json.dumps({"start": name, "part": "all samples"}), flush=True)

        def note(sample: str, name: str = name) -> None:
            print(json.dumps({"start": name, "part": sample}), flush=True)

        print(json.dumps(check_one(name, samples, note)), flush=True)


def run(
    names: list[str],
    samples: int | None,
    batch: int,
    timeout: float,
    tell: Callable[[Result], None],
) -> None:
    """Checks every item, calling `tell` with each result."""
    workers.run([__file__, "--samples", str(samples or 0)], names, batch, timeout, tell)


def summary(names: list[str], done: dict[str, Result], seconds: float) -> str:
    """What a test runner says at the end: failures by item, then the counts."""
    results = [done[name] for name in names if name in done]
    lines = []
    for r in results:
        if r["status"] != "ok":
            first = r["detail"].strip().splitlines()[0] if r["detail"].strip() else ""
            lines.append(f"FAILED {r['done']} - {r['status']}: {first}")
    count = Counter(r["status"] for r in results)
    counts = [r["counts"] for r in results if "counts" in r]
    failed = sum(count.values()) - count["ok"]
    lines.append(
        f"{sum(c['samples'] for c in counts)} samples, {sum(c['graphs'] for c in counts)} graphs, "
        f"{sum(c['breaks'] for c in counts)} graph breaks, "
        f"{sum(c['samples'] > 0 and not c['graphs'] for c in counts)} items that Dynamo does not "
        f"capture"
    )
    lines.append(f"{failed} failed, {count['ok']} passed in {seconds:.0f} s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=0, help="samples an item; 0: all")
    parser.add_argument("--dtypes", default="f32,i64,bf16,bool,f64,f16,c64,i32,u8")
    parser.add_argument("--modes", default="*", help="such as forward,grad")
    parser.add_argument("--databases", default="op,foreach,module,optim,hop")
    parser.add_argument("--ops", default="*", help="patterns of operator names, by commas")
    parser.add_argument("--sample-run", action="store_true", help="the fixed subset of the tests")
    parser.add_argument("--batch", type=int, default=60, help="items in one subprocess")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for one item")
    parser.add_argument("--resume", type=Path, help="file that remembers what is done")
    parser.add_argument("--failed", action="store_true", help="only what failed before")
    parser.add_argument("--item", action="append", help="check this item here")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    samples = options.samples or None
    if options.worker:
        worker(options.worker, samples)
        return 0
    if options.item:
        results = [check_one(name, samples, print) for name in options.item]
        for r in results:
            print(r["done"], r["status"], r["detail"], r.get("counts", ""), sep="\n  ")
        return int(any(r["status"] != "ok" for r in results))

    from database import MODES, items

    patterns = options.ops.split(",")
    modes = list(MODES) if options.modes == "*" else options.modes.split(",")
    names = [
        str(item)
        for item in items(options.dtypes.split(","), modes, options.databases.split(","))
        if any(fnmatch.fnmatch(item.op, p) for p in patterns)
    ]
    if options.sample_run:
        from sample import chosen

        names = chosen()
    done: dict[str, Result] = {}
    if options.resume and options.resume.exists():
        done = json.loads(options.resume.read_text())
    if options.failed:
        names = [n for n in names if n in done and done[n]["status"] != "ok"]
        todo = list(names)
    else:
        todo = [n for n in names if n not in done or done[n]["status"] != "ok"]
    print(f"{len(names)} items, {len(names) - len(todo)} of them done before", flush=True)
    start, told = time.time(), 0

    def tell(result: Result) -> None:
        nonlocal told
        told += 1
        done[result["done"]] = result
        if result["status"] != "ok":
            detail = result["detail"].strip().replace("\n", "\n    ")
            print(f"FAILED {result['done']}: {result['status']}\n    {detail}", flush=True)
        if told % 100 == 0:
            print(f"{told} of {len(todo)}, {time.time() - start:.0f} s", flush=True)
        if options.resume and (told % 20 == 0 or told == len(todo)):
            options.resume.parent.mkdir(parents=True, exist_ok=True)
            options.resume.write_text(json.dumps(done))

    run(todo, samples, options.batch, options.timeout, tell)
    print(summary(names, done, time.time() - start))
    return int(any(done.get(n, {}).get("status") != "ok" for n in names))


if __name__ == "__main__":
    sys.exit(main())
