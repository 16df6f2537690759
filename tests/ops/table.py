"""The operators under test, as tables: a name, a function, and what its inputs must be like."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
NUMBERS = FLOATS + INTS
ALL = NUMBERS + BOOL


@dataclasses.dataclass(frozen=True)
class Op:
    """One pointwise operator (or a short formula of them)."""

    name: str
    fn: Callable[..., Tensor]
    arity: int = 1
    dtypes: tuple[torch.dtype, ...] = FLOATS
    low: float = -3.0
    """Inputs are drawn from `[low, high]`; integers within their dtype too."""
    high: float = 3.0
    grad: bool = True
    nonzero: tuple[int, ...] = ()
    """Positions of operands that must not be zero (integer division)."""
    special: bool = True
    """Whether NaN, infinities and the like are among the inputs."""


#: Not compared at infinities and the largest values, because eager has two answers there: gelu(inf)
#: is NaN by oneDNN (dense tensors of more than one element) and inf by ATen's own kernel; the
#: 16-bit sum with a factor is fused in vectors (and finite) and rounds the product in their tails.
APART = {"gelu": FLOATS, "add_alpha": (torch.bfloat16, torch.float16)}


def pointwise() -> list[Op]:
    unary = {
        "neg": (torch.neg, NUMBERS),
        "abs": (torch.abs, NUMBERS),
        "sign": (torch.sign, ALL),
        "square": (torch.square, NUMBERS),
        "relu": (torch.relu, NUMBERS),
        "exp": (torch.exp, FLOATS),
        "exp2": (torch.exp2, FLOATS),
        "expm1": (torch.expm1, FLOATS),
        "log1p": (torch.log1p, FLOATS),
        "sin": (torch.sin, FLOATS),
        "cos": (torch.cos, FLOATS),
        "tanh": (torch.tanh, FLOATS),
        "sigmoid": (torch.sigmoid, FLOATS),
        "erf": (torch.erf, FLOATS),
        "atan": (torch.atan, FLOATS),
        "sinh": (torch.sinh, FLOATS),
        "cosh": (torch.cosh, FLOATS),
        "asinh": (torch.asinh, FLOATS),
        "floor": (torch.floor, FLOATS),
        "ceil": (torch.ceil, FLOATS),
        "round": (torch.round, FLOATS),
        "trunc": (torch.trunc, FLOATS),
        "frac": (torch.frac, FLOATS),
        "reciprocal": (torch.reciprocal, FLOATS),
        "silu": (F.silu, FLOATS),
        "gelu": (F.gelu, FLOATS),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), FLOATS),
        "mish": (F.mish, FLOATS),
        "softplus": (F.softplus, FLOATS),
        "elu": (F.elu, FLOATS),
        "selu": (F.selu, FLOATS),
        "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), FLOATS),
        "hardtanh": (F.hardtanh, FLOATS),
        "hardsigmoid": (F.hardsigmoid, FLOATS),
        "hardswish": (F.hardswish, FLOATS),
        "relu6": (F.relu6, FLOATS),
        "logsigmoid": (F.logsigmoid, FLOATS),
        "clamp": (lambda x: x.clamp(-1, 2), FLOATS + INTS[:4]),
        "clamp_min": (lambda x: x.clamp(min=1), NUMBERS),
        "clamp_max": (lambda x: x.clamp(max=1), NUMBERS),
        "add_scalar": (lambda x: x + 3, NUMBERS),
        "rsub_scalar": (lambda x: 2 - x, NUMBERS),
        "mul_scalar": (lambda x: x * 1.7, ALL),
        "div_scalar": (lambda x: x / 3, NUMBERS),
        "pow2": (lambda x: x**2, NUMBERS),
        "pow3": (lambda x: x**3, NUMBERS),
        "pow_minus1": (lambda x: x**-1, FLOATS),
        "isnan": (torch.isnan, FLOATS),
        "isinf": (torch.isinf, FLOATS),
        "logical_not": (torch.logical_not, ALL),
        "bitwise_not": (torch.bitwise_not, INTS + BOOL),
        "floor_div_scalar": (lambda x: x // 3, NUMBERS),
        "remainder_scalar": (lambda x: x % 3, NUMBERS),
        "shift_left": (lambda x: x << 2, INTS),
        "shift_right": (lambda x: x >> 1, INTS),
        "gt_scalar": (lambda x: x > 1, NUMBERS),
        "eq_scalar": (lambda x: x == 2, NUMBERS),
    }
    positive = {
        "log": torch.log,
        "log2": torch.log2,
        "log10": torch.log10,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "pow_half": lambda x: x**0.5,
        "pow_minus_half": lambda x: x**-0.5,
    }
    binary = {
        "add": (torch.add, ALL),
        "sub": (torch.sub, NUMBERS),
        "mul": (torch.mul, ALL),
        "maximum": (torch.maximum, ALL),
        "minimum": (torch.minimum, ALL),
        "add_alpha": (lambda x, y: torch.add(x, y, alpha=2), NUMBERS),
        "atan2": (torch.atan2, FLOATS),
        "hypot": (torch.hypot, FLOATS),
        "fmax": (torch.fmax, FLOATS),
        "fmin": (torch.fmin, FLOATS),
        "copysign": (torch.copysign, FLOATS),
        "logical_and": (torch.logical_and, ALL),
        "logical_or": (torch.logical_or, ALL),
        "logical_xor": (torch.logical_xor, ALL),
        "bitwise_and": (torch.bitwise_and, INTS + BOOL),
        "bitwise_or": (torch.bitwise_or, INTS + BOOL),
        "bitwise_xor": (torch.bitwise_xor, INTS + BOOL),
        "eq": (torch.eq, ALL),
        "ne": (torch.ne, ALL),
        "lt": (torch.lt, ALL),
        "le": (torch.le, ALL),
        "gt": (torch.gt, ALL),
        "ge": (torch.ge, ALL),
        # In 16 bits eager rounds the difference in its vectors and not in their tails.
        "mse": (
            lambda x, y: F.mse_loss(*_same(x, y), reduction="none"),
            [torch.float32, torch.float64],
        ),
        "smooth_l1": (lambda x, y: F.smooth_l1_loss(*_same(x, y), reduction="none"), FLOATS),
    }
    division = {
        "div": torch.div,
        "floor_divide": torch.floor_divide,
        "remainder": torch.remainder,
        "fmod": torch.fmod,
        "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    }
    ternary = {
        "where": (lambda x, y, z: torch.where(x > 0, y, z), ALL),
        "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=2), NUMBERS),
        "lerp": (lambda x, y, z: torch.lerp(x, y, z), FLOATS),
        "clamp_tensor": (lambda x, y, z: torch.clamp(x, min=y, max=z), NUMBERS),
        "fused_formula": (lambda x, y, z: (x * y + z).tanh() * (x - y).exp(), FLOATS),
    }
    # floor_divide has no derivative in ATen.
    ops = [
        Op(name, fn, 1, dtypes, grad=name != "floor_div_scalar")
        for name, (fn, dtypes) in unary.items()
    ]
    ops += [Op(name, fn, low=0.1, high=4.0) for name, fn in positive.items()]
    ops += [Op(name, fn, 2, dtypes) for name, (fn, dtypes) in binary.items()]
    ops += [
        # Eager's vectors round a 16-bit quotient before truncating; ours is truncated exactly.
        Op(
            name,
            fn,
            2,
            [d for d in NUMBERS if name != "div_trunc" or d.itemsize != 2 or d == torch.int16],
            nonzero=(1,),
            special=False,
            grad=name != "floor_divide",
        )
        for name, fn in division.items()
    ]
    ops += [Op(name, fn, 3, dtypes, special=False) for name, (fn, dtypes) in ternary.items()]
    return ops


@dataclasses.dataclass(frozen=True)
class Form:
    """A function of one or more tensors of given shapes: reductions, norms, layout, indexing."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((3, 4, 17),)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    grad: bool = True
    layouts: bool = True
    """Whether to try other layouts than contiguous."""


