"""The models of the suite: tiny configurations, random weights, nothing downloaded.

Each entry builds a `Case`: a module, the inputs of one call for a given size, and how a scalar
loss is made of the outputs. Sizes are `(batch, sequence)` or `(batch, image side)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = dict[str, Any]


@dataclasses.dataclass
class Case:
    """One model under test."""

    module: nn.Module
    inputs: Callable[[int, int, torch.Generator], Inputs]
    """`(batch, length, generator)` to keyword arguments."""
    sizes: list[tuple[int, int]]
    """Sizes to run; the first is the one that static tests use."""
    transformer: bool = False
    """Whether everything but matmul, convolution and attention must be our own kernels."""

    def loss(self, out: Any) -> Tensor:
        """The model's own loss, or a fixed uneven weighting of all its outputs."""
        own = getattr(out, "loss", None)
        if own is not None:
            return own
        total = None
        for value in flatten("o", out).values():
            if not value.requires_grad:
                continue
            ramp = torch.arange(value.numel(), device=value.device, dtype=torch.float64)
            weight = torch.cos(ramp * 0.37).to(value.dtype).reshape(value.shape)
            term = (value * weight).sum() / value.numel() ** 0.5 + 0.1 * (value * value).mean()
            total = term if total is None else total + term
        assert total is not None
        return total


def flatten(key: str, value: Any) -> dict[str, Tensor]:
    """Every tensor of a nested output, by its path."""
    if isinstance(value, Tensor):
        return {key: value}
    if isinstance(value, dict):
        pairs: Any = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    else:
        return {}
    found: dict[str, Tensor] = {}
    for name, inner in pairs:
        found.update(flatten(f"{key}.{name}", inner))
    return found


BUILDERS: dict[str, Callable[[], Case]] = {}


def model(build: Callable[[], Case]) -> Callable[[], Case]:
    BUILDERS[build.__name__] = build
    return build


SEQUENCES = [(2, 16), (3, 24), (5, 19), (4, 32)]
IMAGES = [(2, 32), (3, 48), (5, 32), (4, 64)]


def tokens(vocab: int) -> Callable[[int, int, torch.Generator], Inputs]:
    def make(batch: int, length: int, g: torch.Generator) -> Inputs:
        ids = torch.randint(0, vocab, (batch, length), generator=g)
        return {"input_ids": ids, "labels": ids.roll(-1, 1)}

    return make


def images(channels: int) -> Callable[[int, int, torch.Generator], Inputs]:
    def make(batch: int, side: int, g: torch.Generator) -> Inputs:
        return {"x": torch.randn(batch, channels, side, side, generator=g)}

    return make


@model
def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=131,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        use_cache=False,
    )
    return Case(LlamaForCausalLM(config), tokens(131), SEQUENCES, transformer=True)


@model
def qwen2() -> Case:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=131,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return Case(Qwen2ForCausalLM(config), tokens(131), SEQUENCES, transformer=True)


@model
def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=131,
        n_positions=128,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Case(GPT2LMHeadModel(config), tokens(131), SEQUENCES, transformer=True)


@model
def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=131,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=112,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def make(batch: int, length: int, g: torch.Generator) -> Inputs:
        ids = torch.randint(0, 131, (batch, length), generator=g)
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, length // 2 :] = 0
        labels = torch.where(torch.rand(batch, length, generator=g) < 0.5, ids, -100)
        labels[:, 0] = ids[:, 0]
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return Case(BertForMaskedLM(config), make, SEQUENCES, transformer=True)


@model
def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=112,
        num_labels=7,
        problem_type="single_label_classification",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def make(batch: int, side: int, g: torch.Generator) -> Inputs:
        return {
            "pixel_values": torch.randn(batch, 3, side, side, generator=g),
            "labels": torch.randint(0, 7, (batch,), generator=g),
        }

    sizes = [(2, 32), (3, 32), (5, 32), (4, 32)]
    return Case(ViTForImageClassification(config), make, sizes, transformer=True)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut, as in ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [8, 8, 16, 16, 24, 24, 32, 32]
        blocks, inside = [], 8
        for i, width in enumerate(widths):
            blocks.append(BasicBlock(inside, width, 2 if i in (2, 4, 6) else 1))
            inside = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@model
def resnet() -> Case:
    return Case(ResNet(), images(3), IMAGES)


class Lstm(nn.Module):
    """An embedding, a two-layer LSTM written out step by step, and a head over all steps."""

    def __init__(self, vocab: int = 97, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        zeros = x.new_zeros(x.shape[0], x.shape[2])
        state = [(zeros, zeros) for _ in self.cells]
        rows = []
        for step in range(x.shape[1]):
            row = x[:, step]
            for i, cell in enumerate(self.cells):
                state[i] = cell(row, state[i])
                row = state[i][0]
            rows.append(row)
        return self.head(torch.stack(rows, 1))


@model
def lstm() -> Case:
    def make(batch: int, length: int, g: torch.Generator) -> Inputs:
        return {"ids": torch.randint(0, 97, (batch, length), generator=g)}

    # The loop over steps is unrolled, so only the batch may vary within one compile.
    return Case(Lstm(), make, [(2, 9), (3, 9), (7, 9), (4, 9)])


class UNet(nn.Module):
    """Two levels down and up: GroupNorm, SiLU, skips by concatenation, nearest upsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def block(inside: int, outside: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1),
                nn.GroupNorm(4, outside),
                nn.SiLU(),
                nn.Conv2d(outside, outside, 3, padding=1),
                nn.GroupNorm(8, outside),
                nn.SiLU(),
            )

        self.down1 = block(3, width)
        self.down2 = block(width, 2 * width)
        self.middle = block(2 * width, 2 * width)
        self.up2 = block(4 * width, width)
        self.up1 = block(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.avg_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.up2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        return self.out(self.up1(torch.cat([F.interpolate(d, scale_factor=2.0), a], 1)))


@model
def unet() -> Case:
    return Case(UNet(), images(3), IMAGES)


def build(name: str) -> Case:
    """A fresh case with seeded weights; zero-initialised parameters get signal too."""
    torch.manual_seed(1234)
    case = BUILDERS[name]()
    with torch.no_grad():
        for parameter in case.module.parameters():
            if not parameter.any():
                parameter.normal_(0.0, 0.02)
    return case
