"""Windows, borders, enlarged images and diagonals: values, indices, strides and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import harness
import pytest
import torch
from ljcompile import stats
from torch import Tensor
from torch.nn import functional as F

Fn = Callable[[Tensor], Any]
NEW = tuple(int(n) for n in torch.__version__.split(".")[:2]) > (2, 8)


def _pools() -> dict[str, Fn]:
    out: dict[str, Fn] = {}
    for name, kw in {
        "3s2p1": {"kernel_size": 3, "stride": 2, "padding": 1},
        "2": {"kernel_size": 2},
        "2ceil": {"kernel_size": 2, "ceil_mode": True},
        "3s1": {"kernel_size": 3, "stride": 1},
        "uneven": {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1), "ceil_mode": True},
        "dilated": {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
        "large": {"kernel_size": 6, "stride": 2, "padding": 3},
    }.items():
        out[f"max_{name}"] = functools.partial(F.max_pool2d, **kw, return_indices=True)
    for name, kw in {
        "3s2p1": {"kernel_size": 3, "stride": 2, "padding": 1},
        "3s2p1x": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        "2": {"kernel_size": 2},
        "2ceil": {"kernel_size": 2, "ceil_mode": True},
        "3ceil": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        "5": {"kernel_size": 3, "stride": 3, "divisor_override": 5},
        "large": {"kernel_size": 6, "stride": 1},
    }.items():
        out[f"avg_{name}"] = functools.partial(F.avg_pool2d, **kw)
    for size in [(1, 1), (4, 5), (3, 7), (9, 20)]:
        out[f"adaptive_avg_{size}"] = functools.partial(F.adaptive_avg_pool2d, output_size=size)
        out[f"adaptive_max_{size}"] = functools.partial(
            F.adaptive_max_pool2d, output_size=size, return_indices=True
        )
    out["lp"] = lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 3, stride=2)
    return out


def _borders() -> dict[str, Fn]:
    out: dict[str, Fn] = {}
    for pads in [(1, 1, 1, 1), (2, 1, 0, 3), (4, 0, 0, 0), (-1, 2, 1, 0)]:
        for mode in ("reflect", "replicate"):
            out[f"{mode}_{pads}"] = lambda x, p=pads, m=mode: F.pad(x, p, mode=m)
    out["circular"] = lambda x: F.pad(x, (2, 1, 1, 3), mode="circular")
    return out


def _resized() -> dict[str, Fn]:
    out: dict[str, Fn] = {}
    for factor in (2, 3, 1.5, 0.5, 4):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            out[f"{mode}_{factor}"] = functools.partial(
                F.interpolate, scale_factor=factor, mode=mode
            )
    for size in ((7, 5), (20, 33)):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            out[f"{mode}_{size}"] = functools.partial(F.interpolate, size=size, mode=mode)
    for mode in ("bilinear", "bicubic"):
        out[f"{mode}_corners"] = functools.partial(
            F.interpolate, size=(20, 33), mode=mode, align_corners=True
        )
    return out


def _moved() -> dict[str, Fn]:
    return {
        "diagonal": lambda x: x.diagonal(1, 2, 3) * 2,
        "diagonal_out": lambda x: (x * 2).diagonal(-1, 3, 2),
        "diag_embed": lambda x: torch.diag_embed(x[0], 1, 0, -1),
        "diag_embed_below": lambda x: torch.diag_embed(x[..., 0], -2),
        "unfold": lambda x: x.unfold(3, 4, 3) + 1,
        "unfold_twice": lambda x: x.unfold(2, 3, 1).unfold(3, 2, 2).sum(-1),
        "im2col": lambda x: F.unfold(x, (2, 3), padding=1, stride=(1, 2)),
        "col2im": lambda x: F.fold(
            F.unfold(x, 3, dilation=2, padding=2, stride=2), x.shape[2:], 3, 2, 2, 2
        ),
        "fold": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
        "tril": lambda x: (x.tril(1), x.triu(-2)),
        "roll": lambda x: (x.roll(2, 3), x.roll((1, -1), (2, 3)), x.roll(3)),
        "flip": lambda x: (x.flip(3), x.flip(0, 2)),
        "rot90": lambda x: x.rot90(1, (2, 3)),
        "repeat_interleave": lambda x: x.repeat_interleave(3, 2),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :8, :12], 2),
        "channel_shuffle": lambda x: F.channel_shuffle(x[:, :4], 2),
        "every_third": lambda x: torch.slice_scatter(x, x[..., :3] * 2, 3, 4, 13, 3),
        "every_second": lambda x: torch.slice_scatter(x, x[:, :, :5] * 2, 2, 0, None, 2),
        "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 1:4] * 2, dim=1),
        "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, 1] * 2, indexing="ij"),
    }


FAMILIES = {"pools": _pools, "borders": _borders, "resized": _resized, "moved": _moved}
CASES = [(family, name) for family, table in FAMILIES.items() for name in table()]

#: What ATen runs: gradients of large windows that overlap, of images resized by an uneven factor.
LEFT: dict[tuple[str, str], str] = {
    ("pools", "avg_large"): "aten.avg_pool2d_backward.default",
    ("pools", "adaptive_max_(1, 1)"): (
        "aten.adaptive_max_pool2d.default aten.adaptive_max_pool2d_backward.default"
    ),
    ("borders", "reflect_(-1, 2, 1, 0)"): "aten.reflection_pad2d_backward.default",
    ("borders", "replicate_(-1, 2, 1, 0)"): "aten.replication_pad2d_backward.default",
}
_BACKWARD = {
    "nearest": "aten.upsample_nearest2d_backward.default",
    "nearest-exact": "aten._upsample_nearest_exact2d_backward.default",
    "bilinear": "aten.upsample_bilinear2d_backward.default",
    "bicubic": "aten.upsample_bicubic2d_backward.default",
}
for _name in _resized():
    _mode, _, _factor = _name.partition("_")
    if _mode == "bicubic" or _factor not in ("2", "4"):
        LEFT["resized", _name] = _BACKWARD[_mode]


def _image(dtype: torch.dtype, seed: int = 0, shape: tuple[int, ...] = (2, 5, 9, 14)) -> Tensor:
    return harness.draw(shape, dtype, torch.Generator().manual_seed(seed))


def _layouts(dtype: torch.dtype) -> dict[str, Tensor]:
    x = _image(dtype)
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "strided": _image(dtype, 1, (2, 5, 9, 28))[..., ::2],
    }


def run(family: str, name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """One case in every layout, against eager, with gradients."""
    fn = FAMILIES[family]()[name]
    for dtype in dtypes:
        call = harness.compiled(fn, dynamic=False)
        for layout, x in _layouts(dtype).items():
            label = f"{name} {dtype} {layout}"
            try:
                eager = harness.with_gradients(fn, [x])
            except RuntimeError as refused:
                assert "not implemented for" in str(refused), refused
                continue
            ours = harness.with_gradients(call, [x])
            # Torch 2.8 traces borders with another layout than its kernels give.
            strides = NEW or family != "borders"
            harness.assert_same(ours[0], eager[0], label, looser=8, strides=strides)
            # 16-bit gradients are summed in f32 and rounded once; eager rounds each addition.
            # Where eager's own gradient has another layout than tracing says is torch's matter.
            harness.assert_same(ours[1], eager[1], f"{label} gradient", looser=16, strides=False)


@pytest.mark.parametrize(("family", "name"), CASES, ids=str)
def test_against_eager(family: str, name: str) -> None:
    run(family, name, (torch.float32, torch.bfloat16))


def test_dynamic_sizes() -> None:
    """One compile serves every size, odd and even."""
    cases: dict[str, Fn] = {
        "max": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_large": lambda x: F.max_pool2d(x, 6, 2, 3),
        "avg": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "reflect": lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"),
        "replicate": lambda x: F.pad(x, (1, 2, 3, 1), mode="replicate"),
        "circular": lambda x: F.pad(x, (1, 2, 3, 1), mode="circular"),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "bilinear_1.5": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "to_size": lambda x: F.interpolate(x, size=(20, 33), mode="bilinear", align_corners=True),
        "unfold": lambda x: x.unfold(3, 3, 2).sum(-1),
        "fold": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
        "diagonal": lambda x: x.diagonal(0, 2, 3) * 2,
    }
    for name, fn in cases.items():
        stats.clear()
        call = harness.compiled(fn, dynamic=True)
        for i, shape in enumerate([(2, 3, 8, 12), (3, 4, 9, 15), (2, 5, 30, 21)]):
            x = _image(torch.float32, i, shape)
            ours, eager = harness.with_gradients(call, [x]), harness.with_gradients(fn, [x])
            harness.assert_same(ours[0], eager[0], f"{name} {shape}", looser=8)
            harness.assert_same(ours[1], eager[1], f"{name} {shape}", looser=16, strides=False)
        # Torch 2.8 makes the sizes of a maximum pool concrete itself.
        if NEW:
            assert len(stats.records) == 2, name
        assert not any(r.eager for r in stats.records), name


def test_special_values() -> None:
    """NaN, infinities and ties: positions are eager's, too."""

    def fn(x):
        return (
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.max_pool2d(x, 6, 3, 2, return_indices=True),
            F.adaptive_max_pool2d(x, (4, 5), return_indices=True),
            F.avg_pool2d(x, 2),
            F.interpolate(x, scale_factor=2, mode="bilinear"),
        )

    x = _image(torch.float32).round()
    x[0, 0] = float("-inf")
    x[0, 1, ::2, ::3] = float("nan")
    x[0, 2, ::3] = float("inf")
    x[0, 3] = 0.0
    x[0, 3, ::2, ::2] = -0.0
    harness.assert_same(harness.compiled(fn)(x), fn(x), "special", looser=8)
    ints = torch.randint(-5, 5, (2, 3, 9, 9))

    def whole(x):
        return F.max_pool2d(x, 3, 2, 1, return_indices=True), x.unfold(1, 2, 1), x.flip(2)

    harness.assert_same(harness.compiled(whole)(ints), whole(ints), "integers")


