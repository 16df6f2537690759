"""The options of ``torch.compile(..., backend="ljcompile", options={...})``."""

from __future__ import annotations

import dataclasses
import difflib
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The modes torch.compile knows. Kernels are the same in all of them today: there is no tuning
#: to turn on and no CUDA graph.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

#: Options that are one of a few words.
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "fence": (None, "before", "after"),
    "gemm": ("auto", "own", "aten"),
    "operators": ("auto", "always", "never"),
}


def _flag(name: str, default: bool) -> bool:
    return os.environ.get(name, str(int(default))).lower() not in ("", "0", "false", "no", "off")


def _default_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("LJCOMPILE_CACHE_DIR") or os.path.join(base, "ljcompile")


@dataclass(frozen=True)
class Options:
    """What a user may set. Every field is also a key of ``options={...}``."""

    strict: bool = field(default_factory=lambda: _flag("LJCOMPILE_STRICT", False))
    """A fault in a stage is an error instead of a fallback."""
    verify: bool = field(default_factory=lambda: _flag("LJCOMPILE_VERIFY", False))
    """Run the verifier after every stage (debug builds always do)."""
    cache: bool = field(default_factory=lambda: _flag("LJCOMPILE_CACHE", True))
    """Keep compiled graphs on disk."""
    cache_dir: str = field(default_factory=_default_cache_dir)
    """Where; ``LJCOMPILE_CACHE_DIR`` or ``~/.cache/ljcompile``."""
    dump: str | None = field(default_factory=lambda: os.environ.get("LJCOMPILE_DUMP") or None)
    """Directory that receives one artifact per stage; ``LJCOMPILE_DUMP``."""
    fallback_random: bool = field(default_factory=lambda: _flag("LJCOMPILE_FALLBACK_RANDOM", False))
    """Leave random numbers to ATen: eager's bits for eager's seed."""
    rewrite: bool = True
    """Run the rewrite stage."""
    rounding: bool = True
    """Allow rewrite rules that may change the last bits of a result."""
    operators: str = field(default_factory=lambda: os.environ.get("LJCOMPILE_OPERATORS", "auto"))
    """Put one operator for what spells it out (attention): where it is faster (``auto``), wherever
    it is legal (``always``), ``never``."""
    node_limit: int = 20_000
    """Size at which the e-graph of the rewrite stage stops growing."""
    gemm: str = field(default_factory=lambda: os.environ.get("LJCOMPILE_GEMM") or "auto")
    """Who makes matrix products: ``auto`` (whoever is faster), ``own`` kernels wherever there are
    some, or ``aten``; ``LJCOMPILE_GEMM``."""
    gemm_budget_ms: int = field(
        default_factory=lambda: int(os.environ.get("LJCOMPILE_GEMM_BUDGET_MS") or 80)
    )
    """Milliseconds that compiling one graph may spend on timing them; then a cost model decides.
    With 0 it decides alone and always alike. ``LJCOMPILE_GEMM_BUDGET_MS``."""
    fence: str | None = field(default_factory=lambda: os.environ.get("LJCOMPILE_FENCE") or None)
    """Debugging: run kernels between guard pages ``before`` or ``after`` every buffer; slow."""
    compile_threads: int = field(default_factory=lambda: min(os.cpu_count() or 1, 8))
    """Threads that generate code."""

    @classmethod
    def parse(cls, options: Mapping[str, Any] | Options | None) -> Options:
        """Checks names and types.

        Raises:
            ValueError: for an unknown key; names the near ones.
            TypeError: for a value of the wrong type, or options that are no mapping.

        """
        if options is None:
            return cls()
        if isinstance(options, cls):
            return options
        if not isinstance(options, Mapping):
            raise TypeError(f"ljcompile: options must be a dict, not {type(options).__name__}")
        hints = typing.get_type_hints(cls)
        for key, value in options.items():
            if key not in hints:
                raise ValueError(unknown("option", str(key), hints))
            _check(key, value, hints[key])
        parsed = dataclasses.replace(cls(), **options)
        for name, allowed in _CHOICES.items():
            value = getattr(parsed, name)
            if value not in allowed:
                words = [a for a in allowed if a is not None]
                raise ValueError(unknown(f"value of option {name!r}:", str(value), words))
        return parsed


def _check(key: str, value: Any, hint: Any) -> None:
    allowed = typing.get_args(hint) or (hint,)
    # `bool` is an `int`, but a flag given for a number is a mistake.
    if type(value) in allowed or (str in allowed and isinstance(value, os.PathLike)):
        least = 0 if key == "gemm_budget_ms" else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise ValueError(f"ljcompile: option {key!r} must be at least {least}, not {value}")
        return
    names = " or ".join(getattr(t, "__name__", str(t)) for t in allowed)
    raise TypeError(f"ljcompile: option {key!r} must be {names}, not {type(value).__name__}")


def unknown(what: str, key: str, known: typing.Iterable[str]) -> str:
    """A message for an unknown name: the near ones, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
    return f"ljcompile: unknown {what} {key!r}; {hint}"


def check_mode(mode: str | None) -> None:
    """Raises ValueError for a mode torch.compile does not have."""
    if mode is not None and mode not in MODES:
        raise ValueError(unknown("mode", str(mode), MODES))
