#!/usr/bin/env python3
"""Writes forward models as users have them: exported by PyTorch in training mode, weights inside.

    models/forward/make_forward.py [FOLDER]

They are the networks of the steps in ../step, with the weights that those begin with (tests/runs), so that
differentiating them must give the same five losses. Needs the packages of ../papers/requirements.txt.
"""

import io
import math
import pathlib
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).parent
RUNS = HERE.parent.parent / "tests" / "runs"
BATCH = 4


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(32, 24), nn.Linear(24, 24), nn.Linear(24, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class SmallCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.fc(torch.flatten(x, 1))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.c2, self.b2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        skipped = x if self.down is None else self.down(x)
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + skipped)


class TinyResnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.l1, self.l2, self.l3 = Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = self.l3(self.l2(self.l1(F.relu(self.b(self.c(x))))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        b, t, d = x.shape
        parts = self.qkv(x).split(d, dim=2)
        q, k, v = (part.view(b, t, self.heads, d // self.heads).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(d // self.heads)) + mask
        return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.a, self.n1, self.n2 = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.f1, self.f2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        x = x + self.a(self.n1(x), mask)
        return x + self.f2(F.gelu(self.f1(self.n2(x)), approximate="tanh"))


class GptTiny(nn.Module):
    """A GPT-2 in small, whose head is its embedding's weight."""

    def __init__(self, vocabulary=65, times=16, width=32, heads=2, blocks=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(times, width)
        self.bl = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.nf = nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((times, times), -1e9).triu(1)[None, None])
        self.register_buffer("pos", torch.arange(times))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(self.pos)
        for block in self.bl:
            x = block(x, self.mask)
        return F.linear(self.nf(x), self.wte.weight).reshape(-1, self.wte.weight.shape[0])


NETWORKS = {
    "mlp": (Mlp, torch.zeros(BATCH, 32), "x"),
    "small_cnn": (SmallCnn, torch.zeros(BATCH, 1, 28, 28), "x"),
    "tiny_resnet": (TinyResnet, torch.zeros(BATCH, 3, 16, 16), "x"),
    "gpt_tiny": (GptTiny, torch.zeros(BATCH, 16, dtype=torch.int64), "ids"),
}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, (network, example, entry) in NETWORKS.items():
        network = network().train()
        weights = np.load(RUNS / f"{name}_b4_sgdm.init.npz")
        kinds = [("p.", dict(network.named_parameters())), ("b.", dict(network.named_buffers()))]
        for prefix, tensors in kinds:
            for key, tensor in tensors.items():
                if prefix + key in weights.files:
                    with torch.no_grad():
                        tensor.copy_(torch.from_numpy(weights[prefix + key]))
        # Opset 15 has no layer normalisation.
        path = folder / f"{name}.onnx"
        export(network, example, entry, path, 15 if name == "gpt_tiny" else 17)
        # The exporter runs the network, which moves its running statistics.
        model = onnx.load(path)
        for initializer in model.graph.initializer:
            if f"b.{initializer.name}" in weights.files:
                first = weights[f"b.{initializer.name}"]
                initializer.CopyFrom(onnx.numpy_helper.from_array(first, initializer.name))
        onnx.save(model, path)


def export(network, example, entry, path, opset):
    """Writes a forward model in training mode with a batch of any size."""
    file = io.BytesIO()
    torch.onnx.export(
        network,
        (example,),
        file,
        input_names=[entry],
        output_names=["logits"],
        dynamic_axes={entry: {0: "batch"}},
        opset_version=opset,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        dynamo=False,
    )
    model = onnx.load_from_string(file.getvalue())
    for node in model.graph.node:
        node.ClearField("doc_string")
    onnx.save(model, path)
    print(f"{path.name}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
