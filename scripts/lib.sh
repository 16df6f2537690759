# Shared by the scripts beside it; sourced, not run.
# shellcheck shell=bash

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
LLVM_PREFIX="${LLVM_SYS_221_PREFIX:-/usr/lib/llvm-22}"
export LLVM_SYS_221_PREFIX="$LLVM_PREFIX"

say() { printf '%s\n' "setup: $*" >&2; }
die() {
    printf '%s\n' "setup: error: $*" >&2
    exit 1
}

# The Python the environments are made from.
base_python() {
    local python="${LJ_BASE_PYTHON:-python3}"
    command -v "$python" >/dev/null || die "no $python on PATH; install Python 3.11 or newer"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$python is older than 3.11; name a newer one with LJ_BASE_PYTHON="
    "$python" -c 'import os, sys; print(os.path.realpath(sys.executable))'
}

# The folder of the shared environment for one requirements file. It is keyed by the file and the
# Python, so clones that want the same packages share it and others do not disturb it.
env_dir() {
    local requirements="$1" key
    key="$({
        cat "$ROOT/$requirements"
        base_python
    } | sha256sum | cut -c1-12)"
    printf '%s\n' "${LJ_ENV_DIR:-$HOME/.cache/ljcompile/env}-$key"
}
