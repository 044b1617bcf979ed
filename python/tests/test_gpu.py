"""Training on a GPU, with batches in its memory. `ARENIC_TEST_DEVICE` names the GPU, as `cuda:0`; without it these tests are
skipped."""

import os

import numpy as np
import pytest

import arenic

DEVICE = os.environ.get("ARENIC_TEST_DEVICE")
pytestmark = pytest.mark.skipif(not DEVICE, reason="ARENIC_TEST_DEVICE names no GPU")
STEPS = 8


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def compiled(root, **options):
    return arenic.compile(root / "models/digits/digits_step.onnx", dim={"batch": 32}, target=["cpu", "cuda"], device=DEVICE, **options)


@pytest.fixture(scope="module", params=[{}, {"accumulate": "auto", "device_memory": "half"}], ids=["whole", "in rounds"])
def step(request, root):
    return compiled(root, **request.param)


def trained(step, batches, device=DEVICE, **options):
    """Losses and weights."""
    trainer = arenic.Trainer(step, device=device, deterministic=True, **options)
    losses = [trainer.step(batch)["loss"] for batch in batches]
    return losses, {name: value.copy() for name, value in trainer.state_dict().items()}


def there(torch, batch):
    """A batch whose arrays are in the GPU's memory."""
    return {name: torch.from_numpy(x).to(DEVICE) if isinstance(x, np.ndarray) else x for name, x in batch.items()}


def assert_same(ours, theirs):
    assert ours[0] == theirs[0]
    for name, value in theirs[1].items():
        np.testing.assert_array_equal(ours[1][name], value, err_msg=name)


def test_batches_of_the_gpu_train_as_those_of_the_host(torch, step, digits):
    fed = trained(step, digits[:STEPS])
    assert_same(trained(step, [there(torch, batch) for batch in digits[:STEPS]]), fed)
    cpu = trained(step, digits[:STEPS], device="cpu")
    np.testing.assert_allclose(fed[0], cpu[0], rtol=1e-4)


def test_a_step_reads_a_batch_after_what_computes_it(torch, step, digits):
    """The batch is the result of work that has not ended when the step begins, on a stream of the caller's."""
    fed = trained(step, digits[:STEPS])
    stream, busy = torch.cuda.Stream(DEVICE), torch.randn(4096, 4096, device=DEVICE)
    trainer = arenic.Trainer(step, device=DEVICE, deterministic=True)
    losses = []
    for batch in digits[:STEPS]:
        given = there(torch, batch)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            late = busy
            for _ in range(20):
                late = late @ busy * 1e-2
            x = given["x"] + late.flatten()[0].nan_to_num(0, 0, 0) * 0
            losses.append(trainer.step({**given, "x": x})["loss"])
            # The step has ended: what is written now is nobody's batch.
            x.fill_(float("nan"))
    assert losses == fed[0]


def test_other_layouts_and_types_are_what_they_are_on_the_host(torch, step, digits):
    batch = there(torch, digits[0])
    expected = trained(step, digits[:1])[0]
    turned = batch["x"].permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0).requires_grad_()
    assert not turned.is_contiguous()
    assert trained(step, [{**batch, "x": turned}])[0] == expected
    assert trained(step, [{**batch, "lr": torch.tensor(0.02, device=DEVICE)}])[0] == expected
    trainer = arenic.Trainer(step, device=DEVICE, deterministic=True)
    with pytest.raises(arenic.DataError, match="`x`"):
        trainer.step({**batch, "x": batch["x"][:16]})
    assert trainer.step(batch)["loss"] == expected[0]


def test_what_is_evaluated_may_lie_on_the_gpu(torch, root, digits):
    step = arenic.compile(
        root / "models/forward/small_cnn.onnx", dim={"batch": 8}, loss="cross_entropy", optimizer="momentum", momentum=0.9,
        target=["cuda"], device=DEVICE,
    )  # fmt: skip
    random = np.random.default_rng(0)
    made = {
        name: random.standard_normal(kind.shape, np.float32) if kind.dtype == np.float32 else random.integers(0, 5, kind.shape)
        for name, kind in step.inputs.items()
        if name != "lr"
    }
    trainer = arenic.Trainer(step, device=DEVICE, deterministic=True)
    trainer.step({**made, "lr": 0.01})
    lent, fed = trainer.evaluate(there(torch, made)), trainer.evaluate(made)
    assert lent.keys() == fed.keys()
    for name, value in fed.items():
        np.testing.assert_array_equal(lent[name], value, err_msg=name)
