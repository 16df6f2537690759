"""Training loops of other libraries find the backend by its name; every script runs on its own and
never imports ljcompile before it has trained."""

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

MODEL = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM

def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    ))

def rows(n):
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (n, 12), generator=g)
    return [{"input_ids": i, "labels": i.clone()} for i in ids]

def report(losses):
    assert "ljcompile.backend" in sys.modules or not COMPILED, "not compiled"
    out = {"losses": losses}
    if COMPILED:
        from ljcompile import records
        out["eager"] = [r.eager for r in records if r.eager]
        out["names"] = sorted({r.name for r in records})
        out["kernels"] = sum(r.kernels for r in records)
    print("RESULT " + json.dumps(out))
"""

TRAINER = """
COMPILED = sys.argv[1] == "compiled"
import transformers
from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    output_dir="out", max_steps=3, per_device_train_batch_size=4, learning_rate=1e-2,
    report_to=[], logging_steps=1, save_strategy="no", use_cpu=True, seed=0, data_seed=0,
    disable_tqdm=True, dataloader_drop_last=True,
    **(dict(torch_compile=True, torch_compile_backend="ljcompile") if COMPILED else {}),
)
trainer = Trainer(model=model(), args=args, train_dataset=rows(16))
trainer.train()
report([h["loss"] for h in trainer.state.log_history if "loss" in h])
"""

ACCELERATOR = """
COMPILED = sys.argv[1] != "eager"
from accelerate import Accelerator
from torch.utils.data import DataLoader

how = {"argument": {"dynamo_backend": "ljcompile"}}.get(sys.argv[1], {})
accelerator = Accelerator(cpu=True, **how)
net = model()
loader = DataLoader(rows(12), batch_size=4)
net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-2), loader)
losses = []
for batch in loader:
    loss = net(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report(losses)
"""


def run(script, body, how, env=None):
    done = script(MODEL + body, how, env=env)
    line = next(text for text in done.stdout.splitlines() if text.startswith("RESULT "))
    return json.loads(line[len("RESULT ") :])


def agree(compiled, eager):
    assert len(eager["losses"]) == 3
    assert compiled["losses"] == pytest.approx(eager["losses"], rel=1e-3)
    assert compiled["losses"][0] != compiled["losses"][-1]
    assert compiled["eager"] == []
    assert compiled["kernels"] > 10
    assert {"forward", "backward"} <= set(compiled["names"])


def test_trainer(script):
    agree(run(script, TRAINER, "compiled"), run(script, TRAINER, "eager"))


def test_accelerator(script):
    eager = run(script, ACCELERATOR, "eager")
    agree(run(script, ACCELERATOR, "argument"), eager)
    env = {"ACCELERATE_DYNAMO_BACKEND": "LJCOMPILE"}
    agree(run(script, ACCELERATOR, "environment", env=env), eager)


def test_accelerate_keeps_its_own_names(script):
    done = script(
        """
        import accelerate, torch
        from accelerate.utils import DynamoBackend
        assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR
        assert DynamoBackend("LJCOMPILE").value == "LJCOMPILE"
        assert DynamoBackend.list()[-1] == "LJCOMPILE"
        assert len(set(DynamoBackend)) == len(DynamoBackend.list())
        try:
            DynamoBackend("NONSENSE")
        except ValueError as e:
            print(e)
        """
    )
    assert "NONSENSE" in done.stdout
