"""Five steps of exported modules, run by arenic, equal PyTorch's."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import arenic
from arenic.torch import trainer, training_step

BATCH, STEPS = 4, 5


class Convolutions(nn.Module):
    """Strides that leave rows over, groups, batch normalisation, every pool that has a lowering."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(self.grouped(x), 2)
        x = F.avg_pool2d(self.up(x), 2)
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, ids):
        q, k, v = self.qkv(self.norm(self.embedding(ids))).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(F.gelu(y).mean(1))


class Resampling(nn.Module):
    """Sizes that grow and shrink by what is no whole number, and pools whose windows differ."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.frozen = nn.BatchNorm2d(4).eval()
        self.head = nn.Linear(4 * 25, 5)

    def forward(self, x):
        x = self.frozen(self.first(x))
        y = F.interpolate(x, scale_factor=2, mode="nearest") + F.interpolate(x, size=(18, 18), mode="bicubic")
        y = F.interpolate(y, scale_factor=1.3, mode="bilinear")
        y = F.interpolate(y, size=(17, 13), mode="nearest")
        y = F.avg_pool2d(y, 3, stride=2, padding=1, count_include_pad=False) + F.avg_pool2d(y, 2, ceil_mode=True)
        y = self.second(F.pad(y, (1, 2, 0, 1), mode="replicate"))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 5), 1))


class Volumes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv3d(1, 4, 3, padding=1, bias=False), nn.Linear(4, 5)
        self.norm = nn.BatchNorm3d(4)

    def forward(self, x):
        x = self.norm(self.first(x.reshape(len(x), 1, 3, 9, 9)))
        x = F.max_pool3d(x, (1, 2, 2)) + F.avg_pool3d(x, (1, 2, 2))
        x = F.interpolate(x, scale_factor=2, mode="trilinear")
        return self.head(torch.flatten(F.adaptive_avg_pool3d(x, 1), 1))


class Moving(nn.Module):
    """Buffers that change with every step: the vectors of spectral normalisation, and a mean of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 16))
        self.head = nn.Linear(16, 5)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * y.mean(0))
        return self.head(torch.tanh(y - self.mean))


class Texts(nn.Module):
    """Recurrences, a causal mask, a weight of unit length, and distances."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.gru, self.lstm = nn.GRU(8, 8, batch_first=True), nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
        self.unit = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.centres = nn.Parameter(torch.randn(5, 8))

    def forward(self, ids):
        x = self.lstm(self.gru(self.embedding(ids))[0])[0]
        x = self.transformer(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))
        return -torch.cdist(self.unit(x[:, -1]), self.centres)


def plain():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))


def images(generator):
    return torch.randn(STEPS * BATCH, 3, 9, 9, generator=generator)


def vectors(generator):
    return torch.randn(STEPS * BATCH, 6, generator=generator)


def texts(generator):
    return torch.randint(0, 11, (STEPS * BATCH, 7), generator=generator)


MODULES = {
    "plain": (plain, vectors),
    "convolutions": (Convolutions, images),
    "attention": (Attention, texts),
    "resampling": (Resampling, images),
    "volumes": (Volumes, images),
    "texts": (Texts, texts),
    "moving": (Moving, vectors),
}

def losses(trained, x, target):
    """Of each batch."""
    batches = range(0, len(x), BATCH)
    return [trained.step({"x": x[k : k + BATCH], "target": target[k : k + BATCH]})["loss"] for k in batches]


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


@pytest.mark.parametrize(
    "name, optimizer", [(n, o) for n in MODULES for o in OPTIMIZERS if n in ("plain", "attention") or o == "nesterov"]
)
def test_five_steps_equal_pytorch(name, optimizer):
    torch.manual_seed(0)
    build, data = MODULES[name]
    module = build()
    generator = torch.Generator().manual_seed(1)
    x, target = data(generator), torch.randint(0, 5, (STEPS * BATCH,), generator=generator)
    torch_optimizer = OPTIMIZERS[optimizer](module.parameters())

    before = {key: value.clone() for key, value in module.state_dict().items()}
    step = training_step(module, x[:BATCH], "cross_entropy", torch_optimizer)
    onnx.checker.check_model(step)
    assert module.training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), f"exporting changed {key}"

    trained = arenic.Trainer(arenic.compile(step))
    ours = losses(trained, x, target)

    theirs = []
    for k in range(STEPS):
        batch = slice(k * BATCH, (k + 1) * BATCH)
        torch_optimizer.zero_grad()
        loss = F.cross_entropy(module(x[batch]), target[batch])
        loss.backward()
        torch_optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    # Adam amplifies gradients near zero, where no two implementations agree.
    tolerance = 1e-5 if optimizer != "adamw" else 1e-3
    states = trained.state_dict()
    for key, value in module.state_dict().items():
        if key.startswith("frozen.running"):
            assert key not in states and torch.equal(value, before[key])
        elif not key.endswith("num_batches_tracked"):
            np.testing.assert_allclose(states[key], value.numpy(), rtol=0, atol=tolerance, err_msg=key)


def test_an_input_may_be_called_as_one_likes():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 5)

        def forward(self, x, eps):
            return self.linear(x) + eps

    module, x, eps, target = Scaled(), torch.rand(BATCH, 6), torch.rand(BATCH, 5), torch.arange(BATCH)
    step = training_step(module, [x, eps], "cross_entropy", "adamw", input_names=["x", "eps"])
    loss = arenic.Trainer(arenic.compile(step)).step({"x": x, "eps": eps, "target": target})["loss"]
    assert abs(loss - F.cross_entropy(module(x, eps), target).item()) < 1e-6


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


def test_gradients_that_are_written_by_hand():
    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)

        def forward(self, x):
            return self.second(StraightThrough.apply(self.first(x)))

    torch.manual_seed(0)
    module, x, target = Binary(), torch.randn(BATCH, 6), torch.arange(BATCH)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    step = training_step(module, x, "cross_entropy", optimizer)
    trained = arenic.Trainer(arenic.compile(step))
    trained.step({"x": x, "target": target})
    F.cross_entropy(module(x), target).backward()
    assert module.first.weight.grad.abs().max() > 1e-3
    optimizer.step()
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(trained.state[key], value.numpy(), rtol=0, atol=1e-6, err_msg=key)


def test_other_losses_and_a_function():
    x, target = torch.randn(BATCH, 6), torch.rand(BATCH, 5)
    for loss, function in [
        ("mse", F.mse_loss),
        ("bce", F.binary_cross_entropy_with_logits),
        (lambda y, t: (y - t).abs().mean(), lambda y, t: (y - t).abs().mean()),
    ]:
        module = plain()
        step = training_step(module, x, loss, "sgd", example_target=target)
        ours = arenic.Trainer(arenic.compile(step)).step({"x": x, "target": target})["loss"]
        assert abs(ours - function(module(x), target).item()) < 1e-6


def test_what_is_wrong_is_said():
    x = torch.zeros(BATCH, 6)
    with pytest.raises(ValueError, match="no loss is called"):
        training_step(plain(), x, "crossentropy", "sgd")
    with pytest.raises(ValueError, match="no optimizer is called"):
        training_step(plain(), x, "cross_entropy", "adm")
    with pytest.raises(ValueError, match="RMSprop is not supported"):
        module = plain()
        training_step(module, x, "cross_entropy", torch.optim.RMSprop(module.parameters()))
    with pytest.raises(ValueError, match="example_target"):
        training_step(plain(), x, F.cross_entropy, "sgd")
