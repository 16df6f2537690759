"""What PyTorch ships for checking itself, as work items: entry × dtype × mode, and samples.

A database is a module of this folder; the first part of an entry's name says which (`module.` in
`module.nn.Linear`), and a name without one is an operator's. Such a module has

* ``MODES``, the modes of its items, and ``entries()``, what it has by name;
* ``supports(name, dtype, mode)``, whether such an item exists;
* ``samples(item, count)`` and ``call(item)``, which is applied to a sample's arguments; or, where
  one call is not all there is to it, ``check(item, count, note)``.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch

DTYPES = {
    "f32": torch.float32,
    "i64": torch.int64,
    "bf16": torch.bfloat16,
    "bool": torch.bool,
    "f64": torch.float64,
    "f16": torch.float16,
    "c64": torch.complex64,
    "i32": torch.int32,
    "u8": torch.uint8,
}

#: Modules by what names of their entries begin with.
DATABASES = {
    "op": "operators",
    "foreach": "foreach",
    "module": "modules",
    "optim": "optimizers",
    "hop": "higher_order",
}

#: All modes, and whether gradients are taken.
MODES = {
    "forward": False,
    "grad": True,
    "inplace": False,
    "errors": False,
    # Modules: gradients and buffers in both states, and evaluation without gradients.
    "train": True,
    "eval": True,
    "infer": False,
    # Optimizers: a compiled step, and all of a training step.
    "step": False,
    "loop": False,
}

SEED = 1234

#: Whether this is the older torch, whose fixed sample is smaller.
OLD = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 9)


@dataclasses.dataclass(frozen=True)
class Item:
    """What is checked at once: all samples of one entry in one dtype and mode."""

    op: str
    dtype: str
    mode: str
    """One of `MODES`."""

    def __str__(self) -> str:
        return f"{self.op}:{self.dtype}:{self.mode}"

    @classmethod
    def parse(cls, text: str) -> Item:
        return cls(*text.rsplit(":", 2))

    @property
    def database(self) -> Any:
        first = self.op.partition(".")[0]
        return database(first if first in DATABASES else "op")

    @property
    def entry(self) -> Any:
        """What the database has under this name."""
        return self.database.entries()[self.op]

    @property
    def grad(self) -> bool:
        return MODES[self.mode]


def database(name: str) -> Any:
    """The module of a database."""
    return importlib.import_module(DATABASES[name])


def items(dtypes: list[str], modes: list[str], names: list[str]) -> Iterator[Item]:
    """All items that the named databases say exist, dtype by dtype."""
    for dtype in dtypes:
        for name in names:
            source = database(name)
            for entry in source.entries():
                for mode in source.MODES:
                    if mode in modes and source.supports(entry, dtype, mode):
                        yield Item(entry, dtype, mode)


def _same(out: Any) -> Any:
    return out


@dataclasses.dataclass
class Sample:
    """One call's arguments."""

    name: str
    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    """First argument, other positional ones, keywords."""
    process: Callable[[Any], Any] = _same
    """What of the outputs is differentiated: some have a free phase or sign."""


def spread(found: list[Any], count: int | None) -> list[Any]:
    """`count` of the list, evenly spread, first and last among them."""
    if count is None or len(found) <= count:
        return found
    if count == 1:
        return found[:1]
    return [found[round(i * (len(found) - 1) / (count - 1))] for i in range(count)]


def importable() -> None:
    """Lets torch's test utilities be imported where not all they want is installed."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        # They derive a class that is not used here from this package's.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
