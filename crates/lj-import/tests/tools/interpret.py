"""Runs an imported graph (the JSON of `lj_ir::Graph`) with torch, node by node: the reference that
the importer's output is compared with eager by."""

from __future__ import annotations

import operator
import struct
from typing import Any

import torch
from capture_fx import DTYPES

TORCH = {v: getattr(torch, k) for k, v in DTYPES.items()}


BINARY = {
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Min": min,
    "Max": max,
}


def expr(e: Any, env: dict) -> int:
    if "Const" in e:
        return e["Const"]
    total = 0
    for t in e["Sum"]:
        p = t["coef"]
        for f in t["factors"]:
            ((kind, v),) = f.items()
            if kind == "Sym":
                p *= env[v]
                continue
            a, b = (expr(x, env) for x in v)
            p *= BINARY[kind](a, b)
        total += p
    return total


def scalar(s: Any) -> Any:
    ((kind, v),) = s.items()
    return struct.unpack("<d", struct.pack("<Q", v))[0] if kind == "Float" else v


def _shift(x, n, left):
    bits = x.element_size() * 8
    bad = (n < 0) | (n >= bits)
    r = x << n.clamp(0, bits - 1) if left else x >> n.clamp(0, bits - 1)
    return torch.where(
        bad, torch.zeros_like(x) if left else torch.where(x < 0, -1, 0).to(x.dtype), r
    )


PW = {
    "Not": lambda x: ~x,
    "And": torch.bitwise_and, "Or": torch.bitwise_or, "Xor": torch.bitwise_xor,
    "FloorDiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "TruncDiv": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "Shl": lambda x, n: _shift(x, n, True), "Shr": lambda x, n: _shift(x, n, False),
    "Atan2": torch.atan2, "Erf": torch.erf, "IsNan": torch.isnan, "IsInf": torch.isinf,
    "SignBit": torch.signbit, "Where": torch.where,
}  # fmt: skip


def pointwise(op: str, xs: list) -> torch.Tensor:
    if op in PW:
        return PW[op](*xs)
    return getattr(torch, op.lower())(*xs)


