"""Checks many random programs, in batches of subprocesses: a crash costs one program.

    run_fuzz.py --graphs 2000 --resume build/fuzz.json     # go on where it stopped
    run_fuzz.py --seed 1234                                # one program, shown, in this process
    run_fuzz.py --replay                                   # the kept programs that once failed

A program that fails is written to `tests/fuzz/kept/`, whole, and from then on is part of the
normal tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE / "kept"
sys.path[:0] = [str(HERE), str(HERE.parent)]

import workers  # noqa: E402
from generate import Program, generate  # noqa: E402
from workers import Result  # noqa: E402


def load(path: Path) -> Program:
    """A kept program."""
    fields = json.loads(path.read_text())
    fields["source"] = "\n".join(fields["source"])
    return Program(**{f.name: fields[f.name] for f in dataclasses.fields(Program)})


def keep(program: Program, status: str, detail: str) -> None:
    """Writes a failed program where the tests find it."""
    KEPT.mkdir(exist_ok=True)
    fields = dataclasses.asdict(program)
    fields["source"] = program.source.splitlines()
    fields["failed"] = f"{status}: {detail.strip().splitlines()[0] if detail.strip() else ''}"
    (KEPT / f"seed_{program.seed}.json").write_text(json.dumps(fields, indent=1) + "\n")


def worker(names: list[str]) -> None:
    """Checks programs by name (a seed or a path), a line of JSON before and after each."""
    import warnings

    warnings.filterwarnings("ignore", message=".*(lr_scheduler|deprecated).*")
    from check import Mismatch, check

    for name in names:
        print(json.dumps({"start": name}), flush=True)
        result = {"done": name, "status": "ok", "detail": ""}
        try:
            check(load(Path(name)) if name.endswith(".json") else generate(int(name)))
        except Mismatch as fault:
            result.update(status="mismatch", detail=str(fault))
        except Exception as fault:
            detail = f"{type(fault).__name__}: {fault}\n{traceback.format_exc()[-3000:]}"
            result.update(status="error", detail=detail)
        print(json.dumps(result), flush=True)


def run(names: list[str], batch: int, timeout: float, tell: Callable[[Result], None]) -> None:
    """Checks every program, calling `tell` with each result."""
    workers.run([__file__], names, batch, timeout, tell)


def program_of(name: str) -> Program:
    return load(Path(name)) if name.endswith(".json") else generate(int(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--batch", type=int, default=100, help="programs in one subprocess")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one program")
    parser.add_argument("--resume", type=Path, help="file that remembers what is done")
    parser.add_argument("--seed", type=int, help="show and check one program here")
    parser.add_argument("--replay", action="store_true", help="check the kept programs")
    parser.add_argument("--no-keep", action="store_true", help="do not write failed programs")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return 0
    if options.seed is not None:
        program = generate(options.seed)
        print(program.source, *program.inputs, f"dynamic {program.dynamic}", sep="\n")
        from check import check

        check(program)
        print("ok")
        return 0

    done: dict[str, str] = {}
    if options.resume and options.resume.exists():
        done = json.loads(options.resume.read_text())
    if options.replay:
        names = [str(path) for path in sorted(KEPT.glob("*.json"))]
    else:
        names = [str(seed) for seed in range(options.first, options.first + options.graphs)]
    todo = [name for name in names if done.get(name) != "ok"]
    print(f"{len(names)} programs, {len(names) - len(todo)} of them done before")
    start, failed = time.time(), []

    def tell(result: Result) -> None:
        name, status = result["done"], result["status"]
        done[name] = status
        if status != "ok":
            failed.append(name)
            print(f"FAILED seed {name}: {status}: {result['detail']}", flush=True)
            if not options.no_keep and not options.replay:
                keep(program_of(name), status, result["detail"])
        count = sum(n in done for n in names)
        if count % 100 == 0:
            print(f"{count} of {len(names)}, {time.time() - start:.0f} s", flush=True)
        if options.resume:
            options.resume.parent.mkdir(parents=True, exist_ok=True)
            options.resume.write_text(json.dumps(done))

    run(todo, options.batch, options.timeout, tell)
    passed = sum(done.get(name) == "ok" for name in names)
    print(f"{passed} of {len(names)} programs agree with eager; failed: {failed or 'none'}")
    return 0 if passed == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
