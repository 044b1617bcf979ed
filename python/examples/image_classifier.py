"""Classifies images of handwritten digits: a residual network, a `DataLoader`, augmentation, a schedule.

    python python/examples/image_classifier.py
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from beside import ROOT, Run, resident, table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import arenic.torch

BATCH, EPOCHS = 32, 4


class Digits(Dataset):
    """Images, shifted by up to a pixel where they are trained with."""

    def __init__(self, file: str, shifts: bool):
        data = np.load(ROOT / "models/digits" / file)
        self.x, self.target = torch.from_numpy(data["x"]), torch.from_numpy(data["target"])
        self.shifts = shifts

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x = self.x[i]
        if self.shifts:
            down, right = torch.randint(-1, 2, (2,)).tolist()
            x = torch.roll(x, (down, right), (1, 2))
        return x, self.target[i]


class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(x + self.norm2(self.second(y)))


def network() -> nn.Module:
    body = [nn.Conv2d(1, 32, 3, padding=1), *(Block(32) for _ in range(3)), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Dropout(0.1), nn.Linear(32 * 16, 10))


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(Digits("train.npz", shifts=True), BATCH, shuffle=True, drop_last=True, generator=generator)


def accuracy(module: nn.Module) -> float:
    module.eval()
    test = Digits("test.npz", shifts=False)
    with torch.no_grad():
        return (module(test.x).argmax(1) == test.target).float().mean().item()


def optimizer_of(module: nn.Module, steps: int):
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def eagerly(module: nn.Module) -> Run:
    run, batches = Run("PyTorch, eager"), loader()
    optimizer, schedule = optimizer_of(module, EPOCHS * len(batches))
    module.train()
    with resident(run):
        for _ in range(EPOCHS):
            for x, target in batches:

                def step() -> float:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(module(x), target)
                    loss.backward()
                    optimizer.step()
                    return loss.item()

                run.step(step)
                schedule.step()
    return run


def planned(module: nn.Module, name: str, **options) -> Run:
    run, batches = Run(name), loader()
    optimizer, schedule = optimizer_of(module, EPOCHS * len(batches))
    # The scheduler is told that the optimizer steps, which arenic does.
    optimizer._opt_called = True
    example = torch.zeros(BATCH, 1, 8, 8)
    trainer = arenic.torch.trainer(module, example, "cross_entropy", optimizer, input_names=["x"], **options)
    run.memory = trainer.arena_bytes
    for _ in range(EPOCHS):
        for x, target in batches:
            run.step(lambda: trainer.step({"x": x, "target": target})["loss"])
            schedule.step()
    trainer.sync(module)
    return run


def main() -> None:
    torch.manual_seed(0)
    modules = [network()]
    modules += [copy.deepcopy(modules[0]) for _ in range(2)]
    runs = [eagerly(modules[0]), planned(modules[1], "arenic"), planned(modules[2], "arenic, 60 %", device_memory="60%")]
    table(*runs)
    for run, module in zip(runs, modules):
        print(f"{run.name}: {accuracy(module):.1%} of the test images")
        assert accuracy(module) > 0.95


if __name__ == "__main__":
    main()
