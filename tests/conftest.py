"""Shared by the tests that run a compiled function: a clean Dynamo and a private cache."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

# What is measured differs from run to run: here a cost model decides who multiplies matrices.
os.environ.setdefault("LJCOMPILE_GEMM_BUDGET_MS", "0")


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """Nothing compiled in one test is seen by the next."""
    monkeypatch.setenv("LJCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("LJCOMPILE_DUMP", "LJCOMPILE_STRICT"):
        monkeypatch.delenv(name, raising=False)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def script(tmp_path):
    """Runs a program in a fresh process and returns its standard output."""

    def run(source, *args, env=None, ok=True):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, str(path), *args],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
        )
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done

    return run
