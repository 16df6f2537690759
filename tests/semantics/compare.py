"""One function compiled and eager, on arguments alike, and everything a caller could tell apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

BACKEND = os.environ.get("LJ_BACKEND", "ljcompile")

#: Lets Dynamo capture what reads values or has sizes that depend on data.
CAPTURE = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}

#: Largest relative and absolute difference from eager.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-5),
    torch.complex64: (1e-5, 1e-5),
    torch.bfloat16: (2.0**-6, 2.0**-6),
    torch.float16: (2.0**-9, 2.0**-8),
}


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`fn` compiled afresh, as one graph unless told otherwise."""
    torch._dynamo.reset()
    options.setdefault("fullgraph", True)
    return torch.compile(fn, backend=BACKEND, **options)


def uncompiled() -> list[str]:
    """Why graphs since the last reset ran without our compiler."""
    if BACKEND != "ljcompile":
        return []
    from ljcompile import stats

    return [r.eager for r in stats.records if r.eager]


def tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]


def assert_same(ours: Any, eager: Any, what: str, *, strides: bool = True) -> None:
    """Values, kinds, shapes and strides; numbers too."""
    ours, eager = tree_leaves(ours), tree_leaves(eager)
    assert len(ours) == len(eager), f"{what}: {len(ours)} results, eager gives {len(eager)}"
    for i, (a, b) in enumerate(zip(ours, eager)):
        label = f"{what}[{i}]"
        if not isinstance(b, Tensor):
            assert type(a) is type(b) and (a == b or a != a), f"{label}: {a!r}, eager gives {b!r}"
            continue
        assert isinstance(a, Tensor), f"{label}: {a!r}"
        for kind in ("dtype", "shape", "requires_grad"):
            x, y = getattr(a, kind), getattr(b, kind)
            assert x == y, f"{label}: {kind} {x}, eager gives {y}"
        if strides:
            real = [(s, t) for n, s, t in zip(b.shape, a.stride(), b.stride()) if n > 1]
            assert not b.numel() or all(s == t for s, t in real), (
                f"{label}: strides {a.stride()}, eager gives {b.stride()}"
            )
        rtol, atol = TOLERANCE.get(b.dtype, (0, 0))
        torch.testing.assert_close(
            a.detach(), b.detach(), rtol=rtol, atol=atol, equal_nan=True,
            msg=lambda m, label=label: f"{label}: {m}",
        )  # fmt: skip


def memory(results: Any, arguments: Any) -> list[tuple[int, int, int]]:
    """Which of the tensors lie in one storage: pairs, and the distance in elements."""
    every = [*tensors(arguments), *tensors(results)]
    found = []
    for j, y in enumerate(every):
        for i, x in enumerate(every[:j]):
            if x.numel() and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr():
                found.append((i, j, y.storage_offset() - x.storage_offset()))
    return found


def check(
    fn: Callable[..., Any],
    make: Callable[[], Sequence[Any]],
    *,
    grad: bool = False,
    aliases: bool = True,
    strides: bool = True,
    calls: int = 1,
    **options: Any,
) -> Callable[..., Any]:
    """Runs `fn` on `make()` both ways; compares results, arguments, aliases and gradients.

    Args:
        fn: The function.
        make: Gives the arguments anew, the same each time.
        grad: Whether to differentiate with regard to arguments that want it.
        aliases: Whether to compare which tensors share memory.
        strides: Whether to compare strides.
        calls: How often to call.
        options: Of `torch.compile`.

    Returns:
        The compiled function.
    """
    ours = compiled(fn, **options)
    for n in range(calls):
        label = f"call {n}, "
        with torch._dynamo.config.patch(CAPTURE):
            a_args, b_args = make(), make()
            torch.manual_seed(7)
            a = ours(*a_args)
            torch.manual_seed(7)
            b = fn(*b_args)
            assert_same(a, b, f"{label}result", strides=strides)
            assert_same(a_args, b_args, f"{label}argument", strides=strides)
            if aliases:
                assert memory(a, a_args) == memory(b, b_args), (
                    f"{label}aliases {memory(a, a_args)}, eager has {memory(b, b_args)}"
                )
            if grad:
                assert_same(
                    gradients(a, a_args), gradients(b, b_args), f"{label}gradient", strides=strides
                )
    assert not uncompiled(), uncompiled()
    return ours


def gradients(results: Any, arguments: Any) -> list[Tensor | None]:
    """Gradients of a weighted sum of the results."""
    outs = [t for t in tensors(results) if t.requires_grad]
    wanted = [x for x in tensors(arguments) if x.requires_grad and x.is_leaf]
    weights = []
    for t in outs:
        ramp = torch.arange(1, t.numel() + 1, dtype=torch.float64).reshape(t.shape)
        weights.append(torch.empty_like(t, requires_grad=False).copy_((ramp * 0.7).cos()))
    return list(torch.autograd.grad(outs, wanted, weights, allow_unused=True))


def drawn(*shape: int, grad: bool = False, seed: int = 0) -> Tensor:
    """A normal tensor, the same for the same arguments."""
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g).requires_grad_(grad)
