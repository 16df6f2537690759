"""The decomposition table handed to AOTAutograd.

The aim is a small vocabulary: norms, softmax, activations and losses become arithmetic and
reductions that the Rust importer lowers and the scheduler fuses. What stays whole is what ATen
does better than a chain of small operators (convolution, attention, sorting, pooling),
and what the importer lowers as one operation (embedding and its gradient, gathers, scatters, scans,
cat, pad).

Works on torch 2.8 to 2.15 and does not import ``torch._inductor`` (that costs seconds).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._prims_common import suggest_memory_format

from . import foreach, philox, search

aten = torch.ops.aten

#: Decomposed in addition to torch's core table (by packet or overload name; names that this torch
#: lacks are skipped).
_ADDED = """
_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _batch_norm_no_update _batch_norm_with_update
_batch_norm_with_update_functional native_batch_norm_backward batch_norm_backward
_fused_rms_norm _fused_rms_norm_backward
gelu elu selu glu hardtanh leaky_relu hardswish hardsigmoid softplus log_sigmoid_forward
logaddexp logaddexp2 logsumexp special_log_softmax
var var_mean std std_mean mean.default
addmv dist norm linalg_vector_norm

mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits
tril triu tril_indices triu_indices
expm1_ square special_erfcx

fill.Scalar fill.Tensor
narrow_copy slice_copy
unbind_copy
""".split()  # noqa: SIM905

#: Taken out of torch's table: the importer or ATen does these better whole.
_KEPT = """
embedding_dense_backward
_scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward
bernoulli native_dropout_backward
baddbmm addr dot vdot mv
index_add index_copy index_fill index_put index_reduce put scatter_reduce take select_scatter
masked_scatter masked_scatter_backward
_unsafe_index_put
upsample_bilinear2d upsample_linear1d upsample_trilinear3d upsample_nearest1d upsample_nearest2d
upsample_nearest3d upsample_bicubic2d
max_unpool2d max_unpool3d
im2col col2im
reflection_pad1d reflection_pad2d reflection_pad3d
replication_pad1d replication_pad2d replication_pad3d
reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
multi_margin_loss multilabel_margin_loss_forward
renorm unfold_backward
_euclidean_dist
_to_copy index_select lerp
empty_like new_empty
diag_embed block_diag
linalg_cross
mvlgamma
split_with_sizes_copy split unsafe_split unsafe_split_with_sizes
stack unbind
full_like
""".split()  # noqa: SIM905


def _overloads(name: str) -> list[Any]:
    """The overloads that ``name`` (a packet or ``packet.overload``) stands for in this torch."""
    packet_name, _, overload = name.partition(".")
    packet = getattr(aten, packet_name, None)
    if packet is None:
        return []
    names = [overload] if overload else packet.overloads()
    return [getattr(packet, o) for o in names if hasattr(packet, o)]


def _gathered(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, dim, index.unsqueeze(dim)).squeeze(dim)


def _nll_loss_forward(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log likelihood. Reads one element a row; the gather checks the target's range.

    ``reduction``: 0 none, 1 mean, 2 sum. Shapes: ``[N, C]`` and ``[N]``, ``[C]`` and ``[]``, or
    ``[N, C, H, W]`` and ``[N, H, W]``.
    """
    dim = 0 if self.dim() < 2 else 1
    if self.dim() == 1 and target.dim() > 0:
        target = target[0]
    kept = target != ignore_index
    safe = torch.where(kept, target, 0)
    # Sums of 16-bit losses are accumulated and divided in f32, and rounded once, as eager does.
    opmath = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    loss = -_gathered(self, dim, safe).to(opmath)
    if weight is not None:
        # Not `weight[safe]`: indexing by a 0-d tensor would read it into Python.
        of_target = weight.to(opmath).index_select(0, safe.reshape(-1)).reshape(safe.shape)
        scale = torch.where(kept, of_target, 0)
        loss = loss * scale
    loss = torch.where(kept, loss, 0)
    if reduction == 0 and self.dim() > 1:
        return loss.to(self.dtype), self.new_full((), 0.0)
    total = scale.sum() if weight is not None else kept.sum().to(opmath)
    if reduction == 1:
        loss = loss.sum() / total
    elif reduction == 2:
        loss = loss.sum()
    return loss.to(self.dtype), total.to(self.dtype)


