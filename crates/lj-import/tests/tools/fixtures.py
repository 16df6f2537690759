"""Writes `tests/fixtures/*.json`, the graphs of `tests/models.rs`: `python fixtures.py`."""

import json

import capture_fx
import survey
import torch

#: (model, train, dtype, dynamic)
CASES = [
    ("llama", True, torch.bfloat16, False),
    ("cell", True, torch.float32, True),
]


def main():
    folder = capture_fx.ROOT / "crates" / "lj-import" / "tests" / "fixtures"
    folder.mkdir(exist_ok=True)
    for case in CASES:
        model, _, dtype, dynamic = case
        for name, fx, _ in survey.capture(*case):
            short = "bf16" if dtype == torch.bfloat16 else "f32"
            stem = f"{model}_{name}_{short}{'_dynamic' if dynamic else ''}"
            # What is empty may be absent; paths of one machine have no place in a fixture.
            fx["nodes"] = [{k: v for k, v in n.items() if v and k != "line"} for n in fx["nodes"]]
            text = json.dumps(fx, separators=(",", ":"))
            (folder / f"{stem}.json").write_text(text + "\n")
            print(stem, len(text))


if __name__ == "__main__":
    main()
