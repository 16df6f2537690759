"""Where the first call's time goes, and what was compiled; for the demo and the benchmarks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from typing import Any

from torch._dynamo import utils as dynamo_utils

#: Keys under which Dynamo times the whole compilation of a frame, by version.
FRAME_KEYS = ("_compile.compile_inner", "entire_frame_compile")


def frame_seconds() -> float:
    """Seconds Dynamo spent compiling frames so far, backends included."""
    times = dynamo_utils.compilation_time_metrics
    return next((sum(times[key]) for key in FRAME_KEYS if key in times), 0.0)


def distribution_is_loaded() -> bool:
    """Whether our backend has been loaded (a stand-in may be in use)."""
    return "ljcompile.backend" in sys.modules


class Watch(contextlib.AbstractContextManager):
    """Times compilation inside its blocks; enter it as often as there are steps to watch.

    Our share is the wall time inside our graph compiler, whatever it does there; the stages within
    it are what it reports itself.
    """

    def __init__(self) -> None:
        self.frames = 0.0
        self.ours: dict[str, float] = {}
        """Seconds in our compiler, by kind of graph."""
        self.plans: list[Any] = []
        """The compiled graphs themselves."""
        self._patched: Any = None

    def __enter__(self) -> Watch:
        self._frames_before = frame_seconds()
        with contextlib.suppress(ImportError):
            self._patch()
        return self

    def __exit__(self, *exc: object) -> None:
        self.frames += frame_seconds() - self._frames_before
        if self._patched is not None:
            module, original = self._patched
            module.compile_graph = original
            self._patched = None

    def _patch(self) -> None:
        from ljcompile import backend

        original = backend.compile_graph

        def timed(gm: Any, inputs: Any, name: str, *rest: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                plan = original(gm, inputs, name, *rest, **kwargs)
                if hasattr(plan, "release_memory"):
                    self.plans.append(plan)
                return plan
            finally:
                self.ours[name] = self.ours.get(name, 0.0) + time.perf_counter() - start

        backend.compile_graph = timed
        self._patched = (backend, original)

    @property
    def our_share(self) -> float:
        """Seconds of compilation outside Dynamo and AOTAutograd."""
        return sum(self.ours.values())

    def split(self, first_call: float) -> dict[str, float]:
        """Seconds of a first call of `first_call` seconds, by part; the parts add up to it."""
        backward = self.ours.get("backward", 0.0)
        ahead = self.our_share - backward
        in_backend = ahead
        if distribution_is_loaded():
            from ljcompile import stats

            in_backend = max(sum(stats.backend_seconds), ahead)
        parts = {
            "Dynamo": max(self.frames - in_backend, 0.0),
            "AOTAutograd": in_backend - ahead,
        }
        if not self.ours:
            parts = {"Dynamo and the backend": self.frames}
        stages = self.stages()
        for stage, seconds in stages.items():
            parts[f"ljcompile: {stage}"] = seconds
        if self.our_share:
            parts["ljcompile: the rest"] = max(self.our_share - sum(stages.values()), 0.0)
        parts["running the step"] = max(first_call - sum(parts.values()), 0.0)
        return parts

    @staticmethod
    def stages() -> dict[str, float]:
        """Seconds by stage of our compiler, all graphs together, in the order of the stages."""
        total: dict[str, float] = {}
        if distribution_is_loaded():
            from ljcompile import stats

            for record in stats.records:
                for stage, seconds in record.seconds.items():
                    total[stage] = total.get(stage, 0.0) + seconds
        return total

    @staticmethod
    def fallbacks() -> list[tuple[int, str, str]]:
        """`(count, operator, reason)` of everything ATen runs that could be a kernel of ours."""
        count: Counter[tuple[str, str]] = Counter()
        if distribution_is_loaded():
            from ljcompile import stats

            for record in stats.records:
                for f in record.fallbacks:
                    count[f["target"], f["reason"]] += f["count"]
        return sorted(((n, t, r) for (t, r), n in count.items()), key=lambda x: (-x[0], x[1]))

    def summary(self) -> str:
        """Graphs, kernels and fallbacks, as text."""
        if not self.ours:
            return "graphs and kernels: not counted by this backend"
        from ljcompile import stats

        lines = []
        for record in stats.records:
            lines.append(
                f"{record.name} graph: {record.ops} ATen ops -> {record.kernels} kernel launches "
                f"({record.distinct_kernels} distinct kernels), {record.matmuls} matmuls"
                + (f"; through eager: {record.eager}" if record.eager else "")
            )
            lines += [f"  stage {f['stage']} failed: {f['message']}" for f in record.faults]
        fallbacks = self.fallbacks()
        lines.append(
            f"graphs: {len(stats.records)}, "
            f"kernels: {sum(r.distinct_kernels for r in stats.records)}, "
            f"fallbacks to ATen: {sum(n for n, _, _ in fallbacks)}"
        )
        lines += [f"  {n} x {target}: {reason}" for n, target, reason in fallbacks]
        return "\n".join(lines)
