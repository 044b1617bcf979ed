"""Tells speech from narration in a novel's sentences: a small BERT by its configuration, trained from nothing.

    python python/examples/text_classifier.py      (needs transformers)
"""

from __future__ import annotations

import collections
import copy
import re

import torch
import torch.nn.functional as F
from beside import ROOT, Run, resident, table
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import arenic.torch

BATCH, LENGTH, WORDS, EPOCHS = 32, 24, 2000, 3


def sentences() -> tuple[Tensor, Tensor]:
    """Numbers of words, 0 where there are no more, and whether somebody speaks. Quotation marks are left out."""
    text = (ROOT / "models/text/pride_and_prejudice.txt").read_text("utf-8")
    pieces = [re.split(r"(?<=[.!?])\s", part) for part in re.split(r"[\"“”]", text.replace("\n", " "))]
    rows = [(re.findall(r"[a-z']+", each.lower()), k % 2) for k, part in enumerate(pieces) for each in part]
    rows = [(words, spoken) for words, spoken in rows if 4 <= len(words)]
    common = collections.Counter(word for words, _ in rows for word in words).most_common(WORDS - 2)
    numbers = {word: i + 2 for i, (word, _) in enumerate(common)}
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for i, (words, _) in enumerate(rows):
        found = [numbers.get(word, 1) for word in words[:LENGTH]]
        ids[i, : len(found)] = torch.tensor(found)
    return ids, torch.tensor([spoken for _, spoken in rows])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
            max_position_embeddings=LENGTH, num_labels=2, attn_implementation="eager",
        )  # fmt: skip
        self.bert = BertForSequenceClassification(config)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.bert(input_ids=ids, attention_mask=mask).logits


def batches(ids: Tensor, spoken: Tensor, seed: int):
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(BATCH):
        if len(rows) == BATCH:
            yield ids[rows], (ids[rows] > 0).float(), spoken[rows]


def eagerly(module: Classifier, ids: Tensor, spoken: Tensor) -> Run:
    run = Run("PyTorch, eager")
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-4)
    module.train()
    with resident(run):
        for epoch in range(EPOCHS):
            for x, mask, target in batches(ids, spoken, epoch):

                def step() -> float:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(module(x, mask), target)
                    loss.backward()
                    optimizer.step()
                    return loss.item()

                run.step(step)
    return run


def planned(module: Classifier, ids: Tensor, spoken: Tensor, name: str, **options) -> Run:
    run = Run(name)
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-4)
    x, mask, _ = next(batches(ids, spoken, 0))
    trainer = arenic.torch.trainer(module, (x, mask), "cross_entropy", optimizer, **options)
    run.memory = trainer.arena_bytes
    for epoch in range(EPOCHS):
        for x, mask, target in batches(ids, spoken, epoch):
            run.step(lambda: trainer.step({"ids": x, "mask": mask, "target": target})["loss"])
    trainer.sync(module)
    return run


def accuracy(module: Classifier, ids: Tensor, spoken: Tensor) -> float:
    module.eval()
    with torch.no_grad():
        return (module(ids, (ids > 0).float()).argmax(1) == spoken).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    ids, spoken = sentences()
    held_out = len(ids) // 10
    train, test = (ids[held_out:], spoken[held_out:]), (ids[:held_out], spoken[:held_out])
    modules = [Classifier()]
    modules += [copy.deepcopy(modules[0]) for _ in range(2)]
    runs = [
        eagerly(modules[0], *train),
        planned(modules[1], *train, "arenic"),
        planned(modules[2], *train, "arenic, 60 %", device_memory="60%"),
    ]
    table(*runs)
    usual = max(test[1].float().mean().item(), 1 - test[1].float().mean().item())
    for run, module in zip(runs, modules):
        right = accuracy(module, *test)
        print(f"{run.name}: {right:.1%} of the sentences held out, where the commoner class is {usual:.1%}")
        assert right > usual


if __name__ == "__main__":
    main()