def reductions() -> list[Form]:
    wide = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
    forms = []
    dims: list[Any] = [-1, 0, 1, (0, 2), (0, 1, 2)]
    for dim in dims:
        tag = str(dim).replace(" ", "")
        forms += [
            Form(f"sum{tag}", lambda x, d=dim: x.sum(d), dtypes=(*wide, torch.bool)),
            Form(f"sum_keep{tag}", lambda x, d=dim: x.sum(d, keepdim=True)),
            Form(f"mean{tag}", lambda x, d=dim: x.mean(d)),
            Form(f"amax{tag}", lambda x, d=dim: x.amax(d), dtypes=wide, grad=False),
            Form(f"amin{tag}", lambda x, d=dim: x.amin(d), dtypes=wide, grad=False),
            Form(f"var{tag}", lambda x, d=dim: x.var(d)),
            Form(f"std{tag}", lambda x, d=dim: x.std(d, correction=0)),
            Form(f"logsumexp{tag}", lambda x, d=dim: x.logsumexp(d)),
            Form(f"norm{tag}", lambda x, d=dim: torch.linalg.vector_norm(x, dim=d)),
        ]
    for dim in (-1, 0, 1):
        forms += [
            Form(f"argmax{dim}", lambda x, d=dim: x.argmax(d), dtypes=wide, grad=False),
            Form(f"argmin{dim}", lambda x, d=dim: x.argmin(d), dtypes=wide, grad=False),
            Form(f"prod{dim}", lambda x, d=dim: x.prod(d), dtypes=(torch.float32, torch.int64)),
            Form(f"any{dim}", lambda x, d=dim: (x > 1).any(d), dtypes=wide, grad=False),
            Form(f"all{dim}", lambda x, d=dim: (x > -1).all(d), dtypes=wide, grad=False),
            Form(f"softmax{dim}", lambda x, d=dim: x.softmax(d), dtypes=FLOATS),
            Form(f"log_softmax{dim}", lambda x, d=dim: x.log_softmax(d), dtypes=FLOATS),
            Form(f"max{dim}", lambda x, d=dim: x.max(d), dtypes=wide),
            Form(f"cumsum{dim}", lambda x, d=dim: x.cumsum(d)),
        ]
    forms += [
        Form("sum_all", lambda x: x.sum()),
        Form("argmax_all", lambda x: x.argmax(), grad=False),
        Form("mean_f64_of_bf16", lambda x: x.mean(dtype=torch.float64)),
        Form("softmax_f32_of_bf16", lambda x: x.softmax(-1, dtype=torch.float32)),
        Form("softmax_0d", lambda x: x.softmax(0), ((),)),
        Form("sum_long", lambda x: x.sum(-1), ((2, 5003),), FLOATS),
        Form("sum_outer_long", lambda x: x.sum(0), ((1031, 33),), FLOATS),
        Form("softmax_1row", lambda x: x.softmax(-1), ((1, 1000),)),
        Form(
            "layer_norm",
            lambda x, w, b: F.layer_norm(x, (17,), w, b),
            ((3, 4, 17), (17,), (17,)),
        ),
        Form("rms_norm", lambda x, w: F.rms_norm(x, (17,), w, 1e-5), ((3, 4, 17), (17,))),
        Form(
            "rms_norm_written_out",
            lambda x, w: w * (x * torch.rsqrt(x.float().pow(2).mean(-1, True) + 1e-5)).to(x.dtype),
            ((64, 48), (48,)),
        ),
        Form(
            "group_norm",
            lambda x, w, b: F.group_norm(x, 2, w, b),
            ((3, 4, 5, 7), (4,), (4,)),
        ),
        Form(
            "batch_norm",
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            ((3, 4, 5, 7), (4,), (4,)),
        ),
        Form(
            "cross_entropy",
            lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
            ((6, 33),),
        ),
        Form(
            "cross_entropy_ignored",
            lambda x: F.cross_entropy(x, torch.arange(6) * 5 - 5, ignore_index=-5),
            ((6, 33),),
        ),
        Form("nll_smooth", lambda x: F.cross_entropy(x, x.argmax(-1), label_smoothing=0.1)),
    ]
    forms[-1] = dataclasses.replace(forms[-1], shapes=((6, 33),))
    return forms


