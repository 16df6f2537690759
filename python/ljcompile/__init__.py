"""ljcompile: a torch.compile backend whose compiler is written in Rust.

Nothing is imported here: this package is loaded at the end of ``import torch`` (see
``integrations.autoload``), so the names below are resolved at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "ljcompile": "backend",
    "reset": "backend",
    "explain": "explain",
    "Options": "options",
    "counters": "stats",
    "records": "stats",
    "CompileError": "compiler",
}

__all__ = [*sorted(_LAZY), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ljcompile' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ljcompile.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
