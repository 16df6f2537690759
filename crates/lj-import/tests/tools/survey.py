"""Lists every operator that the test models reach: `python survey.py [model…]`."""

import collections
import sys

import capture_fx
import models
import torch


def cases():
    for name in sys.argv[1:] or models.MODELS:
        # Every pair of values of two of the three settings occurs.
        yield name, True, torch.float32, True
        yield name, True, torch.bfloat16, False
        yield name, False, torch.float32, False
        yield name, False, torch.bfloat16, True


def capture(name, train, dtype, dynamic, run=None, table=None):
    torch.manual_seed(0)
    make, inputs = models.MODELS[name]
    model = make().to(dtype).train(train)
    kwargs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs().items()}
    record = []
    torch._dynamo.reset()
    compiled = torch.compile(
        model, backend=capture_fx.backend(record, table, run), dynamic=dynamic or None
    )
    with torch.set_grad_enabled(train):
        out = compiled(**kwargs)
        loss = out if isinstance(out, torch.Tensor) else out.loss
        if train:
            loss.backward()
    return record


if __name__ == "__main__":
    table = capture_fx._load_table()
    seen = collections.defaultdict(set)
    for case in cases():
        try:
            for _, json_, _ in capture(*case, table=table):
                for n in json_["nodes"]:
                    if isinstance(n["kind"], dict):
                        seen[n["kind"]["Call"]["target"]].add(case[0])
        except Exception as e:
            print("FAILED", case, type(e).__name__, str(e)[:300])
    for t in sorted(seen):
        print(t, " ".join(sorted(seen[t])))
