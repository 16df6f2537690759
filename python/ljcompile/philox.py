"""Random numbers made in our own kernels: a seed from torch's generator, then Philox by position.

Every operator that draws takes one 64-bit seed from torch's default generator when it runs, so
that ``torch.manual_seed`` makes runs repeat; its elements are Philox of that seed and of their
positions, so they depend neither on threads nor on the layout, and a backward that computes them
again gets the same ones. They are not the numbers that eager draws:
``options={"fallback_random": True}`` leaves these operators to ATen. So does an explicit
``generator=``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_MULTIPLIER, _WEYL, _ROUNDS = 0xD256D193, 0x9E3779B9, 10
_WORD = 0xFFFFFFFF

torch.library.define(
    "ljcompile::philox",
    "(Tensor seed, SymInt[] size) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def philox(seed: Tensor, size: Sequence[int]) -> Tensor:
    """Philox2x32-10 in torch operators, for graphs that run uncompiled.

    Args:
        seed: 0-d i64.
        size: Shape of the result.

    Returns:
        i64 of independent random bits; element `i` in row-major order is Philox of the counter
        ``i ^ (seed >> 32 << 32)`` under the key ``seed & 0xFFFFFFFF``.

    """
    position = torch.arange(math.prod(size), device=seed.device).reshape(tuple(size))
    key = seed & _WORD
    x0, x1 = position & _WORD, ((position >> 32) ^ (seed >> 32)) & _WORD
    for turn in range(_ROUNDS):
        if turn:
            key = (key + _WEYL) & _WORD
        product = x0 * _MULTIPLIER
        x0, x1 = ((product >> 32) & _WORD) ^ key ^ x1, product & _WORD
    return (x1 << 32) | x0


torch.library.impl("ljcompile::philox", "CompositeExplicitAutograd", philox)


@torch.library.register_fake("ljcompile::philox")
def _(seed: Tensor, size: Sequence[int]) -> Tensor:
    return seed.new_empty(size)


def _bits(size: Sequence[int]) -> Tensor:
    seed = aten.randint.low(-(2**63), 2**63 - 1, [], dtype=torch.int64)
    return torch.ops.ljcompile.philox(seed, size)


#: Significand bits: uniform numbers are multiples of 2**-digits, as eager's are.
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _unit(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform numbers of [0, 1) from the lower bits."""
    digits = _DIGITS[dtype]
    opmath = torch.float64 if dtype == torch.float64 else torch.float32
    return ((bits & (2**digits - 1)).to(opmath) * 2.0**-digits).to(dtype)


