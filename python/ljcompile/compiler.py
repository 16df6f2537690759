"""Compiles one ATen graph through the native compiler, or says why it runs eagerly."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import _native, stats
from .deterministic import fill_new_memory
from .options import Options
from .storage import read_whole_storages

log = logging.getLogger("ljcompile")

#: Raised in strict mode when a stage fails; otherwise the graph runs without that stage.
CompileError = _native.CompileError

#: Seconds after which a compilation reports how far it is.
PROGRESS_AFTER = 2.0

_warned: set[str] = set()


def reset() -> None:
    """Lets every warning be given once more."""
    _warned.clear()


def warn_once(key: str, message: str) -> None:
    """Gives a warning the first time `key` is seen."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str, options: Options
) -> Callable[[list[Any]], Any]:
    """Compiles `gm`, a functional ATen graph.

    Args:
        gm: The graph; its nodes carry fake values in ``meta["val"]``.
        example_inputs: Its inputs (fake).
        name: ``forward``, ``backward`` or ``inference``.
        options: What the user set.

    Returns:
        A callable of the boxed convention: it takes one list, empties it, and returns the outputs.

    Raises:
        CompileError: in strict mode, if a stage fails.

    """
    _check_devices(example_inputs)
    fill_new_memory(gm)
    try:
        read_whole_storages(gm)
    except NotImplementedError as error:
        if options.strict:
            raise CompileError(f"ljcompile: {name} graph: {error}") from error
        return _eagerly(gm, name, str(error))
    tracing = _tracing()
    want_text = tracing or options.dump is not None
    text = gm.print_readable(print_output=False, include_stride=True) if want_text else None
    progress = _native.Progress()
    with _reporting(name, len(gm.graph.nodes), progress):
        try:
            settings, compile_id = _settings(options), _compile_id()
            plan = _native.compile(gm, name, settings, compile_id, text, tracing, progress)
        except (_native.CompileError, NotImplementedError) as error:
            if options.strict:
                raise CompileError(f"ljcompile: {name} graph: {error}") from error
            return _eagerly(gm, name, str(error))
    if tracing:
        _trace(plan.take_artifacts())
    record = stats.Record(**json.loads(plan.report))
    stats.add(record)
    for fault in record.faults:
        warn_once(
            f"{fault['stage']}: {fault['message']}",
            f"ljcompile: stage {fault['stage']} failed on a {name} graph and was skipped: "
            f"{fault['message']}\n{_PLEASE_REPORT}",
        )
    for about, message in plan.warnings:
        warn_once(f"{about} {options.cache_dir} {options.dump}", f"ljcompile: {message}")
    plan._boxed_call = True
    return plan


_PLEASE_REPORT = (
    "Please report this with the directory written by LJCOMPILE_DUMP=DIR; "
    "LJCOMPILE_STRICT=1 turns it into an error."
)


def _settings(options: Options) -> str:
    settings = dataclasses.asdict(options)
    # Known from the graph.
    del settings["fallback_random"], settings["operators"]
    settings["torch"] = torch.__version__
    settings["f32_exact"] = _f32_exact()
    if torch.are_deterministic_algorithms_enabled():
        settings["gemm_budget_ms"] = 0  # a measurement could end differently the next time
    return json.dumps(settings, default=str)


def _f32_exact() -> bool:
    """Whether eager multiplies matrices of float32 in float32.

    Otherwise it may round operands to bfloat16 or TF32, which is the user's wish: ATen's then.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return False
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return getattr(matmul, "fp32_precision", "none") in ("none", "ieee")


def _tracing() -> bool:
    """Whether ``TORCH_TRACE`` is on.

    A handler alone says little: pytest adds its own.
    """
    handlers = torch._logging._internal.trace_log.handlers
    return any(getattr(handler, "root_dir", None) for handler in handlers)


def _compile_id() -> str:
    """Dynamo's id of the frame and attempt, such as ``0/1``."""
    return str(torch._guards.CompileContext.current_compile_id() or "")


def run_uncompiled(
    gm: torch.fx.GraphModule, name: str, reason: str, advice: str = ""
) -> torch.fx.GraphModule:
    """The graph as FX runs it, every operator through ATen; counted and warned of once."""
    ops = sum(node.op in ("call_function", "call_method") for node in gm.graph.nodes)
    stats.add(stats.Record(name=name, ops=ops, eager=reason))
    warn_once(
        reason,
        f"ljcompile: a {name} graph of {ops} ops runs uncompiled: {reason}{advice}",
    )
    return gm


def _eagerly(gm: torch.fx.GraphModule, name: str, reason: str) -> Callable[[list[Any]], Any]:
    """`run_uncompiled` in the boxed convention, where a stage of ours failed."""
    run_uncompiled(gm, name, reason, f"\n{_PLEASE_REPORT}")

    def run(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return gm(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _check_devices(example_inputs: Sequence[Any]) -> None:
    for x in example_inputs:
        if isinstance(x, torch.Tensor) and x.device.type != "cpu":
            kind = x.device.type
            warn_once(
                f"device {kind}",
                f"ljcompile: no kernels for device {kind} yet; its operators run through ATen",
            )


@contextmanager
def _reporting(name: str, nodes: int, progress: Any) -> Iterator[None]:
    """Logs where a compilation is if it takes long."""
    done = threading.Event()

    def report() -> None:
        waited = PROGRESS_AFTER
        while not done.wait(PROGRESS_AFTER):
            log.warning(
                "compiling a %s graph of %d nodes: %s, %.0f s so far",
                name,
                nodes,
                progress.stage,
                waited,
            )
            waited += PROGRESS_AFTER

    thread = threading.Thread(target=report, name="ljcompile-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _trace(artifacts: list[tuple[str, str]]) -> None:
    """Hands the artifacts to TORCH_TRACE, where tlparse finds them."""
    for name, text in artifacts:
        torch._logging.trace_structured(
            "artifact",
            metadata_fn=lambda name=name: {"name": f"ljcompile_{name}", "encoding": "string"},
            payload_fn=lambda text=text: text,
        )
