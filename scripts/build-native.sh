#!/usr/bin/env bash
# Builds the extension module and puts it into the Python package of this tree.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
python="$(base_python)"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
cargo build --release --locked -p lj-python --message-format=json-render-diagnostics >"$log"
library="$("$python" - "$log" <<'PY'
import json, sys

found = ""
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and "cdylib" in message["target"]["kind"]:
        found = next((f for f in message["filenames"] if f.endswith(".so")), found)
print(found)
PY
)"
[[ -n "$library" ]] || die "cargo built no extension module (is lj-python a cdylib?)"
target=python/ljcompile/_native.abi3.so
if ! cmp -s "$library" "$target"; then
    # A process may have the old file mapped: replace it, never write into it.
    cp "$library" "$target.new.$$"
    mv -f "$target.new.$$" "$target"
    say "built $target"
fi