def test_other_ranks() -> None:
    """One and three dims, with and without a batch."""

    def one(x):
        return (
            F.max_pool1d(x, 3, 2, 1),
            F.avg_pool1d(x, 3, 2, 1),
            F.interpolate(x, scale_factor=2, mode="linear"),
            F.interpolate(x, scale_factor=2),
            F.pad(x, (2, 3), mode="reflect"),
            F.pad(x, (2, 3), mode="circular"),
        )

    def three(x):
        return (
            F.max_pool3d(x, (2, 3, 2), return_indices=True),
            F.avg_pool3d(x, 2, 2, 1),
            F.adaptive_avg_pool3d(x, (2, 3, 4)),
            F.interpolate(x, scale_factor=2, mode="trilinear"),
            F.pad(x, (1, 1, 1, 2, 0, 1), mode="replicate"),
        )

    def unbatched(x):
        return F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.pad(x, (1, 1, 1, 1), mode="reflect")

    for fn, shape in [(one, (2, 3, 40)), (three, (2, 3, 5, 6, 7)), (unbatched, (3, 9, 14))]:
        x = _image(torch.float32, 3, shape)
        ours, eager = (
            harness.with_gradients(harness.compiled(fn), [x]),
            harness.with_gradients(fn, [x]),
        )
        harness.assert_same(ours[0], eager[0], fn.__name__, looser=8)
        harness.assert_same(ours[1], eager[1], fn.__name__, looser=16, strides=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_runs_in_own_kernels(family: str) -> None:
    """Nothing of a family is ATen's, forward and backward, but what is named here."""
    x = _image(torch.float32)
    for name, fn in FAMILIES[family]().items():
        stats.clear()
        harness.with_gradients(harness.compiled(fn, dynamic=False), [x])
        left = {f["target"] for r in stats.records for f in r.fallbacks}
        assert left == set(LEFT.get((family, name), "").split()), name