def layout() -> list[Form]:
    some = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    three = ((3, 4, 17),)
    pair = ((3, 4, 17), (3, 2, 17))
    table: list[tuple[Any, ...]] = [
        ("cat", lambda x, y: torch.cat([x, y], 1), pair, some),
        ("cat_computed", lambda x, y: torch.cat([x * 2, y + 1, x - 1], 1) * 3, pair),
        ("cat_last", lambda x: torch.cat([x, -x], -1), three),
        ("cat_dtypes", lambda x: torch.cat([x, x.double(), x.int()], -1), three),
        ("stack", lambda x: torch.stack([x, x + 1], 1), three),
        ("slice", lambda x: x[1:, ::2, 3:-2] * 2, three, some[:3]),
        ("select", lambda x: x[1] + x[:, 2].sum(0), three),
        ("narrow_view", lambda x: x.narrow(2, 3, 5), three, some),
        ("transpose", lambda x: x.transpose(0, 2).contiguous(), three, some),
        ("permute_add", lambda x: x.permute(2, 0, 1) + 1, three),
        ("transpose_add_2d", lambda x, y: x.t() + y, ((65, 130), (130, 65))),
        ("reshape_of_transpose", lambda x: x.transpose(1, 2).reshape(3, -1), three, some),
        ("view", lambda x: x.reshape(12, 17).unflatten(0, (3, 4)), three),
        ("expand", lambda x: x[:, :1].expand(3, 9, 17) * 1.5, three),
        ("repeat", lambda x: x.repeat(2, 1, 3), three),
        ("repeat_interleave", lambda x: x.repeat_interleave(3, 1), three),
        ("flip", lambda x: x.flip(0, 2), three, some),
        ("roll", lambda x: x.roll((1, -2), (0, 2)), three),
        ("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), three),
        ("pad_negative", lambda x: F.pad(x, (-1, 2)), three),
        ("pad_reflect", lambda x: F.pad(x, (2, 3), mode="reflect"), three),
        ("chunk", lambda x: [c * 2 for c in x.chunk(3, -1)], three),
        ("split_swiglu", lambda x: F.silu(x[..., :8]) * x[..., 8:16], three),
        ("tril", lambda x: x.tril(-1) + x.triu(2), three),
        ("diagonal", lambda x: x.diagonal(0, 0, 1) * 2, three),
        ("unsqueeze", lambda x: (x.unsqueeze(1) - x.unsqueeze(0)).abs().sum(-1), three),
        ("where_mask", lambda x: torch.where(x > 0, x, 0.0), three),
        ("masked_fill", lambda x: x.masked_fill(x < 0, -1e4), three),
        ("arange", lambda x: x + torch.arange(x.shape[-1]), three),
        ("arange_step", lambda x: x * torch.arange(0.0, 8.5, 0.5), three),
        ("full", lambda x: x + torch.full((17,), 2.5), three),
        ("causal_mask", lambda x: x.masked_fill(torch.ones(4, 17).triu(1).bool(), -9.0), three),
        ("one_hot", lambda x: F.one_hot(x.argmax(-1), 17) * 2, three),
        ("meshgrid", lambda x: sum(torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")), three),
        ("gather", lambda x: x.gather(1, x.argsort(1)), three),
        ("index_select", lambda x: x.index_select(1, torch.tensor([3, 0, 0])), three),
        ("index", lambda x: x[torch.tensor([2, 0]), :, torch.tensor([5, -1])], three),
        ("index_bcast", lambda x: x[torch.arange(3)[:, None], torch.tensor([[1, 2]])], three),
        ("embedding", lambda w: F.embedding(torch.tensor([[1, 0], [5, 1]]), w), ((7, 12),)),
        (
            "embedding_padding",
            lambda w: F.embedding(torch.tensor([[1, 0], [5, 1]]), w, padding_idx=1),
            ((7, 12),),
        ),
        ("scatter", lambda x: x.scatter(1, x.argmax(1, True), 9.0), three),
        ("scatter_add", lambda x: x.scatter_add(0, (x > 0).long(), x * 2), three),
        ("index_put", lambda x: x.index_put((torch.tensor([1, 1]),), x[:2], True), three),
        ("index_add", lambda x: x.index_add(1, torch.tensor([0, 3, 3, 1]), x), three),
        ("to_f64", lambda x: (x.double() * 3).to(torch.float32), three, some),
        ("rotary", _rotary, ((2, 4, 9, 16),)),
        ("attention_scores", _scores, ((2, 4, 9, 16),)),
    ]
    return [
        Form(name, fn, shapes, *rest, grad=name not in ("one_hot",))
        for name, fn, shapes, *rest in table
    ]


def _same(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.broadcast_tensors(x, y)


def _rotary(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[2])[:, None] * 10.0 ** -torch.arange(0, 16, 2).div(16).repeat(2)
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


def _scores(x: Tensor) -> Tensor:
    scores = x @ x.transpose(-1, -2) / 4
    mask = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
