"""Networks of the papers' experiments, written so that a training step of each can be traced:
without in-place operators, and with new batch statistics as results instead of side effects."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class BatchNorm(nn.BatchNorm2d):
    """Keeps the next running statistics in `fresh`, for the step to return."""

    def __init__(self, channels):
        super().__init__(channels)
        del self.num_batches_tracked

    def forward(self, x):
        y, _, _, *self.fresh = torch.ops.aten._native_batch_norm_legit_functional(
            x, self.weight, self.bias, self.running_mean, self.running_var, True, self.momentum, self.eps
        )
        return y


class Dropout(nn.Module):
    """Keeps its mask as numbers, as SINGA does, whose step AutoSwap measured."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        kept = (torch.rand_like(x) > self.p).to(x.dtype)
        return x * (kept * (1.0 / (1.0 - self.p)))


class ReluOfOperand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.relu(x)

    @staticmethod
    def backward(ctx, dy):
        return torch.ops.aten.threshold_backward(dy, *ctx.saved_tensors, 0.0)


class Relu(nn.Module):
    """Keeps its operand for the backward pass, as SINGA does; PyTorch keeps the result."""

    def forward(self, x):
        return ReluOfOperand.apply(x)


def conv(i, o, k=3, stride=1, bias=False):
    return nn.Conv2d(i, o, k, stride, k // 2, bias=bias)


# ------------------------------------------------------------------------------- VGG
VGG_LAYERS = {11: [1, 1, 2, 2, 2], 13: [2, 2, 2, 2, 2], 16: [2, 2, 3, 3, 3], 19: [2, 2, 4, 4, 4]}


def vgg_cifar(depth):
    """VGG of torch.ch/blog/2015/07/30/cifar.html: batch norm after every convolution, dropout
    between the convolutions of a group (the blog has VGG-16 alone; the others follow its rule)."""
    layers, i = [], 3
    for group, count in enumerate(VGG_LAYERS[depth]):
        o = min(64 << group, 512)
        for n in range(count):
            layers += [conv(i, o, bias=True), BatchNorm(o), Relu()]
            if n + 1 < count:
                layers.append(Dropout(0.3 if group == 0 else 0.4))
            i = o
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), Dropout(0.5), nn.Linear(512, 512), nn.Unflatten(1, (512, 1, 1)), BatchNorm(512)]
    return nn.Sequential(*layers, nn.Flatten(), Relu(), Dropout(0.5), nn.Linear(512, 10))


def vgg16_imagenet():
    """VGG-16 as in Caffe, 224×224: no batch norm, three linear layers."""
    layers, i = [], 3
    for group, count in enumerate(VGG_LAYERS[16]):
        for _ in range(count):
            o = min(64 << group, 512)
            layers += [conv(i, o, bias=True), nn.ReLU()]
            i = o
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for i, o in [(512 * 7 * 7, 4096), (4096, 4096)]:
        layers += [nn.Linear(i, o), nn.ReLU(), Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


# ---------------------------------------------------------------------------- ResNet
class Residual(nn.Module):
    """Two 3×3 convolutions, or with `bottleneck` 1×1, 3×3 (which has the stride), 1×1."""

    def __init__(self, i, width, stride, bottleneck, relu):
        super().__init__()
        o = 4 * width if bottleneck else width
        if bottleneck:
            shapes = [(i, width, 1, 1), (width, width, 3, stride), (width, o, 1, 1)]
        else:
            shapes = [(i, width, 3, stride), (width, o, 3, 1)]
        layers = []
        for shape in shapes:
            layers += [conv(*shape), BatchNorm(shape[1]), relu()]
        self.body, self.relu = nn.Sequential(*layers[:-1]), layers[-1]
        self.shortcut = nn.Sequential()
        if stride != 1 or i != o:
            self.shortcut = nn.Sequential(conv(i, o, 1, stride), BatchNorm(o))

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def resnet(counts, width, bottleneck, stem, relu, classes):
    """Stages of so many blocks each; `width` is that of the first, doubled from stage to stage."""
    layers, i = list(stem), width
    for stage, count in enumerate(counts):
        for n in range(count):
            layers.append(Residual(i, width << stage, 2 if stage > 0 and n == 0 else 1, bottleneck, relu))
            i = (width << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, Mean(), nn.Linear(i, classes))


def resnet_cifar(counts, width, bottleneck):
    """For images of 32×32: a stem of one 3×3 convolution, no pooling."""
    stem = [conv(3, width), BatchNorm(width), Relu()]
    return resnet(counts, width, bottleneck, stem, Relu, 10)


def resnet50_imagenet():
    stem = [conv(3, 64, 7, 2), BatchNorm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return resnet([3, 4, 6, 3], 64, True, stem, nn.ReLU, 1000)


def tiny():
    """For 16×16 images and ten classes; small enough that benchmarks are tried on a CPU."""
    return resnet([1, 1], 8, False, [conv(3, 8), BatchNorm(8), nn.ReLU()], nn.ReLU, 10)


# ----------------------------------------------------------------------------- U-Net
class UNet(nn.Module):
    """U-Net (Ronneberger et al.) with padded convolutions and batch norm; results [n, h, w, classes]."""

    def __init__(self, width=64, depth=4, classes=2):
        super().__init__()
        widths = [width << k for k in range(depth + 1)]

        def twice(i, o):
            return nn.Sequential(conv(i, o), BatchNorm(o), nn.ReLU(), conv(o, o), BatchNorm(o), nn.ReLU())

        self.down = nn.ModuleList(twice(i, o) for i, o in zip([3, *widths], widths))
        rising = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in rising)
        self.merge = nn.ModuleList(twice(i, o) for i, o in rising)
        self.head = conv(width, classes, 1, bias=True)

    def forward(self, x):
        skips = [self.down[0](x)]
        for down in self.down[1:]:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        x = self.head(x)
        return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


# ------------------------------------------------------------------------- sequences
class CharLstm(nn.Module):
    """char-rnn (Karpathy): layers of LSTM, unrolled; the operands' products are one for all times."""

    def __init__(self, vocabulary=65, width=512, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.of_operand = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.of_state = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids)
        for of_operand, of_state in zip(self.of_operand, self.of_state):
            h = c = torch.zeros_like(x[:, 0])
            states = []
            for gates in of_operand(x).unbind(1):
                i, f, g, o = (gates + of_state(h)).chunk(4, 1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                states.append(h)
            x = torch.stack(states, 1)
        return self.head(x).flatten(0, 1)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width, heads, gelu):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x, mask):
        n, t, d = x.shape
        q, k, v = (
            part.view(n, t, self.heads, d // self.heads).transpose(1, 2) for part in self.qkv(x).split(d, dim=2)
        )
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(d // self.heads))
        if mask is not None:
            scores = scores + mask
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(n, t, d))

    def forward(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate=self.gelu))


class Gpt(nn.Module):
    """GPT-2 without dropout; the head is the embedding."""

    def __init__(self, vocabulary=50257, times=1024, width=768, heads=12, layers=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(times, width)
        self.blocks = nn.ModuleList(Block(width, heads, "tanh") for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((times, times), -1e9).triu(1))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)


class Vit(nn.Module):
    """Vision transformer, patches of 16×16 of images of 224×224, without dropout."""

    def __init__(self, patch=16, width=768, heads=12, layers=12, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (224 // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads, "none") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
