"""``ljcompile.explain(fn)(*args)``: what was captured, why it broke, what runs where, its cost."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo import utils as dynamo_utils

from . import stats

#: Keys under which Dynamo times the whole compilation of a frame, by version.
_FRAME_KEYS = ("_compile.compile_inner", "entire_frame_compile")


@dataclass
class Break:
    """A place where Dynamo ended a graph."""

    reason: str
    """Dynamo's words."""
    line: str
    """``file:line: text``; empty if Dynamo does not say."""
    count: int = 1
    """How often."""


@dataclass
class Report:
    """What `explain` found. Printing it gives the text form."""

    result: Any
    """What the call returned."""
    graphs: list[stats.Record] = field(default_factory=list)
    """The ATen graphs that reached the compiler."""
    sites: list[stats.Site] = field(default_factory=list)
    """Operators found spelled out above autograd, or nearly."""
    breaks: list[Break] = field(default_factory=list)
    """Where Dynamo broke the graph."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Compile seconds: ``dynamo``, ``aot``, and our stages."""

    @property
    def ops(self) -> int:
        """Operator calls in all graphs."""
        return sum(g.ops for g in self.graphs)

    @property
    def kernels(self) -> int:
        """Launches of our kernels in all graphs."""
        return sum(g.kernels for g in self.graphs)

    @property
    def fallbacks(self) -> list[dict[str, Any]]:
        """Operators that ATen runs, with reason and count, most frequent first."""
        count: Counter[tuple[str, str]] = Counter()
        for graph in self.graphs:
            for f in graph.fallbacks:
                count[f["target"], f["reason"]] += f["count"]
        order = sorted(count.items(), key=lambda item: (-item[1], item[0]))
        return [{"target": t, "reason": r, "count": n} for (t, r), n in order]

    def __str__(self) -> str:
        lines = [f"graphs: {len(self.graphs)}, breaks: {sum(b.count for b in self.breaks)}"]
        lines += [f"ops: {self.ops}, kernels: {self.kernels}"]
        for i, g in enumerate(self.graphs):
            how = (
                f"eager: {g.eager}"
                if g.eager
                else f"{g.kernels} kernels, {g.matmuls} matmuls ({g.own_matmuls} own)"
            )
            lines.append(f"  graph {i} ({g.name}): {g.ops} ops, {how}, cache {g.cache}")
            lines += [f"    stage {f['stage']} failed: {f['message']}" for f in g.faults]
        count = Counter((s.family, s.found, s.declined) for s in self.sites)
        for (family, found, declined), n in count.items():
            how = f"left as it is: {declined}" if found else f"not found: {declined}"
            lines.append(f"  {n} x {family}: {how if declined else 'one operator'}")
        if self.breaks:
            lines.append("breaks:")
            lines += [
                f"  {b.count} x {b.line or 'unknown line'}\n    {b.reason}" for b in self.breaks
            ]
        products = [p for g in self.graphs for p in g.products]
        if products:
            lines.append(f"matrix products: {sum(p['count'] for p in products)}")
            lines += [f"  {_product(p)}" for p in products]
        lines.append(f"ATen fallbacks: {sum(f['count'] for f in self.fallbacks)}")
        lines += [f"  {f['count']} x {f['target']}: {f['reason']}" for f in self.fallbacks]
        lines.append("compile seconds:")
        lines += [f"  {stage:<10} {seconds:8.3f}" for stage, seconds in self.seconds.items()]
        return "\n".join(lines)


def _product(p: dict[str, Any]) -> str:
    """One line about matrix products of one kind."""
    times = ""
    if p["own_ns"] or p["aten_ns"]:
        times = f": own {p['own_ns'] / 1e3:.1f} us, aten {p['aten_ns'] / 1e3:.1f} us"
    return f"{p['count']} x {p['what']} by {p['by']} ({p['reason']}{times})"


def explain(fn: Callable[..., Any], **compile_options: Any) -> Callable[..., Report]:
    """Compiles `fn` afresh, runs it once and reports.

    Args:
        fn: A function or module.
        compile_options: Passed on to ``torch.compile`` (``dynamic=``, ``options=``…).

    Returns:
        A function of the arguments of `fn` that runs it, prints a `Report` and returns it. If the
        result needs gradients, call ``report.result`` backwards before compiling something else
        and read ``ljcompile.records`` for the backward graph.

    """

    # Not `wraps`: a module's attributes must not end up on the function.
    @functools.wraps(getattr(fn, "forward", fn), assigned=("__doc__",), updated=())
    def run(*args: Any, **kwargs: Any) -> Report:
        torch._dynamo.reset()
        stats.clear()
        breaks_before = Counter(dynamo_utils.counters["graph_break"])
        frames_before = _frame_seconds()
        compiled = torch.compile(fn, backend="ljcompile", **compile_options)
        result = compiled(*args, **kwargs)
        report = Report(
            result=result,
            graphs=list(stats.records),
            sites=list(stats.sites),
            breaks=_breaks(Counter(dynamo_utils.counters["graph_break"]) - breaks_before),
            seconds=_seconds(_frame_seconds() - frames_before),
        )
        print(report)
        return report

    return run


def _frame_seconds() -> float:
    times = dynamo_utils.compilation_time_metrics
    for key in _FRAME_KEYS:
        if key in times:
            return sum(times[key])
    return 0.0


def _breaks(counted: Counter[str]) -> list[Break]:
    """Breaks with their line from the graphs, and those of frames without a graph by reason."""
    with_line = Counter(stats.breaks)
    out = [Break(reason, line, count) for (reason, line), count in with_line.items()]
    located = {reason for reason, _ in with_line}
    for reason, count in counted.items():
        words = reason.strip().splitlines()
        # "  Explanation: …" lines follow; the first line is what the graphs carry.
        if words and words[0] not in located:
            out.append(Break(" ".join(w.strip() for w in words[:2]), "", count))
    return out


def _seconds(frames: float) -> dict[str, float]:
    backend = sum(stats.backend_seconds)
    ours: Counter[str] = Counter()
    for graph in stats.records:
        for stage, seconds in graph.seconds.items():
            ours[stage] += seconds
    ahead = [g for g in stats.records if g.name != "backward"]
    inside = sum(sum(g.seconds.values()) for g in ahead)
    return {
        "dynamo": max(frames - backend, 0.0),
        "aot": max(backend - inside, 0.0),
        **dict(ours),
    }
