"""Counters and one record per compiled graph, for ``explain``, tests and benchmarks."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """One graph that reached the backend's compiler."""

    name: str
    """``forward``, ``backward`` or ``inference``."""
    ops: int = 0
    """Operator calls in the ATen graph."""
    own_ops: int = 0
    """Those that neither rearrange metadata nor are matrix products, convolutions or attention."""
    kernels: int = 0
    """Launches of kernels of our own."""
    kernel_bytes: int = 0
    """Bytes that these read and write at the traced sizes, each buffer once a launch."""
    distinct_kernels: int = 0
    """Kernels of our own that were generated for them."""
    matmuls: int = 0
    """Matrix products into the plan's memory."""
    own_matmuls: int = 0
    """Those of them that our own kernels make."""
    products: list[dict[str, Any]] = field(default_factory=list)
    """They by kind: ``what``, ``count``, ``by`` (``own`` or ``aten``), ``reason`` (``timed``,
    ``model``, ``option``, ``no kernels``), ``own_ns`` and ``aten_ns`` (0 if unknown)."""
    fallbacks: list[dict[str, Any]] = field(default_factory=list)
    """Operators that ATen runs: ``target``, ``reason``, ``count``; ``bytes`` of operands and
    results; ``library`` for matrix products, convolutions and attention."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Compile seconds by stage."""
    cache: str = "off"
    """``hit``, ``miss`` or ``off``."""
    eager: str | None = None
    """Why the whole graph runs through FX instead, if it does."""
    faults: list[dict[str, str]] = field(default_factory=list)
    """Stages that failed and were done without: ``stage``, ``message``."""


@dataclass
class Site:
    """An operator that was found spelled out in a graph above autograd, or nearly."""

    family: str
    """``attention``, ``linear-cross-entropy``."""
    found: bool
    """Whether it was found."""
    declined: str | None
    """Why it is left as it is; None where it was replaced."""
    line: str = ""
    """Where the program has it."""


#: ``graphs``, ``kernels``, ``fallbacks``, ``eager_graphs``, ``cache_hit``, ``cache_miss``.
counters: Counter[str] = Counter()

#: Every graph since the last `clear`, in the order of compilation.
records: list[Record] = []

#: Operators found above autograd since the last `clear`.
sites: list[Site] = []

#: Breaks of the Dynamo graphs handed to us: ``(reason, where)``.
breaks: list[tuple[str, str]] = []

#: Seconds inside the backend call, AOTAutograd included (the lazy backward is not).
backend_seconds: list[float] = []

_lock = threading.Lock()


def add(record: Record) -> None:
    """Adds a graph."""
    with _lock:
        records.append(record)
        counters["graphs"] += 1
        counters["kernels"] += record.kernels
        counters["fallbacks"] += sum(f["count"] for f in record.fallbacks)
        counters["eager_graphs"] += record.eager is not None
        if record.cache in ("hit", "miss"):
            counters[f"cache_{record.cache}"] += 1


def clear() -> None:
    """Forgets everything counted so far."""
    with _lock:
        counters.clear()
        for items in (records, sites, breaks, backend_seconds):
            items.clear()
