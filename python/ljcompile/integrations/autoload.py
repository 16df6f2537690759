"""Entry point of the group ``torch.backends``: runs at the end of ``import torch``.

It must be tiny and must never fail. All it does is to wait, by an import hook that removes itself
after its first use, for accelerate's module with the closed enum of Dynamo backends.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from typing import Any

TARGET = "accelerate.utils.dataclasses"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `TARGET` by the other finders and extends the module once it has been executed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != TARGET:
            return None
        uninstall()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _extend(module)

            # The loader object belongs to this spec alone. One that refuses the attribute leaves
            # accelerate as it is.
            with contextlib.suppress(AttributeError):
                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def _extend(module: Any) -> None:
    try:
        from . import accelerate

        accelerate.extend(module)
    except Exception:
        import logging

        logging.getLogger("ljcompile").debug("accelerate was not extended", exc_info=True)


def install() -> None:
    """Installs the hook, or extends accelerate at once if it is already loaded."""
    if TARGET in sys.modules:
        _extend(sys.modules[TARGET])
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Removes the hook."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
