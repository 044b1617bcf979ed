"""Sizes and structures that share their states: compiled together, or when a batch first comes."""

import numpy as np
import pytest

import arenic


def forward(root, network, **options):
    options = {"loss": "cross_entropy", "optimizer": "momentum", "momentum": 0.9, "effort": 0.1, **options}
    return arenic.compile(root / f"models/forward/{network}.onnx", **options)


def rows(count, seed=0):
    random = np.random.default_rng(seed)
    x, target = random.standard_normal((count, 32), np.float32), random.integers(0, 10, count)
    return {"x": x, "target": target, "lr": 0.05}


def test_batches_of_other_sizes_are_compiled_when_they_come(root, tmp_path):
    step = forward(root, "mlp", dim={"batch": 6})
    trainer = arenic.Trainer(step, threads=1, dynamic=True)
    sizes = [6, 4, 6, 4, 1]
    losses = [trainer.step(rows(n, i))["loss"] for i, n in enumerate(sizes)]
    assert trainer.variants == ["", "batch=4", "batch=1"] and trainer.arena_bytes == step.arena_bytes
    assert trainer.step(rows(4, 9), variant="batch=4")["loss"] > 0
    # Artifacts of one size each that hand on their states.
    states, expected = None, []
    for i, n in enumerate(sizes):
        alone = arenic.Trainer(forward(root, "mlp", dim={"batch": n}), threads=1)
        if states:
            alone.load_state_dict(states)
        expected.append(alone.step(rows(n, i))["loss"])
        states = alone.state_dict()
    assert losses == expected


def test_a_batch_that_does_not_fit_is_refused_and_training_goes_on(root, tmp_path):
    step = forward(root, "mlp", dim={"batch": 2})
    step.save(tmp_path / "step.arenic")
    loaded = arenic.load(tmp_path / "step.arenic")
    trainer, plain = arenic.Trainer(loaded, threads=1, dynamic=True), arenic.Trainer(step, threads=1)
    for i in range(3):
        with pytest.raises(arenic.CompileError, match="`batch=4000` needs an arena of [0-9]+ bytes"):
            trainer.step(rows(4000))
        assert trainer.step(rows(2, i)) == plain.step(rows(2, i))
    with pytest.raises(arenic.DataError, match="the input `x` takes"):
        plain.step(rows(1))
    with pytest.raises(arenic.DataError, match="the input `x` takes"):
        trainer.step({**rows(2), "x": np.zeros((2, 31), np.float32)})
    trainer.step(rows(1))
    assert len(list((tmp_path / "step.arenic.d").iterdir())) == 1
    again = arenic.Trainer(arenic.load(tmp_path / "step.arenic"), threads=1, dynamic=True, init=trainer.state_dict())
    assert again.step(rows(1, 5)) == trainer.step(rows(1, 5))
    assert again.evaluate(rows(2))["loss"] == trainer.evaluate(rows(2))["loss"]


def test_layers_are_dropped_by_name(root):
    step = forward(root, "tiny_resnet", dim={"batch": 2}, drop_layers={"l1.*": 0.25, "l[23].[cb]*": 0.5}, variants_at_most=3)
    trainer = arenic.Trainer(step, threads=1)
    assert trainer.variants[-1] == "masked" and len(trainer.variants) == 3
    images = np.random.default_rng(0).standard_normal(step.inputs["x"].shape, np.float32)
    batch = {"x": images, "target": np.array([1, 0]), "lr": 0.1}
    before = trainer.state_dict()
    keep = {"l1.keep": 0.0, "l2.keep": 1.0, "l3.keep": 1.0}
    trainer.step({**batch, **keep}, variant="masked")
    after = trainer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("l1."))
    assert not np.array_equal(before["l2.c1.weight"], after["l2.c1.weight"])
    assert trainer.evaluate({"x": images, "target": batch["target"]})["loss"] > 0
