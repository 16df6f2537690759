"""How much of the zoo runs in our own kernels: ``make report-coverage``.

Matrix products, convolutions and attention are libraries' kernels wherever they run and are left
out, as is what only rearranges metadata. Of the rest this prints the share of operators, and of the
bytes they move, that run in our kernels, and what ATen runs, by operator.

Operators are those of the captured ATen graphs, each graph counted once. Bytes are taken at the
traced sizes: for a fallback its operands and results, for a kernel its buffers, once a launch.

Imported by a worker of the zoo (``--import zoo_coverage``), this file writes every graph's record
to the file that ``LJ_COVERAGE`` names.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGETS = {"operators": 0.97, "bytes": 0.99}


def record_to(path: str) -> None:
    """Appends every record from now on to `path`, a JSON object a line."""
    from ljcompile import stats

    add = stats.add

    def noting(record: stats.Record) -> None:
        add(record)
        line = json.dumps(dataclasses.asdict(record)) + "\n"
        with open(path, "a") as file:
            file.write(line)

    stats.add = noting


def summary(records: list[dict]) -> str:
    """The report."""
    own = sum(r["own_ops"] for r in records)
    kernel_bytes = sum(r["kernel_bytes"] for r in records)
    left: dict[tuple[str, str], Counter] = {}
    for record in records:
        for f in record["fallbacks"]:
            if not f["library"]:
                row = left.setdefault((f["target"], f["reason"]), Counter())
                row["count"] += f["count"]
                row["bytes"] += f["bytes"]
    count = sum(row["count"] for row in left.values())
    moved = sum(row["bytes"] for row in left.values())
    eager = [r for r in records if r["eager"]]
    shares = {
        "operators": (own - count) / max(own, 1),
        "bytes": kernel_bytes / max(kernel_bytes + moved, 1),
    }
    lines = [f"{len(records)} graphs, {own} operators, {kernel_bytes + moved:,} bytes"]
    for what, share in shares.items():
        lines.append(f"in our kernels, of {what}: {share:.2%} (target {TARGETS[what]:.0%})")
    lines += ["", f"{'calls':>7} {'bytes':>14}  operator: reason"]
    order = sorted(left.items(), key=lambda item: (-item[1]["count"], item[0]))
    for (target, reason), row in order:
        lines.append(f"{row['count']:7} {row['bytes']:14,}  {target}: {reason}")
    lines += [f"uncompiled graph of {r['ops']} operators: {r['eager']}" for r in eager]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", type=Path, default=HERE.parent.parent / "shared" / "zoo")
    parser.add_argument("--records", type=Path, default=HERE.parent / "out" / "coverage.jsonl")
    parser.add_argument("--no-run", action="store_true", help="report on what is there")
    parser.add_argument("zoo_args", nargs="*", help="passed on to zoo.py, after --")
    args = parser.parse_args()
    if not args.no_run:
        args.records.parent.mkdir(parents=True, exist_ok=True)
        args.records.unlink(missing_ok=True)
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        given = args.zoo_args or ["--modes", "infer,train", "--fork", "--fast"]
        command = [sys.executable, str(args.zoo / "zoo.py"), "--backend", "ljcompile", *given]
        command += ["--import", "zoo_coverage", "--out", str(args.records.with_suffix(".json"))]
        # A cached plan has the same report, but the zoo is to compile.
        env = {**os.environ, "PYTHONPATH": path, "LJ_COVERAGE": str(args.records)}
        subprocess.run(command, env={"LJCOMPILE_CACHE": "0", **env}, check=False)
    print(summary([json.loads(line) for line in args.records.read_text().splitlines()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
elif os.environ.get("LJ_COVERAGE"):
    record_to(os.environ["LJ_COVERAGE"])
