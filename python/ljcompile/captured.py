"""Operators spelled out in the graph that Dynamo captured, put in their place before autograd.

What is found and whether it may be replaced is decided in Rust (``lj-rewrite``, ``captured``); here
the functions of torch get the names it knows them by, and the graph is changed as it says.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from . import _native, stats
from .aliasing import changes
from .linear_loss import linear_cross_entropy
from .options import Options
from .stats import Site

log = logging.getLogger("ljcompile")

#: Calls without which there is nothing to find.
_SEEDS = frozenset({"softmax", "functional.softmax", "cross_entropy"})

#: Name → what is called so: functions by module and name, methods by name.
_FUNCTIONS = """
matmul: torch.matmul operator.matmul .matmul .__matmul__
bmm: torch.bmm .bmm
baddbmm: torch.baddbmm .baddbmm
einsum: torch.einsum
softmax: torch.softmax .softmax
functional.softmax: functional.softmax
dropout: functional.dropout torch.dropout
linear: functional.linear
cross_entropy: functional.cross_entropy
add: torch.add operator.add .add .__add__ .__radd__
sub: torch.sub operator.sub .sub .__sub__
mul: torch.mul operator.mul .mul .__mul__ .__rmul__
div: torch.div torch.true_divide operator.truediv .div .__truediv__
add_: operator.iadd .add_
sub_: operator.isub .sub_
mul_: operator.imul .mul_
div_: operator.itruediv .div_
and: operator.and_ torch.logical_and .logical_and .__and__
eq: operator.eq torch.eq .eq .__eq__
ne: operator.ne torch.ne .ne .__ne__
le: operator.le torch.le .le .__le__
lt: operator.lt torch.lt .lt .__lt__
ge: operator.ge torch.ge .ge .__ge__
gt: operator.gt torch.gt .gt .__gt__
invert: operator.invert torch.logical_not .logical_not .__invert__
where: torch.where
Tensor.where: .where
masked_fill: torch.masked_fill .masked_fill
masked_fill_: .masked_fill_
cast: .to .float .type .type_as .half .bfloat16 .double .bool
contiguous: .contiguous .clone torch.clone
transpose: torch.transpose torch.swapaxes torch.swapdims .transpose .swapaxes .swapdims
permute: torch.permute .permute
t: torch.t .t
reshape: torch.reshape torch.unsqueeze torch.squeeze torch.flatten torch.unflatten .view .reshape
reshape: .unsqueeze .squeeze .flatten .unflatten .view_as .reshape_as
expand: torch.broadcast_to .expand .expand_as .broadcast_to
getitem: operator.getitem
diff: torch.diff
cumsum: torch.cumsum .cumsum
zeros: torch.zeros torch.zeros_like .new_zeros
ones: torch.ones torch.ones_like .new_ones
full: torch.full torch.full_like
arange: torch.arange
tril: torch.tril .tril
triu: torch.triu .triu
"""


@functools.cache
def _names() -> dict[Any, str]:
    """Name of every target of a call that is known to the search."""
    spaces = {"torch": torch, "operator": operator, "functional": functional}
    out: dict[Any, str] = {}
    for row in _FUNCTIONS.strip().splitlines():
        name, _, what = row.partition(": ")
        for place, _, attr in (w.partition(".") for w in what.split()):
            out[getattr(spaces[place], attr) if place else attr] = name
    assert set(out.values()) == set(_native.captured_names())
    return out


def put_operators(gm: fx.GraphModule, options: Options) -> None:
    """Replaces what is found in `gm`, in place; counted in `stats.sites`.

    Raises:
        Exception: in strict mode, if the search or a replacement fails.

    """
    names = _names()
    nodes = list(gm.graph.nodes)
    seeds = [i for i, n in enumerate(nodes) if n.op[:5] == "call_" and _named(names, n) in _SEEDS]
    if not seeds or options.operators == "never":
        return
    try:
        barriers = [i for i, n in enumerate(nodes) if changes(n) or _is_mode(n)]
        always = options.operators == "always"
        found = _native.find_operators(nodes, names, seeds, barriers, always)
        replaced = [s for s in found if s[4]]
        sites: list[Site] = []
        for family, at, was_found, declined, steps, dead in found:
            if steps:
                declined = _replace(gm, nodes, at, steps, dead)
            line = str(nodes[at].meta.get("stack_trace") or "").strip().rpartition("\n  File ")[2]
            sites.append(Site(family, was_found, declined, " ".join(line.split())))
        stats.sites.extend(sites)
        if options.dump is not None:
            _dump(options.dump, sites)
        if replaced:
            gm.graph.lint()
            gm.recompile()
    except Exception:
        if options.strict:
            raise
        log.warning("ljcompile: the search for operators failed", exc_info=True)


def _dump(folder: str, sites: list[Site]) -> None:
    """Writes what was found in a graph beside the folders of its ATen graphs."""
    compile_id = str(torch._guards.CompileContext.current_compile_id() or "none")
    path = Path(folder) / f"operators_{compile_id.replace('/', '_')}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([dataclasses.asdict(s) for s in sites], indent=1) + "\n")
    except OSError as error:
        log.warning("ljcompile: dump: %s", error)


def _named(names: dict[Any, str], node: fx.Node) -> str | None:
    try:
        return names.get(node.target)
    except TypeError:  # a target that does not hash
        return None


def _is_mode(node: fx.Node) -> bool:
    """Whether the call changes how later ones run: autocast, gradients."""
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    return "autocast" in name or "grad_enabled" in name or "inference_mode" in name


def _row_is_open(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """1 for the rows of a mask in which something counts; NaN, which eager gives, for others."""
    shut = torch.amax(mask, -1, True) == -math.inf
    return torch.where(shut, math.nan, 1.0).to(dtype)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return kernel(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)[0]


_POINTWISE = """
add sub mul div neg where logical_not logical_and eq ne le lt ge gt
""".split()  # noqa: SIM905

#: How a step is called.
_STEPS: dict[str, Callable[..., Any]] = {
    "permute": torch.permute,
    "reshape": torch.reshape,
    "unsqueeze": torch.unsqueeze,
    "squeeze": torch.squeeze,
    "flatten": torch.flatten,
    "expand": lambda x, sizes: x.expand(sizes),
    "slice": lambda x, dim, start, end: torch.ops.aten.slice.Tensor(x, dim, start, end),
    "full": lambda value, dtype: torch.full((), value, dtype=dtype),
    "convert": lambda x, dtype: x.to(dtype),
    "all": torch.all,
    "amax": torch.amax,
    "pad": lambda x, n: functional.pad(x, (0, n)),
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "row_is_open": _row_is_open,
    "attention": _attention,
    "linear_cross_entropy": linear_cross_entropy,
    **{name: getattr(torch, name) for name in _POINTWISE},
}


def _replace(
    gm: fx.GraphModule, nodes: list[fx.Node], at: int, steps: list[Any], dead: list[int]
) -> str | None:
    """Puts `steps` in the place of node `at` and removes `dead`; or says why not."""
    old = nodes[at]
    want = old.meta["example_value"]
    made: list[fx.Node] = []

    def call(name: str, *args: Any) -> fx.Node:
        node = gm.graph.call_function(_STEPS[name], args)
        values = [a.meta["example_value"] if isinstance(a, fx.Node) else a for a in args]
        node.meta.update({k: v for k, v in old.meta.items() if k != "example_value"})
        node.meta["example_value"] = _STEPS[name](*values)
        made.append(node)
        return node

    mode = getattr(want, "fake_mode", None)
    if mode is None:
        return "the graph has no example values"
    results: list[fx.Node] = []
    with gm.graph.inserting_before(old), mode, torch.set_grad_enabled(want.requires_grad):
        for name, args in steps:
            values = [_argument(kind, v, nodes, results) for kind, v in args]
            if name == "attention":
                # The kernel reads rows of the operands as they lie in memory.
                for i, x in enumerate(values[:3]):
                    if x.meta["example_value"].stride(-1) != 1:
                        values[i] = call("contiguous", x)
            results.append(call(name, *values))
        got = results[-1].meta["example_value"]
        if got.stride() != want.stride():
            # As eager lays it out; a copy that nobody sees is not made.
            order = sorted(range(want.dim()), key=lambda d: -int(want.stride(d)))
            x = call("clone", call("permute", results[-1], order))
            results.append(call("permute", x, [order.index(d) for d in range(want.dim())]))
            got = results[-1].meta["example_value"]
    if (got.dtype, got.shape, got.stride()) != (want.dtype, want.shape, want.stride()):
        for node in reversed(made):
            gm.graph.erase_node(node)
        return "the result has another type or layout"
    old.replace_all_uses_with(results[-1])
    for i in sorted(dead, reverse=True):
        gm.graph.erase_node(nodes[i])
    return None


def _argument(kind: str, value: Any, nodes: list[fx.Node], results: list[fx.Node]) -> Any:
    if kind == "call":
        return nodes[value]
    if kind == "step":
        return results[value]
    return getattr(torch, value) if kind == "dtype" else value
