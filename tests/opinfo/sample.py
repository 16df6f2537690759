"""The fixed subset that the normal tests run: a stride through everything, and what once failed."""

from __future__ import annotations

from database import MODES, OLD, Item, items

DTYPES = ["f32", "i64", "bf16", "bool", "f64", "f16", "c64", "i32", "u8"]

#: Every so many items of a database, in the order of dtype, mode and name; the first of a database
#: that is taken. Optimizers compile each of their option sets, so few of them do.
STEPS = {"op": (60, 0), "foreach": (199, 7), "module": (79, 3), "optim": (43, 4), "hop": (29, 2)}

#: The older torch runs less of it, and no database that it has in another form.
if OLD:
    STEPS = {"op": (211, 0), "module": (199, 3), "optim": (43, 4)}

#: Items that failed once, one a kind of fault.
KEPT: list[str] = [
    # A loss without its batch has no dim; probabilities in another layout.
    "module.nn.MultiLabelMarginLoss:f32:infer",
    # Numbers that go from call to call, and into a factor.
    "optim.Adafactor:f32:step",
    # A tuple that must not become a list.
    "hop.flex_attention.simple:f32:forward",
    # What eager refuses.
    "foreach.sub:f32:forward",
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


def chosen(databases: list[str] | None = None) -> list[str]:
    """Names of the items of these databases (all, by default), each of them once."""
    modes = list(MODES)
    names, known = [], set()
    for database, (step, first) in STEPS.items():
        if databases is not None and database not in databases:
            continue
        everything = sorted(
            items(DTYPES, modes, [database]),
            key=lambda item: (DTYPES.index(item.dtype), modes.index(item.mode), item.op),
        )
        known |= {str(item) for item in everything}
        names += [str(item) for item in everything[first::step]]
    kept = [name for name in KEPT if databases is None or _database(name) in databases]
    unknown = set(kept) - known
    if OLD:
        kept = [name for name in kept if name in known]
    elif unknown:
        raise ValueError(f"not in this torch's database: {sorted(unknown)}")
    return list(dict.fromkeys([*kept, *names]))


def _database(name: str) -> str:
    first = Item.parse(name).op.partition(".")[0]
    return first if first in STEPS else "op"
