"""Random programs: those that once failed, and a few fixed ones as a first look."""

from __future__ import annotations

import pytest
from generate import MUTATING
from run_fuzz import KEPT, run

# The last one hung: a constant that is a multiple of itself.
FIRST = [str(s) for s in (*range(20), *range(MUTATING, MUTATING + 15), MUTATING + 109)]


def statuses(names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    run(names, 50, 120.0, lambda r: found.update({r["done"]: f"{r['status']} {r['detail']}"}))
    return {name: status for name, status in found.items() if not status.startswith("ok")}


def test_kept_programs() -> None:
    names = [str(path) for path in sorted(KEPT.glob("*.json"))]
    if not names:
        pytest.skip("no program has failed yet")
    assert not statuses(names)


def test_first_programs() -> None:
    assert not statuses(FIRST)
