"""The fixed subset that the normal tests run: a stride through everything, and what once failed."""

from __future__ import annotations

from database import Item, items

DTYPES = ["f32", "i64", "bf16", "bool", "f64", "f16", "c64", "i32", "u8"]
MODES = ["forward", "grad", "inplace", "errors"]

#: Every so many items, in the order of dtype, mode and operator.
STEP = 60

#: Items that failed once, one a kind of fault.
KEPT: list[str] = [
    # Views with sizes known at run time only; sizes that are conditions.
    "tensor_split:f32:grad",
    "narrow:f32:forward",
    # A call that ran before the one that gives its size.
    "nn.functional.nll_loss:f32:grad",
    # A difference of nearly equal numbers.
    "nn.functional.soft_margin_loss:f32:grad",
    # A dim counted from the end.
    "unique_consecutive:f32:forward",
    # Strides that are not dense.
    "select_scatter:f32:forward",
    # Copies that were views.
    "split_with_sizes_copy:f32:forward",
    # Bits of complex numbers: conjugates, copies, strides of zero.
    "fft.ihfftn:f32:grad",
    "linalg.vander:c64:grad",
    "sgn:c64:inplace",
    # Ends of a range of integers that are not integers.
    "arange:i64:forward",
    # A division by zero in a loop that does not run.
    "tril_indices:i64:forward",
    # Fused products; both operands brought into one layout.
    "__rmod__:bf16:grad",
    "lerp:f32:grad",
    "copysign:f32:grad",
]


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
