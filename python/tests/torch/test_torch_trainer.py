"""From a module to a trainer in one call, and back."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import arenic
import arenic.torch

BATCH = 8


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(BATCH, 1, 8, 8, generator=generator), torch.randint(0, 5, (BATCH,), generator=generator)


OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, betas=(0.8, 0.95)),
    "groups": lambda m: torch.optim.SGD(
        [{"params": m[0].parameters(), "weight_decay": 0.1}, {"params": [p for k in (1, 4) for p in m[k].parameters()]}],
        lr=0.1,
    ),
    "rates": lambda m: torch.optim.SGD(
        [{"params": m[0].parameters(), "lr": 0.01}, {"params": [p for k in (1, 4) for p in m[k].parameters()]}], lr=0.1
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_a_schedule_equals_pytorch(name):
    ours, theirs = module(), module()
    optimizer, eager = OPTIMIZERS[name](ours), OPTIMIZERS[name](theirs)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (optimizer, eager)]
    example = next(batches())[0]
    trainer = arenic.torch.trainer(ours, example, "cross_entropy", optimizer, threads=1)
    for x, target in batches():
        batch = {"x" if "x" in trainer._inputs else "input": x, "target": target}
        loss = trainer.step(batch)["loss"]
        eager.zero_grad()
        expected = F.cross_entropy(theirs(x), target)
        expected.backward()
        eager.step()
        assert abs(loss - expected.item()) < 1e-5
        for schedule in schedules:
            schedule.optimizer._opt_called = True
            schedule.step()
    trainer.sync(ours)
    for key, value in ours.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            tolerance = 1e-3 if name == "adamw" else 1e-5
            np.testing.assert_allclose(value.numpy(), theirs.state_dict()[key].numpy(), rtol=0, atol=tolerance, err_msg=key)


def test_a_limit_and_a_function():
    x, target = next(batches())
    whole = arenic.torch.trainer(module(), x, "cross_entropy", "adamw")
    tight = arenic.torch.trainer(module(), x, "cross_entropy", "adamw", device_memory="90%")
    assert tight.arena_bytes <= 0.9 * whole.arena_bytes
    batch = {next(iter(whole._inputs)): x, "target": target, "lr": 0.01}
    assert whole.step(batch) == tight.step(batch)
    other = torch.rand(BATCH, 5)
    trainer = arenic.torch.trainer(module(), x, lambda y, t: (y - t).abs().mean(), "sgd", example_target=other)
    assert abs(trainer.step({"x": x, "target": other})["loss"] - (module()(x) - other).abs().mean().item()) < 1e-5


def test_bf16_and_tensors_with_gradients():
    x, target = next(batches())
    trainer = arenic.torch.trainer(module(), x, "cross_entropy", "sgd")
    name = next(iter(trainer._inputs))
    expected = trainer.step({name: x, "target": target, "lr": 0.0})
    assert trainer.step({name: x.clone().requires_grad_(), "target": target, "lr": 0.0}) == expected
    with pytest.raises(arenic.DataError, match=f"`{name}`"):
        trainer.step({name: x.to(torch.bfloat16), "target": target, "lr": 0.0})
