"""Tiny models for the importer's tests: name → (constructor, inputs by keyword, mode)."""

# ruff: noqa: E501

from __future__ import annotations

import torch
from torch import nn


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
        )
    )  # fmt: skip


def _qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
        )
    )  # fmt: skip


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=4, n_positions=64, use_cache=False)
    )


def _bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip


def _vit():
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
            image_size=16, patch_size=4, num_labels=5,
        )
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(o)
        self.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(o)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = torch.relu(self.b1(self.c1(x)))
        return torch.relu(self.b2(self.c2(y)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x, labels):
        y = self.fc(self.pool(self.layers(self.stem(x))).flatten(1))
        return nn.functional.cross_entropy(y, labels)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 12, batch_first=True)
        self.out = nn.Linear(12, 7)

    def forward(self, ids, labels):
        y, _ = self.rnn(self.emb(ids))
        return nn.functional.cross_entropy(self.out(y[:, -1]), labels)


class Cell(nn.Module):
    """An LSTM written out, gate by gate."""

    def __init__(self):
        super().__init__()
        self.x = nn.Linear(8, 32)
        self.h = nn.Linear(8, 32)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 8)
        for t in range(3):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h.pow(2).mean()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU())

        self.a, self.b, self.c = block(3, 8), block(8, 16), block(24, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x, y):
        a = self.a(x)
        b = self.b(nn.functional.avg_pool2d(a, 2))
        b = nn.functional.interpolate(b, scale_factor=2.0, mode="nearest")
        return nn.functional.mse_loss(self.out(self.c(torch.cat([a, b], 1))), y)


class Zoo(nn.Module):
    """Operators that the models above do not reach."""

    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(12)
        self.rms = nn.RMSNorm(12)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, i):
        F = nn.functional
        y = self.ln(x) + self.rms(x) * F.gelu(x) + F.gelu(x, approximate="tanh")
        y = y + F.elu(x) + F.softplus(x) + F.hardswish(x) + F.leaky_relu(x) + F.mish(x) + F.relu6(x)
        y = y + torch.where(x > 0.1, x.clamp(-1, 0.5), x.exp()) + x.masked_fill(x < 0, 0.3)
        y = (
            y
            + torch.tril(x @ x.mT) @ x
            + x.softmax(-1)
            + x.log_softmax(0)
            + x.logsumexp(1, keepdim=True)
        )
        y = y + x.std(-1, keepdim=True) + x.var(0) + x.norm(dim=-1, keepdim=True) + x.cumsum(0)
        y = (
            y
            + x.flip(1)
            + x.roll(1, 0)
            + F.pad(x, (1, 0, 0, 0))[:, 1:]
            + x[i]
            + x.index_select(0, i)
        )
        y = (
            y
            + (x // 0.3)
            + x % 0.7
            + torch.fmod(x, 0.7)
            + torch.maximum(x, -x)
            + x.amax(0)
            + x.prod(0)
        )
        y = (
            y
            + torch.stack([x, y]).sum(0)
            + x.repeat(2, 1)[: x.shape[0]]
            + F.one_hot(i, 12)
            + i[:, None]
        )
        y = (
            y
            + self.drop(y)
            + x.argmax(0)
            + x.max()
            + x.sort(0).values
            + torch.atan2(x, y)
            + x.lerp(y, 0.3)
        )
        y = (
            y
            + torch.std_mean(x, 0)[1]
            + torch.logaddexp(x, y)
            + x.gather(0, i[:, None].expand_as(x))
            + x.mean(0)
        )
        y = (
            y
            + torch.addcmul(x, x, y, value=0.5)
            + torch.addcdiv(x, x, y * y + 1)
            + x.unbind(1)[0][:, None]
        )
        z = torch.eye(x.shape[0], dtype=x.dtype)
        return (
            (y.sigmoid() + z @ x).mean()
            + F.l1_loss(x, y)
            + F.smooth_l1_loss(x, y)
            + F.huber_loss(x, y)
        )


def tokens(vocab, batch=2, length=9):
    ids = torch.randint(0, vocab, (batch, length))
    return {"input_ids": ids, "labels": ids.clone()}


MODELS = {
    "llama": (_llama, lambda: tokens(97)),
    "qwen2": (_qwen2, lambda: tokens(97)),
    "gpt2": (_gpt2, lambda: tokens(97)),
    "bert": (_bert, lambda: tokens(97)),
    "vit": (
        _vit,
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 4])},
    ),
    "resnet": (ResNet, lambda: {"x": torch.randn(3, 3, 32, 32), "labels": torch.tensor([1, 4, 9])}),
    "lstm": (
        Lstm,
        lambda: {"ids": torch.randint(0, 50, (3, 5)), "labels": torch.tensor([1, 4, 6])},
    ),
    "cell": (Cell, lambda: {"x": torch.randn(3, 5, 8)}),
    "unet": (UNet, lambda: {"x": torch.randn(2, 3, 8, 8), "y": torch.randn(2, 3, 8, 8)}),
    "zoo": (Zoo, lambda: {"x": torch.randn(6, 12), "i": torch.randint(0, 6, (6,))}),
}