def _rand(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    return _unit(_bits(size), dtype)


def _randn(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Box and Muller's transform."""
    if dtype == torch.float64:
        both = _bits([2, *size])
        radius, angle = 1.0 - _unit(both[0], dtype), _unit(both[1], dtype)
    else:
        bits = _bits(size)
        radius = ((bits & _WORD) + 1).to(torch.float32) * 2.0**-32
        angle = _unit(bits >> 32, torch.float32)
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).to(dtype)


def _randint(low: Any, high: Any, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """As even as 32 random bits are, and from ranges that need more as even as 63."""
    count, bits = high - low, _bits(size)
    if isinstance(count, int) and count > 2**32:
        return ((bits & (2**63 - 1)) % count + low).to(dtype)
    return ((((bits & _WORD) * count >> 32) & _WORD) + low).to(dtype)


def _bernoulli(size: Sequence[int], p: float) -> Tensor:
    """True with probability `p`, by a comparison of all 64 bits."""
    bits = _bits(size)
    if p >= 1.0:
        return bits == bits
    return bits < int(p * 2.0**64) - 2**63


def _ours(device: Any, layout: Any = None) -> bool:
    return torch.device(device or "cpu").type == "cpu" and layout in (None, torch.strided)


def _sized(draw: Callable[..., Tensor], leading: int) -> Callable[..., Any]:
    """The decomposition of an operator that takes `leading` arguments and a size."""

    def run(*args, dtype=None, layout=None, device=None, pin_memory=None):
        *numbers, size = args
        default = torch.int64 if leading else torch.get_default_dtype()
        dtype = default if dtype is None else dtype
        # A single number is a seed, ours among them.
        if not _ours(device, layout) or pin_memory or not size or not _drawable(draw, dtype):
            return NotImplemented
        if leading:
            low, high = numbers if leading == 2 else (0, *numbers)
            return draw(low, high, size, dtype)
        return draw(size, dtype)

    return run


def _drawable(draw: Callable[..., Tensor], dtype: torch.dtype) -> bool:
    return dtype in _DIGITS or (draw is _randint and dtype in _INTEGERS)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _like(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """The decomposition of an operator that takes a tensor for its shape and layout."""

    def run(
        self, *numbers, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None
    ):
        dtype = self.dtype if dtype is None else dtype
        if not _ours(device or self.device, layout or self.layout) or not _drawable(draw, dtype):
            return NotImplemented
        if draw is _randint:
            low, high = numbers if len(numbers) == 2 else (0, *numbers)
            values = draw(low, high, self.shape, dtype)
        else:
            values = draw(self.shape, dtype)
        return _laid_out(values, self, memory_format)

    return run


def _laid_out(values: Tensor, like: Tensor, memory_format: torch.memory_format | None) -> Tensor:
    form = torch.preserve_format if memory_format is None else memory_format
    return aten.copy(torch.empty_like(like, dtype=values.dtype, memory_format=form), values)


def _changed(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """The functional form of an in-place operator: the layout is that of the tensor filled."""

    def run(self, *numbers, generator=None):
        if generator is not None or not _ours(self.device, self.layout):
            return NotImplemented
        values = draw(self, *numbers)
        return values if values is NotImplemented else _laid_out(values, self, None)

    return run


def _in_opmath(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`draw(self, dtype, *numbers)` with 16-bit results computed in f32 and rounded once."""

    def run(self: Tensor, *numbers: float) -> Tensor:
        if self.dtype not in _DIGITS:
            return NotImplemented
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return draw(self, wide, *numbers).to(self.dtype)

    return run


@_in_opmath
def _uniform(self: Tensor, wide: torch.dtype, low: float = 0.0, high: float = 1.0) -> Tensor:
    if low > high:
        raise RuntimeError(f"uniform_ expects from <= to, but found from={low} > to={high}")
    return _rand(self.shape, wide) * (high - low) + low


@_in_opmath
def _normal(self: Tensor, wide: torch.dtype, mean: float = 0.0, std: float = 1.0) -> Tensor:
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return _randn(self.shape, wide) * std + mean


@_in_opmath
def _exponential(self: Tensor, wide: torch.dtype, rate: float = 1.0) -> Tensor:
    if rate <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={rate}")
    return -torch.log1p(-_rand(self.shape, wide)) / rate


def _bernoulli_p(self: Tensor, p: float = 0.5) -> Tensor:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return _bernoulli(self.shape, p).to(self.dtype)


def _native_dropout(self: Tensor, p: float, train: bool | None) -> Any:
    if not self.dtype.is_floating_point or not _ours(self.device, self.layout):
        return NotImplemented
    if train is False or p == 0:
        return self.clone(), torch.ones_like(self, dtype=torch.bool)
    kept = _laid_out(_bernoulli(self.shape, 1 - p), self, None)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return self * kept * scale, kept


@functools.cache
def table() -> dict[str, Callable[..., Any]]:
    """Decompositions by overload name."""
    return {
        "rand.default": _sized(_rand, 0),
        "randn.default": _sized(_randn, 0),
        "randint.default": _sized(_randint, 1),
        "randint.low": _sized(_randint, 2),
        "rand_like.default": _like(_rand),
        "randn_like.default": _like(_randn),
        "randint_like.default": _like(_randint),
        "randint_like.low_dtype": _like(_randint),
        "uniform.default": _changed(_uniform),
        "normal_functional.default": _changed(_normal),
        "exponential.default": _changed(_exponential),
        "bernoulli.p": _changed(_bernoulli_p),
        "native_dropout.default": _native_dropout,
    }
