"""Imports the graphs of the test models and compares them, run node by node, with eager.

`python check.py [--lj DIR] [model…]`; needs `cargo build -p lj-import --example import`.
"""

# ruff: noqa: E501

import collections
import json
import subprocess
import sys
import tempfile

import capture_fx
import survey
import torch
from interpret import Interpreter

IMPORT = capture_fx.ROOT / "target" / "debug" / "examples" / "import"


def importer(fx: dict) -> dict:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(fx, f)
        f.flush()
        out = subprocess.run([IMPORT, f.name], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    return json.loads(out.stdout)


def close(a: torch.Tensor, b: torch.Tensor, layout: bool = True) -> str:
    """What is wrong, or nothing."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
    strides = [(x, y) for x, y, n in zip(a.stride(), b.stride(), a.shape) if n > 1]
    if layout and a.numel() and any(x != y for x, y in strides):
        return f"strides {a.stride()} for {b.stride()}"
    if not a.dtype.is_floating_point:
        return "" if torch.equal(a, b) else f"{int((a != b).sum())} of {a.numel()} integers differ"
    eps = torch.finfo(a.dtype).eps
    scale = b.double().abs().nan_to_num(0, 0, 0).mean().item() if a.numel() else 0
    ok = torch.isclose(a.double(), b.double(), rtol=40 * eps if eps < 1e-3 else 2 * eps,
                       atol=40 * eps * scale if eps < 1e-3 else 2 * eps * scale, equal_nan=True)  # fmt: skip
    if bool(ok.all()):
        return ""
    worst = (a.double() - b.double()).abs().nan_to_num(9e9).max().item()
    return f"{int((~ok).sum())} of {a.numel()} differ, by up to {worst:g} (mean {scale:g})"


class Checker:
    def __init__(self, lj: str | None = None):
        self.externs = collections.Counter()
        self.bad: list = []
        self.lj = lj
        self.case = ""

    def run(self, gm, ser):
        got = importer(ser.json)
        if "error" in got:
            self.bad.append((self.case, ser.json["name"], got["error"]))
            return gm.forward
        for target, reason, n in got["fallbacks"]:
            self.externs[target, reason] += n
        interp = Interpreter(got["ok"], ser.objects)

        def f(*args):
            constants = [getattr(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"]
            before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
            rng = torch.random.get_rng_state()
            want = gm.forward(*args)
            torch.random.set_rng_state(rng)
            try:
                outs, mutated = interp.run(*before, *constants)
            except Exception as e:
                self.bad.append((self.case, ser.json["name"], f"{type(e).__name__}: {e}"))
                return want
            names = [getattr(a, "name", a) for a in list(gm.graph.nodes)[-1].args[0]]
            for name, a, b in zip(names, outs, want, strict=True):
                what = (
                    close(a, b)
                    if isinstance(b, torch.Tensor)
                    else ("" if a == b else f"{a} for {b}")
                )
                if what:
                    self.bad.append((self.case, ser.json["name"], f"{name}: {what}"))
            for i, v in mutated:
                before[i] = v
            for i, (a, b) in enumerate(zip(before, args)):
                if isinstance(b, torch.Tensor) and (what := close(a, b, layout=False)):
                    self.bad.append((self.case, ser.json["name"], f"input {i} after: {what}"))
            return want

        return f


def main():
    checker = Checker()
    table = capture_fx._load_table()
    n = 0
    for case in survey.cases():
        checker.case = case
        try:
            n += len(survey.capture(*case, run=checker.run, table=table))
        except Exception as e:
            checker.bad.append((case, type(e).__name__, str(e)[:500]))
    for b in checker.bad:
        print("BAD", *b)
    for (target, reason), k in sorted(checker.externs.items()):
        print("extern", target, "—", reason, k)
    print(n, "graphs,", len(checker.bad), "bad")
    sys.exit(bool(checker.bad))


if __name__ == "__main__":
    main()
