"""A thin ``autograd.Function`` around a compiled forward and backward.

AOTAutograd's runtime wrappers serve every case there is (changed inputs, outputs that alias, tensor
subclasses, effects) and cost more than a small graph takes to run. Where a graph has none of these,
what they come down to is: run the forward, save, run the backward. The first call and its backward
go through AOTAutograd, which compiles the backward when it is wanted; from then on this runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta
from torch._prims_common import make_contiguous_strides_for

from . import _native

Plan = Callable[[list[Any]], Sequence[Any]]

_PLAIN_OUTPUTS = (OutputType.non_alias, OutputType.unsafe_view_alias)
_interpreter_stack = torch._C._functorch.peek_interpreter_stack
_process_tangent = runtime_wrappers.AOTDispatchAutograd.process_runtime_tangent


class Training:
    """What one call of the backend compiled, and the short way to run it once that is known.

    `forward` and `backward` are told by the compilers as AOTAutograd calls them; `through` is what
    AOTAutograd returned.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        """`inputs`: what the captured graph takes."""
        self._inputs = len(inputs)
        # Hooks on what is saved may be traced into the graphs.
        self._hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        self._forward: Plan | None = None
        self._metadata: Any = None
        self._run: Callable[..., Any] | None = None

    def forward(self, gm: torch.fx.GraphModule, plan: Plan) -> None:
        """Takes the compiled forward."""
        again = self._forward is not None
        context = torch._guards.TracingContext.try_get()
        metadata = getattr(context, "fw_metadata", None)
        # Saved memory that the backward may write to would forbid `retain_graph=True`, which eager
        # allows. AOTAutograd asks for this list when it runs, so it cannot be told by its settings.
        if getattr(metadata, "bw_donated_idxs", None):
            metadata.bw_donated_idxs.clear()
        self._forward = plan
        takes = sum(node.op == "placeholder" for node in gm.graph.nodes)
        simple = (
            takes == self._inputs
            and isinstance(plan, _native.CompiledGraph)
            and _is_simple(metadata)
        )
        self._metadata = metadata if simple and not again and not self._hooked else None

    def backward(self, gm: torch.fx.GraphModule, plan: Plan) -> None:
        """Takes the compiled backward: from now on the short way is open."""
        grads = gm.graph.output_node().args[0]
        simple = len(grads) == self._inputs and isinstance(plan, _native.CompiledGraph)
        if self._metadata is None or self._forward is None or not simple:
            return
        unused = [i for i, grad in enumerate(grads) if grad is None]
        self._run = _function(self._forward, plan, self._metadata, unused)
        self._metadata = None

    def through(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo is to call."""
        if self._metadata is None and self._run is None:
            return compiled

        def run(*args: Any) -> Any:
            short = self._run
            if short is None or _interpreter_stack() is not None or _autograd_is_compiled():
                return compiled(*args)
            return short(args)

        return run


def _autograd_is_compiled() -> bool:
    # A flag in torch 2.8 to 2.15; what is in its place in another version is not to be guessed at.
    return bool(getattr(compiled_autograd, "compiled_autograd_enabled", True))


def _is_simple(metadata: Any) -> bool:
    """Whether the graph has nothing that AOTAutograd's wrappers are there for."""
    if metadata is None:
        return False
    needs = (
        metadata.num_mutated_inp_runtime_indices,
        metadata.num_outputs_aliased,
        metadata.num_intermediate_bases,
        metadata.is_rng_op_functionalized,
        metadata.grad_enabled_mutation is not None,
        metadata.tokens,
        metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
        metadata.num_backward_tokens,
        metadata.num_graphsafe_rng_states,
        getattr(metadata, "num_opaque_objects_saved_for_bw", 0),
        getattr(metadata, "act_input_paths", ()),
    )
    if any(needs):
        return False
    subclasses = (
        *metadata.subclass_inp_meta,
        *metadata.subclass_fw_graph_out_meta,
        *metadata.subclass_tangent_meta,
    )
    return (
        not any(isinstance(meta, SubclassCreationMeta) for meta in subclasses)
        and not any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
        and all(info.output_type in _PLAIN_OUTPUTS for info in metadata.output_info)
    )


def _function(
    forward_plan: Plan, backward_plan: Plan, metadata: Any, unused: list[int]
) -> Callable[[Sequence[Any]], Any]:
    """The short way: a function of the captured graph's inputs.

    `unused`: the inputs that the backward gives no gradient for.
    """
    returns = metadata.num_forward_returns
    # Torch 2.15 tells saved tensors that something may change in place (checked when they are used)
    # from those that nothing else can reach.
    checked = getattr(
        metadata,
        "tensors_saved_for_backwards_with_vc_check_slice",
        metadata.tensors_saved_for_backwards_slice,
    )
    unchecked = getattr(metadata, "tensors_saved_for_backwards_no_vc_check_slice", slice(0, 0))
    symints = metadata.symints_saved_for_backwards_slice
    outputs = list(enumerate(metadata.output_info))
    constant = [i for i, info in outputs if not info.requires_grad]
    unsafe_views = [i for i, info in outputs if info.output_type == OutputType.unsafe_view_alias]
    wanted = [
        i
        for i, info in outputs
        if getattr(info, "requires_grad_for_backward", info.requires_grad)
        and issubclass(info.raw_type, torch.Tensor)
    ]
    dynamic = [(i, info.dynamic_dims) for i, info in outputs if info.dynamic_dims]
    tangents = [
        (i, meta, _is_contiguous(meta)) for i, meta in zip(wanted, metadata.subclass_tangent_meta)
    ]
    nondeterministic = metadata.deterministic is False

    def detached(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # A view that is saved and returned would keep its own graph alive.
        return [x.detach() if x._is_view() and not x.requires_grad else x for x in tensors]

    def gradients(ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
        saved = [*ctx.symints, *ctx.saved_tensors, *ctx.unchecked]
        ctx.maybe_clear_saved_tensors()
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.unchecked = None
        for i, meta, contiguous in tangents:
            grad = grads[i]
            if contiguous and type(grad) is torch.Tensor:
                saved.append(grad.contiguous())
            else:
                saved.append(_process_tangent(grad, meta)[0])
        return tuple(backward_plan(saved))

    class Twice(torch.autograd.Function):
        """A gradient that itself may be asked for its gradient."""

        @staticmethod
        def forward(_: Any, ctx: Any, grads: Sequence[Any], *__: torch.Tensor) -> Any:
            return gradients(ctx, grads)

        @staticmethod
        def backward(_: Any, *__: Any) -> None:
            raise RuntimeError(
                "torch.compile with aot_autograd does not currently support double backward"
            )

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            out = forward_plan(list(args))
            ctx.save_for_backward(*detached(out[checked]))
            ctx.unchecked = detached(out[unchecked])
            ctx.symints = out[symints]
            results = list(out[:returns])
            for i in unsafe_views:
                results[i] = torch.ops.aten._unsafe_view(results[i], results[i].shape)
            if constant:
                ctx.mark_non_differentiable(
                    *(results[i] for i in constant if isinstance(results[i], torch.Tensor))
                )
            ctx._materialize_non_diff_grads = False
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            if _interpreter_stack() is not None:
                raise RuntimeError("a compiled backward cannot run within vmap, grad or vjp")
            if nondeterministic and torch.are_deterministic_algorithms_enabled():
                raise RuntimeError(
                    "This compiled backward function is being run with "
                    "torch.use_deterministic_algorithms(True), but its forward was compiled without"
                )
            if not torch.is_grad_enabled():
                return gradients(ctx, grads)
            # The dummy gives the gradients a graph whatever the arguments.
            return Twice.apply(ctx, grads, torch.empty(0, requires_grad=True))

    def run(args: Sequence[Any]) -> Any:
        if unused:
            args = list(args)
            for i in unused:
                if isinstance(args[i], torch.Tensor):
                    # Not even a gradient of zeros goes to what made it.
                    args[i] = args[i].detach()
        if torch.is_grad_enabled():
            results = Compiled.apply(*args)
        else:
            # Traced with `enable_grad` inside `no_grad`.
            with torch.enable_grad():
                results = Compiled.apply(*args)
        for i, dims in dynamic:
            _mark_dynamic(results[i], dims)
        return results

    return run


def _is_contiguous(meta: Any) -> bool:
    """Whether AOTAutograd would make a tangent contiguous, and no more."""
    layout = meta.memory_format
    if layout is None:
        return False
    if layout.memory_format is not None:
        return layout.memory_format == torch.contiguous_format
    return tuple(layout.stride) == make_contiguous_strides_for(layout.size)


def _mark_dynamic(t: Any, dims: set[int]) -> None:
    """Tells the graph after this one that these sizes vary, as AOTAutograd does."""
    mark = getattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices", None)
    if mark is not None:
        mark(t, dims)
    elif hasattr(t, "_dynamo_weak_dynamic_indices"):
        t._dynamo_weak_dynamic_indices |= dims
    else:
        t._dynamo_weak_dynamic_indices = dims.copy()