class Interpreter:
    def __init__(self, graph: dict, objects: list):
        self.g = graph
        self.objects = objects

    def bind(self, values: list, results: list, env: dict) -> None:
        """Learns the symbols that are sizes of `results` or integers among them."""
        for v, a in zip(values, results, strict=True):
            ty = self.g["values"][v]["ty"]
            pairs: list = []
            if isinstance(ty, dict) and "SymInt" in ty:
                pairs = [(ty["SymInt"], a)]
            elif isinstance(ty, dict) and "Tensor" in ty:
                t = ty["Tensor"]
                assert a.dtype == TORCH[t["dtype"]], (a.dtype, t)
                pairs = [*zip(t["shape"], a.shape), *zip(t["strides"], a.stride())]
            for e, n in pairs:
                terms = e.get("Sum", [])
                if len(terms) == 1 and len(terms[0]["factors"]) == 1 and terms[0]["coef"] == 1:
                    ((k, s),) = terms[0]["factors"][0].items()
                    if k == "Sym":
                        env.setdefault(s, int(n))

    def run(self, *args: Any) -> tuple[list, list]:
        """The outputs and the new contents of mutated inputs `[(input position, value)]`."""
        env: dict = {}
        self.bind(self.g["inputs"], list(args), env)
        vals: dict = {}
        for node in self.g["nodes"]:
            ins = [vals[v] for v in node["inputs"]]
            types = [self.g["values"][v]["ty"] for v in node["outputs"]]
            outs = self.node(node["op"], ins, types, env, args)
            if "Extern" in node["op"]:
                self.bind(node["outputs"], outs, env)
            for v, ty, o in zip(node["outputs"], types, outs, strict=True):
                if isinstance(ty, dict) and "Tensor" in ty:
                    t = ty["Tensor"]
                    shape = [expr(e, env) for e in t["shape"]]
                    assert o.dtype == TORCH[t["dtype"]], (node["op"], o.dtype, t["dtype"])
                    assert list(o.shape) == shape, (node["op"], o.shape, shape)
                vals[v] = o
        outs = []
        for v in self.g["outputs"]:
            o, ty = vals[v], self.g["values"][v]["ty"]
            if isinstance(o, torch.Tensor):
                strides = [expr(e, env) for e in ty["Tensor"]["strides"]]
                if 0 not in strides:
                    o = torch.empty_strided(o.shape, strides, dtype=o.dtype).copy_(o)
            outs.append(o)
        return outs, [
            (self.g["inputs"].index(m["input"]), vals[m["value"]]) for m in self.g["mutations"]
        ]

    def node(self, op: Any, ins: list, types: list, env: dict, args: tuple) -> list:
        if isinstance(op, str):
            kind, p = op, None
        else:
            ((kind, p),) = op.items()
        if kind == "Extern":
            return self.extern(p, ins, types, env)
        if kind == "Input":
            return [args[p["index"]]]
        if types[0] == "None":
            return [None]
        if "SymInt" in types[0]:
            return [expr(types[0]["SymInt"], env)]
        t = types[0]["Tensor"]
        dtype = TORCH[t["dtype"]]
        shape = [expr(e, env) for e in t["shape"]]
        return [self.op(kind, p, ins, dtype, shape, env)]

    def op(self, kind, p, ins, dtype, shape, env):
        x = ins[0] if ins else None
        match kind:
            case "Pointwise":
                return pointwise(p, ins)
            case "Convert":
                return x.to(dtype)
            case "Copy":
                return x.clone()
            case "Full":
                return torch.full(shape, scalar(p), dtype=dtype)
            case "FullSym":
                return torch.tensor(expr(p, env)).to(dtype)
            case "Iota":
                start, step = expr(p["start"], env), expr(p["step"], env)
                return (torch.arange(shape[0]) * step + start).to(dtype)
            case "Reduce":
                return self.reduce(p["op"], x, p["dims"])
            case "Scan":
                return self.scan(p["op"], x, p["dim"], p["reverse"]).to(dtype)
            case "View":
                return self.view(p, x, shape, env)
            case "Index":
                index: list = [slice(None)] * x.dim()
                for d, i in zip(p["dims"], ins[1:], strict=True):
                    index[d] = i
                return x[tuple(index)]
            case "Gather":
                return torch.gather(x, p["dim"], ins[1])
            case "Scatter":
                return self.scatter(p, x, ins[1], ins[2:])
            case "Cat":
                return torch.cat(ins, p["dim"])
            case "Pad":
                pads = []
                for low, high in zip(reversed(p["low"]), reversed(p["high"])):
                    pads += [expr(low, env), expr(high, env)]
                return torch.nn.functional.pad(x, pads, value=scalar(p["value"]))
            case "Matmul":
                if p["bias"]:
                    return (torch.addmm if x.dim() == 2 else torch.baddbmm)(ins[2], x, ins[1])
                return x @ ins[1]
        raise NotImplementedError(kind)

    def scatter(self, p, base, src, indices):
        out = base.clone(memory_format=torch.contiguous_format)
        at = torch.meshgrid(*[torch.arange(n) for n in src.shape], indexing="ij")
        other = iter(p["rest"])
        places = [None] * base.dim()
        for d, i in zip(p["dims"], indices, strict=True):
            places[d] = i.expand(src.shape) % max(base.shape[d], 1)
        places = [at[next(other)] if i is None else i for i in places]
        flat = torch.zeros(src.shape, dtype=torch.int64)
        for n, i in zip(base.shape, places, strict=True):
            flat = flat * n + i
        flat, src, out1 = flat.reshape(-1), src.reshape(-1), out.view(-1)
        for i, v in zip(flat.tolist(), src, strict=True):
            match p["op"]:
                case "Set":
                    out1[i] = v
                case "Add":
                    out1[i] = out1[i] | v if v.dtype == torch.bool else out1[i] + v
                case "Mul":
                    out1[i] = out1[i] & v if v.dtype == torch.bool else out1[i] * v
                case "Max":
                    out1[i] = torch.maximum(out1[i], v)
                case "Min":
                    out1[i] = torch.minimum(out1[i], v)
        return out

    def scan(self, op, x, dim, reverse):
        f = {
            "Sum": lambda x: x.cumsum(dim, dtype=x.dtype),
            "Prod": lambda x: x.cumprod(dim, dtype=x.dtype),
            "Max": lambda x: x.cummax(dim).values,
            "Min": lambda x: x.cummin(dim).values,
            "LogSumExp": lambda x: x.logcumsumexp(dim),
        }[op]
        return f(x.flip(dim)).flip(dim) if reverse else f(x)

    def reduce(self, op, x, dims):
        f = {
            "Sum": torch.sum,
            "Max": torch.amax,
            "Min": torch.amin,
            "Any": torch.any,
            "All": torch.all,
        }.get(op)
        if f is torch.sum:
            return x.sum(dims, dtype=x.dtype)
        if f is not None:
            return f(x, dims)
        kept = [d for d in range(x.dim()) if d not in dims]
        flat = x.permute(kept + dims).reshape([x.shape[d] for d in kept] + [-1])
        if op == "Prod":
            return flat.prod(-1, dtype=x.dtype)
        return getattr(torch, op.lower())(flat, -1)

    def view(self, v, x, shape, env):
        if v == "Reshape":
            return x.reshape(shape)
        if v == "Expand":
            return x.expand(shape)
        ((kind, p),) = v.items()
        match kind:
            case "Permute":
                return x.permute(p)
            case "Flip":
                return x.flip(p)
            case "Select":
                return x.select(p["dim"], expr(p["index"], env))
            case "Slice":
                start, n, step = expr(p["start"], env), shape[p["dim"]], p["step"]
                index = torch.arange(n) * step + start
                assert n == 0 or int(index[-1]) < x.shape[p["dim"]]
                return x.index_select(p["dim"], index)
        raise NotImplementedError(kind)

    def arg(self, a, ins, env):
        if a == "None":
            return None
        ((kind, v),) = a.items()
        match kind:
            case "Input":
                return ins[v]
            case "Bool" | "Str":
                return v
            case "Int":
                return expr(v, env)
            case "Float":
                return scalar({"Float": v})
            case "DType":
                return TORCH[v]
            case "Device":
                return torch.device("cpu")
            case "Layout" | "MemoryFormat":
                return getattr(torch, v)
            case "List":
                return [self.arg(x, ins, env) for x in v]
            case "Object":
                return self.objects[v]
        raise NotImplementedError(kind)

    def extern(self, call, ins, types, env):
        f: Any = torch.ops
        for part in call["target"].split("."):
            f = getattr(f, part)
        args = [self.arg(a, ins, env) for a in call["args"]]
        kwargs = {k: self.arg(a, ins, env) for k, a in call["kwargs"]}
        out = f(*args, **kwargs)
        return list(out) if isinstance(out, (tuple, list)) else [out]
