"""PyTorch's module database: every `nn` module, its parameters and buffers."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from database import DTYPES, SEED, Item, Sample, importable, spread
from torch import Tensor, nn
from torch.utils._pytree import tree_map

MODES = ("train", "eval", "infer")


@functools.cache
def entries() -> dict[str, Any]:
    """Every `ModuleInfo` by name (`module.nn.Linear`)."""
    importable()
    from torch.testing._internal.common_modules import module_db

    return {f"module.{info.name}": info for info in module_db}


def supports(name: str, dtype: str, mode: str) -> bool:
    info, t = entries()[name], DTYPES[dtype]
    known = t in info.supported_dtypes("cpu")
    # The database knows of `bfloat16` and `float16` nothing but for losses; most modules take it.
    if not known and t not in (torch.bfloat16, torch.float16):
        return False
    return mode != "eval" or info.train_and_eval_differ


def call(item: Item) -> Callable[..., Any]:
    del item

    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return forward


def samples(item: Item, count: int | None) -> list[Sample]:
    """Modules and inputs, at most `count` from the database, also in other layouts."""
    info, dtype = item.entry, DTYPES[item.dtype]
    torch.manual_seed(SEED)
    training = item.mode == "train"
    drawn = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=item.grad, training=training
    )
    out = []
    for i, m in spread(list(enumerate(drawn)), count):
        made, given = m.constructor_input, m.forward_input
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        arguments = (given.args, given.kwargs)
        out.append(Sample(f"sample {i}", (module, *arguments)))
        for name, other in _LAYOUTS.items():
            if name == "channels last" and not any(_image(x) for x in _tensors(arguments)):
                continue
            copied = copy.deepcopy(module)
            if name == "channels last":
                for p in copied.parameters():
                    if not nn.parameter.is_lazy(p) and p.dim() == 4:
                        p.data = p.data.contiguous(memory_format=torch.channels_last)
            out.append(Sample(f"sample {i} {name}", (copied, *tree_map(other, arguments))))
    return out


def _tensors(arguments: Any) -> list[Tensor]:
    from arguments import leaves

    return [x for x in leaves(arguments) if isinstance(x, Tensor)]


def _image(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 4


def _channels_last(x: Any) -> Any:
    if not _image(x):
        return x
    return x.detach().clone(memory_format=torch.channels_last).requires_grad_(x.requires_grad)


def _noncontiguous(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.layout != torch.strided or type(x) is not Tensor:
        return x
    return torch.testing._internal.common_utils.noncontiguous_like(x)


_LAYOUTS = {"noncontiguous": _noncontiguous, "channels last": _channels_last}
