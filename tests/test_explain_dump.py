"""What a user can look into: explain, the dump folder, TORCH_TRACE through tlparse."""

import json
import os
import shutil
import subprocess
import sys
import time

import ljcompile
import pytest
import torch
from torch import nn


def test_explain_names_graphs_breaks_fallbacks_and_times(capsys):
    def f(x, w):
        y = (x @ w).relu()
        print("in between")
        return torch.linalg.inv(y @ y.t() + torch.eye(4)) * 2

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    report = ljcompile.explain(f)(x, w)
    torch.testing.assert_close(report.result, f(x, w), rtol=1e-3, atol=1e-3)
    assert [g.name for g in report.graphs] == ["inference", "inference"]
    assert sum(b.count for b in report.breaks) == 1
    (broken,) = report.breaks
    assert "test_explain_dump.py:" in broken.line and "print" in broken.line
    assert report.ops > 4 and report.kernels >= 2
    names = [fallback["target"] for fallback in report.fallbacks]
    assert any("linalg_inv" in n for n in names), names
    assert all(fallback["reason"] and fallback["count"] for fallback in report.fallbacks)
    assert {"dynamo", "aot", "import", "codegen"} <= set(report.seconds)
    assert report.seconds["dynamo"] > 0
    text = capsys.readouterr().out
    for words in ("graphs: 2, breaks: 1", "linalg_inv", "codegen", broken.line):
        assert words in text


def test_explain_of_a_module_with_options(capsys):
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))
    report = ljcompile.explain(model, dynamic=True, options={"cache": False})(torch.randn(3, 4))
    # AOTAutograd compiles the backward at once where it can.
    assert report.breaks == [] and report.graphs[0].name == "forward"
    assert report.graphs[0].cache == "off"
    report.result.sum().backward()
    assert [r.name for r in ljcompile.records] == ["forward", "backward"]


def test_explain_gives_the_line_of_a_fallback():
    def f(x):
        return torch.linalg.inv(x) + 1

    report = ljcompile.explain(f)(torch.eye(3))
    lines = [f["line"] for f in report.graphs[0].fallbacks]
    assert any(line and "test_explain_dump.py" in line and "linalg.inv" in line for line in lines)


def folders(path):
    return sorted(os.listdir(path))


def test_dump_writes_every_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("LJCOMPILE_DUMP", str(tmp_path / "dump"))
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU())
    torch.compile(model, backend="ljcompile")(torch.randn(3, 4)).sum().backward()
    found = folders(tmp_path / "dump")
    assert len(found) == 2 and any("forward" in n for n in found), found
    for folder in found:
        files = os.listdir(tmp_path / "dump" / folder)
        stems = {f.split(".")[0] for f in files}
        for stage in ("00_fx", "01_import", "02_stitch", "03_rewrite", "04_schedule", "05_buffers"):
            assert stage in stems, files
        assert any(f.startswith("06_llvm") and f.endswith(".ll") for f in files)
        assert any(f.startswith("07_asm") and f.endswith(".s") for f in files)
        assert "08_plan.txt" in files
        text = (tmp_path / "dump" / folder / "03_rewrite.lj").read_text()
        assert text.startswith("graph ") and "return" in text
        assert "def forward" in (tmp_path / "dump" / folder / "00_fx.txt").read_text()
        meta = json.loads((tmp_path / "dump" / folder / "meta.json").read_text())
        assert meta["graph"] in ("forward", "backward") and meta["counts"]["steps"] > 0
        stages = [t["stage"] for t in meta["times"]]
        assert stages.index("import") < stages.index("schedule") < stages.index("codegen")


def test_dump_as_an_option(tmp_path):
    options = {"dump": str(tmp_path / "d")}
    torch.compile(lambda x: x + 1, backend="ljcompile", options=options)(torch.ones(2))
    assert len(folders(tmp_path / "d")) == 1


def test_nothing_is_dumped_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.compile(lambda x: x + 1, backend="ljcompile", options={"cache": False})(torch.ones(2))
    assert os.listdir(tmp_path) == []


def test_tlparse_lists_the_artifacts(script, tmp_path):
    beside = os.path.join(os.path.dirname(sys.executable), "tlparse")
    tlparse = beside if os.path.exists(beside) else shutil.which("tlparse")
    if tlparse is None:
        pytest.skip("tlparse is not installed")
    source = """
        import torch
        torch.compile(lambda x: torch.softmax(x * 2, -1), backend="ljcompile")(torch.randn(3, 4))
    """
    script(source, env={"TORCH_TRACE": str(tmp_path / "trace")})
    (log,) = os.listdir(tmp_path / "trace")
    out = tmp_path / "parsed"
    command = [tlparse, str(tmp_path / "trace" / log), "-o", str(out), "--no-browser"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    index = (out / "index.html").read_text()
    for name in ("ljcompile_01_import", "ljcompile_06_llvm", "ljcompile_08_plan"):
        assert name in index


def test_slow_compilations_say_where_they_are(monkeypatch, caplog):
    from ljcompile import compiler

    monkeypatch.setattr(compiler, "PROGRESS_AFTER", 0.05)
    progress = compiler._native.Progress()
    with (
        caplog.at_level("WARNING", logger="ljcompile"),
        compiler._reporting("forward", 7, progress),
    ):
        time.sleep(0.3)
    assert any("compiling a forward graph of 7 nodes" in m for m in caplog.messages)
