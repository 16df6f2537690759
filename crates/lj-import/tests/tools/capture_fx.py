"""Captures the AOTAutograd graphs of small models as `FxGraph` JSON, for the importer's tests.

Independent of the product's own capture (`lj-python`), and minimal: `graphs(model, args, ...)`
returns one record per compiled graph. Run as a script it writes the fixtures.
"""

# ruff: noqa: E501

from __future__ import annotations

import importlib.util
import operator
import pathlib
from typing import Any

import sympy
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

ROOT = pathlib.Path(__file__).resolve().parents[4]


def _load_table() -> dict:
    path = ROOT / "python" / "ljcompile" / "decompositions.py"
    spec = importlib.util.spec_from_file_location("lj_decompositions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.table()


DTYPES = {
    "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float16": "F16", "float32": "F32", "float64": "F64", "complex32": "C32",
    "complex64": "C64", "complex128": "C128", "bool": "Bool", "bfloat16": "BF16",
    "float8_e5m2": "F8E5M2", "float8_e4m3fn": "F8E4M3FN", "uint16": "U16", "uint32": "U32",
    "uint64": "U64",
}  # fmt: skip


def dtype(d: torch.dtype) -> str:
    return DTYPES[str(d).removeprefix("torch.")]


def device(d: torch.device) -> Any:
    return {"cpu": "Cpu", "meta": "Meta"}.get(d.type) or {"Cuda": d.index or 0}


# --- symbolic expressions, in the canonical form of `lj_ir::Expr` ---

ATOMS = ["Sym", "FloorDiv", "Mod", "Min", "Max"]


def _order(poly: dict) -> tuple:
    """Sort key of a polynomial `{factors: coef}`, as Rust derives it for `Expr`."""
    if not poly or list(poly) == [()]:
        return (0, poly.get((), 0))
    return (1, tuple((tuple(_atom_order(a) for a in f), c) for f, c in _sorted(poly)))


def _atom_order(atom: tuple) -> tuple:
    kind, *rest = atom
    return (ATOMS.index(kind), *(r if isinstance(r, str) else _order(dict(r)) for r in rest))


def _sorted(poly: dict) -> list:
    return sorted(poly.items(), key=lambda kv: tuple(_atom_order(a) for a in kv[0]))


def _poly(e: sympy.Expr) -> dict:
    e = sympy.expand(e)
    out: dict = {}
    for term in sympy.Add.make_args(e):
        coef, factors = 1, []
        for f in sympy.Mul.make_args(term):
            if f.is_Integer:
                coef *= int(f)
                continue
            base, power = f.as_base_exp()
            factors += [_atom(base)] * int(power)
        key = tuple(sorted(factors, key=_atom_order))
        out[key] = out.get(key, 0) + coef
    return {k: v for k, v in out.items() if v}


def _atom(e: sympy.Expr) -> tuple:
    if e.is_Symbol:
        return ("Sym", e.name)
    name = type(e).__name__
    kind = {
        "FloorDiv": "FloorDiv", "CleanDiv": "FloorDiv", "Mod": "Mod", "PythonMod": "Mod",
        "Min": "Min", "Max": "Max",
    }[name]  # fmt: skip
    a, b = e.args
    return (kind, tuple(_poly(a).items()), tuple(_poly(b).items()))


def _expr_json(poly: dict) -> Any:
    if not poly:
        return {"Const": 0}
    if list(poly) == [()]:
        return {"Const": poly[()]}
    return {"Sum": [{"factors": [_atom_json(a) for a in f], "coef": c} for f, c in _sorted(poly)]}


def _atom_json(atom: tuple) -> Any:
    kind, *rest = atom
    if kind == "Sym":
        return {"Sym": rest[0]}
    return {kind: [_expr_json(dict(r)) for r in rest]}


def expr(v: Any) -> Any:
    if isinstance(v, int):
        return {"Const": v}
    return _expr_json(_poly(v.node.expr))


class Serializer:
    """One graph module as `FxGraph` JSON."""

    def __init__(self, gm: torch.fx.GraphModule, name: str):
        self.index = {n: i for i, n in enumerate(gm.graph.nodes)}
        self.objects: list = []
        self.syms: dict = {}
        self.json = {
            "name": name,
            "nodes": [self.node(n) for n in gm.graph.nodes],
            "syms": [],
        }
        self.json["syms"] = [[k, v] for k, v in sorted(self.syms.items())]

    def note(self, v: Any) -> Any:
        if isinstance(v, torch.SymInt):
            env = v.node.shape_env
            for s in v.node.expr.free_symbols:
                r = env.var_to_range.get(s)
                big = 2**63 - 1
                lo = int(r.lower) if r is not None and r.lower.is_Integer else -big
                hi = int(r.upper) if r is not None and r.upper.is_Integer else big
                values = (
                    env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
                )
                hint = values.get(s)
                self.syms[s.name] = {
                    "min": max(lo, -big), "max": min(hi, big),
                    "hint": None if hint is None else int(hint),
                }  # fmt: skip
        return expr(v)

    def meta(self, v: Any) -> Any:
        if v is None:
            return "None"
        if isinstance(v, (list, tuple)):
            return {"List": [self.meta(x) for x in v]}
        if isinstance(v, (bool, torch.SymBool)):
            return "SymBool"
        if isinstance(v, (int, torch.SymInt)):
            return {"SymInt": self.note(v)}
        if isinstance(v, (float, torch.SymFloat)):
            return "SymFloat"
        if isinstance(v, torch.Tensor) and v.layout == torch.strided:
            return {
                "Tensor": {
                    "dtype": dtype(v.dtype),
                    "device": device(v.device),
                    "shape": [self.note(s) for s in v.shape],
                    "strides": [self.note(s) for s in v.stride()],
                }
            }
        return {"Other": type(v).__name__}

    def arg(self, a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            return {"Node": self.index[a]}
        if a is None:
            return "None"
        if isinstance(a, bool):
            return {"Bool": a}
        if isinstance(a, int):
            return {"Int": a}
        if isinstance(a, float):
            # JSON has no infinities: the test's reader understands these strings.
            return {"Float": a if a == a and abs(a) != float("inf") else str(a)}
        if isinstance(a, str):
            return {"Str": a}
        if isinstance(a, torch.dtype):
            return {"DType": dtype(a)}
        if isinstance(a, torch.device):
            return {"Device": device(a)}
        if isinstance(a, torch.layout):
            return {"Layout": str(a).removeprefix("torch.")}
        if isinstance(a, torch.memory_format):
            return {"MemoryFormat": str(a).removeprefix("torch.")}
        if isinstance(a, (list, tuple)):
            return {"List": [self.arg(x) for x in a]}
        self.objects.append(a)
        return {"Object": len(self.objects) - 1}

    def node(self, n: torch.fx.Node) -> Any:
        kind: Any
        if n.op == "placeholder":
            kind = "Placeholder"
        elif n.op == "get_attr":
            kind = "Constant"
        elif n.op == "output":
            kind = "Output"
        else:
            t = n.target
            if isinstance(t, torch._ops.OpOverload):
                target, effect = str(t), torch.Tag.nondeterministic_seeded in t.tags
            elif t is operator.getitem:
                target, effect = "_operator.getitem", False
            else:
                target, effect = (
                    "sym." + getattr(t, "__name__", str(t)).removeprefix("sym_").rstrip("_"),
                    False,
                )
            kind = {"Call": {"target": target, "effect": effect}}
        line = None
        if trace := n.meta.get("stack_trace"):
            frames = [x for x in trace.strip().split("\n") if x.strip()]
            if len(frames) >= 2 and "File" in frames[-2]:
                where = frames[-2].strip().split('"')
                line = f"{pathlib.Path(where[1]).name}:{where[2].split()[2].rstrip(',')}: {frames[-1].strip()}"
        value = n.meta.get("val")
        if n.op == "get_attr" and value is None:
            value = getattr(n.graph.owning_module, n.target, None)
        return {
            "name": n.name,
            "kind": kind,
            "args": [self.arg(a) for a in n.args]
            if n.op not in ("placeholder", "get_attr")
            else [],
            "kwargs": [[k, self.arg(v)] for k, v in n.kwargs.items()],
            "meta": "None" if n.op == "output" else self.meta(value),
            "line": line,
        }


def backend(record: list, table: dict | None = None, run=None):
    """A Dynamo backend that appends `(name, FxGraph JSON, graph module)` to `record` and then runs
    the graph eagerly, or as `run(gm, json)` gives."""
    if table is None:
        table = _load_table()

    def compiler(name):
        def compile_(gm, inputs):
            ser = Serializer(gm, name)
            record.append((name, ser.json, gm))
            f = run(gm, ser) if run is not None else gm.forward
            from torch._functorch.aot_autograd import make_boxed_func

            return make_boxed_func(f)

        return compile_

    return aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=table,
        partition_fn=min_cut_rematerialization_partition,
    )