def _nll_loss_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the above as one elementwise expression: a comparison instead of a scatter."""
    dim = 0 if self.dim() < 2 else 1
    if self.dim() == 1 and target.dim() > 0:
        target = target[0]
    opmath = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    grad = -grad_output.to(opmath)
    if reduction == 1:
        grad = grad / total_weight.to(opmath)
    shape = [1] * self.dim()
    shape[dim] = self.shape[dim]
    classes = torch.arange(self.shape[dim], device=self.device).view(shape)
    if weight is not None:
        grad = grad.unsqueeze(dim) if grad.dim() > 0 and grad.dim() < self.dim() else grad
        grad = grad * weight.to(opmath).view(shape)
    elif grad.dim() > 0 and grad.dim() < self.dim():
        grad = grad.unsqueeze(dim)
    target = target.unsqueeze(dim)
    hit = (classes == target) & (target != ignore_index)
    return torch.where(hit, grad, 0).to(self.dtype)


#: Operators whose first result the CPU lays out in the suggested format of its input, not in the
#: input's own strides, which is what torch's decompositions would give it.
_SUGGESTED_FORMAT = """
native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _batch_norm_no_update _batch_norm_with_update
_batch_norm_with_update_functional
""".split()  # noqa: SIM905


#: The same, where the input is the second argument.
_SUGGESTED_FORMAT_OF_SECOND = ["native_batch_norm_backward", "batch_norm_backward"]


def _in_suggested_format(place: int, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decomposition)
    def run(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        out, *rest = decomposition(*args, **kwargs)
        if out is not None and out.device.type == "cpu":
            out = out.contiguous(memory_format=suggest_memory_format(args[place]))
        return (out, *rest)

    return run


#: Operators whose first argument eager makes contiguous, whatever its layout.
_CONTIGUOUS_ARGUMENT = ["log_sigmoid_forward"]

#: Operators whose result eager makes contiguous, whatever the layout of the arguments.
_CONTIGUOUS_RESULT = """
mse_loss_backward huber_loss_backward smooth_l1_loss_backward _log_softmax_backward_data
""".split()  # noqa: SIM905


def _contiguous_argument(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decomposition)
    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cpu":
            self = self.contiguous()
        return decomposition(self, *args, **kwargs)

    return run


def _contiguous_result(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decomposition)
    def run(*args: Any, **kwargs: Any) -> Any:
        return decomposition(*args, **kwargs).contiguous()

    return run


def _in_one_layout(original: Any) -> Callable[..., Any]:
    """Gives both operands the layout that eager's result has.

    Torch's shape functions of these operators take the layout of an ambiguous pair from another
    operand than eager does.
    """

    def run(self: torch.Tensor, other: Any, **kwargs: Any) -> Any:
        if not isinstance(other, torch.Tensor) or self.dim() == 0 or other.dim() == 0:
            return NotImplemented
        if self.device.type != "cpu" or other.device.type != "cpu":
            return NotImplemented
        sizes = (*self.shape, *self.stride(), *other.shape, *other.stride())
        if self.stride() == other.stride() or any(isinstance(s, torch.SymInt) for s in sizes):
            return NotImplemented
        # A sum has the layout; nothing reads it.
        like = torch.add(self, other)
        operands = [
            aten.copy(torch.empty_strided(like.shape, like.stride(), dtype=x.dtype), x)
            for x in (self, other)
        ]
        return original(*operands, **kwargs)

    return run


def _channel_shuffle(self: torch.Tensor, groups: int) -> torch.Tensor:
    """In the suggested format of its input, as the CPU lays it out."""
    n, c, *rest = self.shape
    apart = self.reshape(n, groups, c // groups, *rest).transpose(1, 2)
    return apart.reshape(self.shape).contiguous(memory_format=suggest_memory_format(self))


def _roll(self: torch.Tensor, shifts: list[int], dims: list[int] = ()) -> torch.Tensor:
    """ATen's own way, two slices joined: it has the layout that eager's result has."""
    if not dims:
        return _roll(self.contiguous().view(-1), shifts, [0]).view(self.shape)
    for shift, dim in zip(shifts, dims):
        size = self.shape[dim]
        if size == 0:
            return self.clone()
        start = (
            -shift if 0 <= -shift < size else size - shift if 0 < shift <= size else -shift % size
        )
        self = torch.cat([self.narrow(dim, start, size - start), self.narrow(dim, 0, start)], dim)
    return self


def _soft_margin_loss(self: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """ATen's steps, each rounded to the dtype: in 16 bits the exponential may be infinite."""
    loss = torch.log1p(torch.exp(-self * target))
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


