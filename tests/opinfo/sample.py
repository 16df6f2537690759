"""The fixed subset that the normal tests run: a stride through everything, and what once failed."""

from __future__ import annotations

from database import Item, items

DTYPES = ["f32", "i64", "bf16", "bool", "f64", "f16", "c64", "i32", "u8"]
MODES = ["forward", "grad", "inplace", "errors"]

#: Every so many items, in the order of dtype, mode and operator.
STEP = 60

#: Items that failed once, one a kind of fault.
KEPT: list[str] = []


def chosen() -> list[str]:
    """Names of the items, each of them once."""
    everything = sorted(
        items(DTYPES, MODES),
        key=lambda item: (DTYPES.index(item.dtype), MODES.index(item.mode), item.op),
    )
    names = [str(item) for item in everything[::STEP]]
    unknown = {name for name in KEPT if Item.parse(name) not in set(everything)}
    if unknown:
        raise ValueError(f"not in this torch's database: {sorted(unknown)}")
    return list(dict.fromkeys([*KEPT, *names]))
