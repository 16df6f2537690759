"""The backend that Dynamo calls: AOTAutograd below it, our compiler below that."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from . import stats
from .aliasing import unsound_alias
from .captured import put_operators
from .compiler import CompileError, compile_graph, run_uncompiled
from .decompositions import table
from .lean import Training
from .options import Options, check_mode
from .whole import kept_whole


def ljcompile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend: ``torch.compile(model, backend="ljcompile")``.

    Args:
        gm: The graph Dynamo captured.
        example_inputs: Its (fake) inputs.
        mode: One of torch.compile's modes.
        options: See `ljcompile.options.Options`.

    Raises:
        ValueError: for an unknown mode or option; names the near ones.
        TypeError: for an option of the wrong type.

    """
    check_mode(mode)
    parsed = Options.parse(options)
    _note_break(gm)
    reason = unsound_alias(gm)
    if reason is not None:
        return run_uncompiled(gm, "captured", reason)
    start = time.perf_counter()
    put_operators(gm, parsed)
    training = Training(example_inputs)
    compiler = functools.partial(_compile, parsed, training)
    backend = aot_autograd(
        fw_compiler=functools.partial(compiler, "forward"),
        bw_compiler=functools.partial(compiler, "backward"),
        inference_compiler=functools.partial(compiler, "inference"),
        partition_fn=_partition,
        decompositions=table(parsed.fallback_random),
        keep_inference_input_mutations=True,
    )
    # Effect tokens stay inside the graph: the compiler keeps effects in order by itself.
    config = functorch_config.patch(unlift_effect_tokens=True)
    with config, kept_whole():
        try:
            compiled = backend(gm, example_inputs)
        except (TorchDynamoException, CompileError):
            raise
        except Exception as error:
            if parsed.strict:
                raise
            # What AOTAutograd cannot trace runs as Dynamo captured it; a fault of the program
            # itself raises there as it does without a compiler.
            words = str(error).strip().partition("\n")[0]
            return run_uncompiled(gm, "captured", f"AOTAutograd: {type(error).__name__}: {words}")
    stats.backend_seconds.append(time.perf_counter() - start)
    return training.through(compiled)


def reset() -> None:
    """Forgets all state; ``torch._dynamo.reset()`` calls it."""
    from . import compiler

    compiler.reset()
    stats.clear()


ljcompile.reset = reset  # type: ignore[attr-defined]


def _compile(
    options: Options,
    training: Training,
    name: str,
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
) -> Callable[[list[Any]], Any]:
    if name != "backward":
        plan = compile_graph(gm, example_inputs, name, options)
        if name == "forward":
            training.forward(gm, plan)
        return plan
    # The backward is compiled at its first call, outside Dynamo's own lock.
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        plan = compile_graph(gm, example_inputs, name, options)
    training.backward(gm, plan)
    return plan


def _partition(joint: torch.fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
    """Splits a joint graph into forward and backward by minimum cut.

    The backward recomputes what is cheap. What draws random numbers is saved, also where a
    checkpoint asks to recompute it: a recomputed mask would be another mask. A memory budget
    overrides such marks, so with one nothing is recomputed in graphs that draw.
    """
    random = [
        node
        for node in joint.graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        and not _draws_nothing(node)
    ]
    if random and functorch_config.activation_memory_budget < 1:
        return default_partition(joint, joint_inputs, **kwargs)
    for node in random:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)


def _draws_nothing(node: torch.fx.Node) -> bool:
    """Whether the node is attention without dropout, which carries the tag all the same."""
    schema = getattr(node.target, "_schema", None)
    names = [a.name for a in schema.arguments] if schema else []
    if "dropout_p" not in names:
        return False
    at = names.index("dropout_p")
    value = node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return value == 0.0


def _note_break(gm: torch.fx.GraphModule) -> None:
    """Keeps why Dynamo ended this graph, for `explain`."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return
    where = ""
    with contextlib.suppress(IndexError, AttributeError, TypeError):
        frame = reason.user_stack[-1]
        where = f"{frame.filename}:{frame.lineno}: {frame.line or ''}".rstrip(": ")
    stats.breaks.append((str(reason.reason).strip().splitlines()[0], where))
