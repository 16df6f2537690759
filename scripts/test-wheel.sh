#!/usr/bin/env bash
# Installs the wheel in a fresh environment, away from the tree, and compiles with it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

wheel="$(ls "$ROOT"/dist/ljcompile-*.whl)"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT

# The wheel lands in the fresh environment. torch itself is lent from the shared one, where ljcompile
# is not installed: several GB need not be fetched again to see that the wheel works.
for requirements in requirements.txt requirements-torch28.txt; do
    shared="$("$ROOT/scripts/setup-env.sh" "$requirements")"
    rm -rf "$dir/venv"
    "$(base_python)" -m venv "$dir/venv"
    python="$dir/venv/bin/python"
    "$python" -m pip install -q --no-deps --no-index "$wheel"
    site="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    echo "import site; site.addsitedir('$(echo "$shared"/lib/python3*/site-packages)')" \
        >"$site/lent.pth"
    library="$(echo "$site"/ljcompile/_native*.so)"
    if ldd "$library" | tee "$dir/ldd" | grep -E 'libLLVM|libzstd|libz\.|not found'; then
        die "the extension needs a library it should hold"
    fi
    (cd "$dir" && LJCOMPILE_STRICT=1 LJCOMPILE_CACHE=0 LLVM_SYS_221_PREFIX=/nonexistent "$python" - <<'PY'
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
compiled = torch.compile(model, backend="ljcompile")
x = torch.randn(5, 8)
out = compiled(x)
torch.testing.assert_close(out, model(x))
# Not the sum of squares, whose gradient through a norm is zero but for rounding.
weight = torch.linspace(-1, 1, 32)
ours = torch.autograd.grad((out.sin() * weight).sum(), list(model.parameters()))
eager = torch.autograd.grad((model(x).sin() * weight).sum(), list(model.parameters()))
torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
import ljcompile

assert ljcompile.counters["kernels"] > 0 and "site-packages" in ljcompile.__file__
print(f"torch {torch.__version__}: {ljcompile.counters['kernels']} kernels from {ljcompile.__file__}")
PY
    )
done
echo "needs only: $(awk '{print $1}' "$dir/ldd" | xargs)"
echo "wheel works: $(basename "$wheel")"
