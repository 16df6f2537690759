"""Runs many small checks in batches of subprocesses: a crash or a hang costs one check.

A worker is a script that is given names after ``--worker`` and prints JSON, a line each: `start`
(a name, and optionally `part`, what of it comes next) before a check, the result with the name as
`done` after it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

#: `done` (the name), `status` (``ok`` or what failed), `detail`, and what the worker adds.
Result = dict[str, Any]


def run(
    script: list[str],
    names: list[str],
    batch: int,
    timeout: float,
    tell: Callable[[Result], None],
) -> None:
    """Checks every name, calling `tell` with each result.

    Args:
        script: The worker and its arguments, without those this function adds.
        names: What to check.
        batch: Names in one subprocess.
        timeout: Seconds without a line after which a worker is killed.
        tell: Called with each result, in order.

    """
    waiting = list(names)
    while waiting:
        results = _batch(script, waiting[:batch], timeout)
        for result in results:
            tell(result)
        waiting = waiting[max(len(results), 1) :]


def _batch(script: list[str], names: list[str], timeout: float) -> list[Result]:
    """Results of one subprocess; ends early, with the culprit named, when it dies or hangs."""
    child = subprocess.Popen(
        [sys.executable, *script, "--worker", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # No cache: each graph is compiled once, and writing entries takes time.
        env={"OMP_NUM_THREADS": "2", "LJCOMPILE_CACHE": "0", **os.environ},
    )
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []

    def read() -> None:
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threads = [
        threading.Thread(target=read, daemon=True),
        threading.Thread(target=lambda: errors.extend(child.stderr), daemon=True),
    ]
    for thread in threads:
        thread.start()
    results: list[Result] = []
    current, part = names[0], ""

    def fail(status: str, detail: str) -> None:
        where = f"{part}: " if part else ""
        results.append({"done": current, "status": status, "detail": where + detail})

    while True:
        try:
            line = lines.get(timeout=timeout)
        except queue.Empty:
            child.kill()
            child.wait()
            fail("timeout", f"no result in {timeout} s")
            return results
        if line is None:
            break
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if "start" in message:
            current, part = message["start"], message.get("part", "")
        else:
            results.append(message)
    code = child.wait()
    threads[1].join(timeout=5)
    if code != 0 and len(results) < len(names):
        fail("crash", f"exit {code}\n{''.join(errors)[-2000:]}")
    return results
