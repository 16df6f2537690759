#!/usr/bin/env bash
# Debian packages the build needs; installs only what is missing.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# libpolly, z3, xml2, zstd and ffi are not used by the compiler, but llvm-config lists them among
# LLVM's own libraries, so the linker asks for them.
packages=(llvm-22-dev libpolly-22-dev libz3-dev zlib1g-dev libzstd-dev libxml2-dev libffi-dev)

command -v cargo >/dev/null || die "no cargo on PATH; install Rust 1.90 or newer first"
command -v cc >/dev/null || packages+=(build-essential)
"$(base_python)" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)


missing=()
for package in "${packages[@]}"; do
    status="$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)"
    [[ "$status" == "install ok installed" ]] || missing+=("$package")
done

if ((${#missing[@]})); then
    command -v apt-get >/dev/null ||
        die "missing ${missing[*]}, and no apt-get here; install them and set LLVM_SYS_221_PREFIX"
    sudo=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "missing ${missing[*]}; run as root or install sudo"
        sudo=(sudo)
    fi
    say "installing Debian packages: ${missing[*]}"
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    say "Debian packages are there"
fi
[[ -x "$LLVM_PREFIX/bin/llvm-config" ]] || die "no llvm-config in $LLVM_PREFIX"
