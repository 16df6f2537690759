"""What the backend counted during a block of code."""

from __future__ import annotations

import importlib.util
import os


class Stats:
    """Collects kernels and fallbacks of the graphs compiled while the block runs.

    With a stand-in backend there is nothing to count: `available` is then false.
    """

    def __init__(self) -> None:
        self.available = os.environ.get(
            "LJ_BACKEND", "ljcompile"
        ) == "ljcompile" and importlib.util.find_spec("ljcompile")
        self.kernels = 0
        self.fallbacks: dict[str, list[str]] = {}
        """ATen op to the reasons it was given."""
        self.eager: list[str] = []
        """Why whole graphs ran through FX."""
        self.faults: list[str] = []
        """Stages that failed."""

    def __enter__(self) -> Stats:
        if self.available:
            import ljcompile

            self._seen = len(ljcompile.records)
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.available:
            return
        import ljcompile

        for record in ljcompile.records[self._seen :]:
            self.kernels += record.kernels
            if record.eager:
                self.eager.append(record.eager)
            self.faults += [f"{f['stage']}: {f['message']}" for f in record.faults]
            for f in record.fallbacks:
                reasons = self.fallbacks.setdefault(f["target"], [])
                if f["reason"] not in reasons:
                    reasons.append(f["reason"])
