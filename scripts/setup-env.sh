#!/usr/bin/env bash
# Makes the shared Python environment of one requirements file, and prints its folder.
#
# A second clone, or a second process at the same time, finds it ready: the work is done under a
# lock, and `.complete` is written last, so a half-made environment is seen and made anew.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

requirements="$1"
dir="$(env_dir "$requirements")"
mkdir -p "$(dirname "$dir")"

exec 9>"$dir.lock"
flock 9

if [[ -f "$dir/.complete" ]] && "$dir/bin/python" -c 'import torch' 2>/dev/null; then
    say "environment for $requirements is there: $dir"
else
    if [[ -e "$dir" ]]; then
        say "removing a half-made or broken environment: $dir"
        rm -rf "$dir"
    fi
    say "making the environment for $requirements in $dir (torch and its libraries: several GB)"
    "$(base_python)" -m venv "$dir"
    python="$dir/bin/python"
    # uv installs these in seconds where pip takes minutes; pip is the way when uv cannot be had.
    if "$python" -m pip install -q uv >&2 &&
        UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}" "$python" -m uv pip install -q \
            --python "$python" -r "$ROOT/$requirements" >&2; then
        :
    else
        say "uv did not do it; installing with pip"
        "$python" -m pip install -q -r "$ROOT/$requirements" >&2
    fi
    touch "$dir/.complete"
fi
printf '%s\n' "$dir"
