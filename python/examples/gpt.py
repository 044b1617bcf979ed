"""Trains a small GPT on a novel, character by character, and writes some text with it.

    python python/examples/gpt.py [STEPS]

The text is written by a second artifact, the same module as it is after training, with the trained weights.
"""

from __future__ import annotations

import copy
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from beside import ROOT, Run, resident, table
from torch import Tensor, nn

import arenic
import arenic.torch

BATCH, CONTEXT, WIDTH, HEADS, BLOCKS = 16, 64, 64, 4, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Logits of the next character, for each position: [batch, characters, context]."""

    def __init__(self, characters: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(characters, WIDTH), nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions))).transpose(1, 2)


class Novel:
    """Characters as numbers."""

    def __init__(self):
        text = (ROOT / "models/text/pride_and_prejudice.txt").read_text("utf-8")
        self.characters = sorted(set(text))
        numbers = {c: i for i, c in enumerate(self.characters)}
        self.ids = torch.tensor([numbers[c] for c in text])

    def batches(self, count: int):
        generator = torch.Generator().manual_seed(1)
        for _ in range(count):
            starts = torch.randint(0, len(self.ids) - CONTEXT - 1, (BATCH,), generator=generator).tolist()
            rows = torch.stack([self.ids[i : i + CONTEXT + 1] for i in starts])
            yield rows[:, :-1], rows[:, 1:]


def eagerly(module: Gpt, novel: Novel, steps: int) -> Run:
    run = Run("PyTorch, eager")
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    with resident(run):
        for ids, target in novel.batches(steps):

            def step() -> float:
                optimizer.zero_grad()
                loss = F.cross_entropy(module(ids), target)
                loss.backward()
                optimizer.step()
                return loss.item()

            run.step(step)
    return run


def planned(module: Gpt, novel: Novel, steps: int, name: str, **options) -> tuple[Run, arenic.Trainer]:
    run = Run(name)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    example = next(novel.batches(1))[0]
    trainer = arenic.torch.trainer(module, example, "cross_entropy", optimizer, **options)
    run.memory = trainer.arena_bytes
    for ids, target in novel.batches(steps):
        run.step(lambda: trainer.step({"ids": ids, "target": target})["loss"])
    return run, trainer


def written(trained: arenic.Trainer, novel: Novel, length: int = 300) -> str:
    """Text that goes on from a line's beginning."""
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/gpt.onnx"
        trained.export(model)
        step = arenic.compile(model, dim={"batch": 1}, inference=True)
    writer, random = arenic.Trainer(step), np.random.default_rng(0)
    ids = novel.ids[:CONTEXT].numpy().copy()
    text = []
    for _ in range(length):
        logits = writer.step({"ids": ids[None]})["output"][0, :, -1] / 0.8
        chances = np.exp(logits - logits.max())
        chosen = random.choice(len(chances), p=chances / chances.sum())
        text.append(novel.characters[chosen])
        ids = np.append(ids[1:], chosen)
    return "".join(text)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.manual_seed(0)
    novel = Novel()
    first = Gpt(len(novel.characters))
    second, third = copy.deepcopy(first), copy.deepcopy(first)
    eager = eagerly(first, novel, steps)
    whole, trained = planned(second, novel, steps, "arenic")
    tight, _ = planned(third, novel, steps, "arenic, 60 %", device_memory="60%")
    table(eager, whole, tight)
    print(f"\n{written(trained, novel)}")
    assert whole.losses == tight.losses and abs(whole.losses[-1] - eager.losses[-1]) < 0.1


if __name__ == "__main__":
    main()
