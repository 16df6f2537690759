"""What is not compared, and why. That something fails is no reason."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import Any

from database import OLD


@dataclasses.dataclass(frozen=True)
class Exception_:
    """One row: items by pattern, what of them is left out, and the reason."""

    item: str
    """A pattern of `op:dtype:mode`."""
    what: str
    """`all`, or a regular expression of the faults that are excused."""
    reason: str


_UNSET = "eager's result is memory that nobody has written"

TABLE = [
    Exception_("empty:*", "differ|error|NaN", _UNSET),
    Exception_("empty_like:*", "differ|error|NaN", _UNSET),
    Exception_("empty_strided:*", "differ|error|NaN", _UNSET),
    Exception_("empty_permuted:*", "differ|error|NaN", _UNSET),
    Exception_("new_empty:*", "differ|error|NaN", _UNSET),
    Exception_("new_empty_strided:*", "differ|error|NaN", _UNSET),
    Exception_(
        "polygamma.*:inplace",
        "graph ran uncompiled: AOTAutograd",
        "AOTAutograd takes polygamma_ for a custom operator with an alias and refuses it, "
        "whatever the backend; it runs as captured and is compared all the same",
    ),
    Exception_(
        "hop.while_loop_stack_output.*",
        "noncontiguous: raises UncapturedHigherOrderOpError",
        "Dynamo refuses loops whose body changes the strides of what it carries, for every backend",
    ),
]

#: What torch 2.8 gets wrong before or beside any backend, in what the fixed sample holds.
TABLE_28 = [
    Exception_(
        "optim.Adafactor:*",
        "AOTAutograd: KeyError: zuf|dtype is needed to compute eps1",
        "AOTAutograd does not trace floats read from tensors; Dynamo loses a dtype",
    ),
    Exception_(
        "narrow:*:forward",
        "graph ran uncompiled: AOTAutograd: GuardOnDataDependentSymNode",
        "AOTAutograd does not trace a start read from a tensor",
    ),
    Exception_(
        "unique_consecutive:*",
        "result 1 of aten.unique_consecutive",
        "the shape function gives indices the dtype of the values",
    ),
    Exception_("linalg.eig:*", "strides", "the shape function has another layout than eager"),
    Exception_(
        "module.nn.TransformerEncoderLayer:f64:*",
        "result 1 of aten._scaled_dot_product_flash_attention_for_cpu",
        "the shape function says f32 of a sum that is f64",
    ),
]
if OLD:
    TABLE += TABLE_28


def without_skipped(item: Any, samples: list[Any]) -> list[Any]:
    """The samples to run."""
    name = str(item)
    skipped = any(e.what == "all" and fnmatch.fnmatch(name, e.item) for e in TABLE)
    return [] if skipped else samples


def excused(item: Any, fault: str) -> bool:
    """Whether a fault is one that the table expects."""
    name = str(item)
    return any(
        fnmatch.fnmatch(name, e.item) and re.search(e.what, fault) for e in TABLE if e.what != "all"
    )