def _soft_margin_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int = 1
) -> torch.Tensor:
    """ATen's form: no difference of nearly equal numbers where the loss is small."""
    z = torch.exp(-target * self)
    norm = 1.0 / self.numel() if reduction == 1 and self.numel() else 1.0
    return target * z * -norm / (z + 1) * grad_output


def _border_of_volume(original: Any, place: int) -> Callable[..., Any]:
    """In the suggested format of argument `place`; torch's shape function knows only contiguous."""

    def run(*args: Any) -> Any:
        wanted = suggest_memory_format(args[place])
        if wanted == torch.contiguous_format or args[place].device.type != "cpu":
            return NotImplemented
        plain = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in args]
        return original(*plain).contiguous(memory_format=wanted)

    return run


def _unique_counted_from_the_end(original: Any) -> Callable[..., Any]:
    """Torch's shape function takes a negative dim for an index into the wrong end."""

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        names = [a.name for a in original._schema.arguments]
        values = {**dict(zip(names, (self, *args))), **kwargs}
        dim = values.get("dim")
        if dim is None or dim >= 0 or self.dim() == 0:
            return NotImplemented
        values["dim"] = dim + self.dim()
        return original(**values)

    return run


_OWN: dict[str, Callable[..., Any]] = {
    "nll_loss_forward.default": _nll_loss_forward,
    "nll_loss2d_forward.default": _nll_loss_forward,
    "nll_loss_backward.default": _nll_loss_backward,
    "nll_loss2d_backward.default": _nll_loss_backward,
    "roll.default": _roll,
    "channel_shuffle.default": _channel_shuffle,
    "native_channel_shuffle.default": _channel_shuffle,
    "copysign.Tensor": _in_one_layout(aten.copysign.Tensor),
    "div.Tensor_mode": _in_one_layout(aten.div.Tensor_mode),
    "soft_margin_loss.default": _soft_margin_loss,
    "soft_margin_loss_backward.default": _soft_margin_loss_backward,
    **search.table(),
    **{
        f"{name}{end}.default": _border_of_volume(getattr(aten, name + end).default, place)
        for name in ("reflection_pad3d", "replication_pad3d")
        for place, end in enumerate(("", "_backward"))
    },
    **{
        name: _unique_counted_from_the_end(getattr(aten, name.split(".")[0]).default)
        for name in ("unique_consecutive.default", "unique_dim.default")
    },
}


@functools.cache
def table(fallback_random: bool = False) -> dict[Any, Callable[..., Any]]:
    """Decompositions by operator overload, for AOTAutograd's ``decompositions`` argument.

    With `fallback_random` random numbers stay ATen's, and with that eager's.
    """
    result = dict(_core_aten_decompositions_post_autograd())
    added = [overload for name in _ADDED for overload in _overloads(name)]
    result.update(get_decompositions(added))
    result.update(foreach.table())
    for name in _KEPT:
        for overload in _overloads(name):
            result.pop(overload, None)
    for place, names in enumerate((_SUGGESTED_FORMAT, _SUGGESTED_FORMAT_OF_SECOND)):
        for overload in (o for name in names for o in _overloads(name)):
            if overload in result:
                result[overload] = _in_suggested_format(place, result[overload])
    for names, wrap in (
        (_CONTIGUOUS_ARGUMENT, _contiguous_argument),
        (_CONTIGUOUS_RESULT, _contiguous_result),
    ):
        for overload in (o for name in names for o in _overloads(name)):
            if overload in result:
                result[overload] = wrap(result[overload])
    for name, function in (_OWN if fallback_random else {**_OWN, **philox.table()}).items():
        for overload in _overloads(name):
            result[overload] = function
    return result
