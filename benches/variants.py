#!/usr/bin/env python3
"""Prints what variants in one arena cost beside padding to the longest, and beside the whole network.

    benches/variants.py --arenic target/release/arenic [--epochs N]

chars: a transformer over characters, 8 sequences a batch, whose lengths follow a seed: to 16, 32, 64 or 128 characters
each as a variant, beside all of them padded to 128. resnet: nine residual blocks on 16 images of 3 x 32 x 32; each of three
blocks is left out of every other step (--drop-layers), with a program for each of the eight structures or with one that can be
any, beside the whole network. Both by momentum on one thread. Seconds are of the
process's own time on the processor, which other work on the machine disturbs less; runs alternate, and the least of
three counts.
"""

import argparse
import io
import json
import pathlib
import resource
import subprocess
import tempfile

import records

LENGTHS = [16, 32, 64, 128]
BATCH, IMAGES = 8, 16
COLUMNS = {
    "network": "network",
    "programs": "programs",
    "arena_bytes": ("arena bytes", "d"),
    "compile_seconds": ("compiled in", ".1f"),
    "steps_per_epoch": ("steps an epoch", "d"),
    "seconds_per_epoch": ("seconds an epoch", ".2f"),
}


def export(network, example, name, axes, folder):
    import torch

    file = io.BytesIO()
    torch.onnx.export(
        network.train(), (example,), file, input_names=["x"], output_names=["logits"], opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamo=False, dynamic_axes={"x": axes},
    )  # fmt: skip
    (folder / f"{name}.onnx").write_bytes(file.getvalue())


def chars(folder):
    """A model, and a file of batches for each length, and for all padded to the longest."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.na, self.nb = nn.LayerNorm(96), nn.LayerNorm(96)
            self.q, self.k, self.v, self.o = (nn.Linear(96, 96) for _ in range(4))
            self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)

        def forward(self, x):
            y = self.na(x)
            q, k, v = (of(y).unflatten(2, (4, 24)).transpose(1, 2) for of in (self.q, self.k, self.v))
            weights = functional.softmax(q @ k.transpose(2, 3) / 24**0.5, -1)
            x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.nb(x))))

    class Chars(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(65, 96), nn.Embedding(128, 96)
            self.blocks = nn.ModuleList(Layer() for _ in range(3))
            self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 65, bias=False)

        def forward(self, x):
            y = self.tokens(x) + self.places(torch.arange(x.shape[1]))
            for block in self.blocks:
                y = block(y)
            return self.head(self.norm(y))

    torch.manual_seed(0)
    export(Chars(), torch.zeros(BATCH, 32, dtype=torch.int64), "chars", {0: "batch", 1: "seq"}, folder)
    random = np.random.default_rng(1)
    # Lengths of lines: most are short.
    lengths = np.minimum(128, 4 + random.geometric(1 / 28, 512))
    padded_x, padded_target = [], []
    for i, longest in enumerate(LENGTHS):
        shortest = LENGTHS[i - 1] if i else 0
        rows = [n for n in lengths if shortest < n <= longest]
        rows = rows[: len(rows) // BATCH * BATCH]
        x, target = np.zeros((len(rows), longest), np.int64), np.full((len(rows), longest), -100)
        for row, n in enumerate(rows):
            x[row, :n], target[row, :n] = random.integers(0, 65, n), random.integers(0, 65, n)
        np.savez(folder / f"chars{longest}.npz", x=x, target=target)
        wide = ((0, 0), (0, 128 - longest))
        padded_x.append(np.pad(x, wide))
        padded_target.append(np.pad(target, wide, constant_values=-100))
    np.savez(folder / "chars.npz", x=np.concatenate(padded_x), target=np.concatenate(padded_target))


def resnet(folder):
    """The whole network, and images with classes."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            conv = lambda: nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.a, self.na, self.b, self.nb = conv(), nn.BatchNorm2d(width), conv(), nn.BatchNorm2d(width)

        def forward(self, x):
            return functional.relu(x + self.nb(self.b(functional.relu(self.na(self.a(x))))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.blocks, self.head = nn.ModuleList(Block(16) for _ in range(9)), nn.Linear(16, 10)

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    export(Net(), torch.zeros(IMAGES, 3, 32, 32), "resnet", {0: "batch"}, folder)
    random = np.random.default_rng(1)
    images = random.standard_normal((20 * IMAGES, 3, 32, 32), "f4")
    np.savez(folder / "resnet.npz", x=images, target=random.integers(0, 10, len(images)))


def objects(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def own_seconds(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = objects(*command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, len([row for row in rows if "loss" in row])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    records.add_options(parser)
    a = parser.parse_args()
    loss = ["--loss", "cross_entropy", "--optimizer", "momentum", "--momentum", "0.9"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        chars(folder)
        resnet(folder)
        compile_ = lambda *words: objects(a.arenic, "compile", *words, *loss, "--no-eval", "--json")[-1]
        of = lambda text: folder / text
        rows = {}
        extra = ["--class-axis", "2", "--ignore-index", "-100"]
        size = ["--dim", f"batch={BATCH}", "--dim"]
        rows["chars", "padded to 128"] = (
            compile_(of("chars.onnx"), *size, "seq=128", *extra, "-o", of("one.arenic")), [of("one.arenic"), "--data", of("chars.npz")],
        )  # fmt: skip
        data = [word for n in LENGTHS for word in ("--data", of(f"chars{n}.npz"))]
        rows["chars", "4 variants"] = (
            compile_(of("chars.onnx"), *size, "seq=" + ",".join(map(str, LENGTHS)), *extra, "-o", of("all.arenic")),
            [of("all.arenic"), *data, "--mix", "shuffled:1"],
        )  # fmt: skip
        size = ["--dim", f"batch={IMAGES}"]
        rows["resnet", "whole"] = (
            compile_(of("resnet.onnx"), *size, "-o", of("whole.arenic")), [of("whole.arenic"), "--data", of("resnet.npz")],
        )  # fmt: skip
        dropped = ["--drop-layers", "blocks.[357].*=0.5", "--variants-at-most"]
        for what, most in [("8 variants", 8), ("masked alone", 1)]:
            artifact = of(f"drop{most}.arenic")
            figures = compile_(of("resnet.onnx"), *size, *dropped, most, "-o", artifact)
            rows["resnet", what] = (figures, [artifact, "--data", of("resnet.npz"), "--structure", "random:1"])
        least = {}
        for _ in range(3):
            for key, (_, run) in rows.items():
                words = [a.arenic, "run", *run, "--set", "lr=0.01", "--threads", "1", "--zeros", "*", "--json"]
                none, _ = own_seconds(*words, "--steps", "1")
                all_, steps = own_seconds(*words, "--epochs", str(a.epochs))
                seconds = (all_ - none) / a.epochs
                now = (seconds, steps // a.epochs)
                least[key] = min(least.get(key, now), now)
        with records.Record(__file__, a.record, arenic=a.arenic, packages=["torch"]) as record:
            table = record.table(COLUMNS)
            for (network, programs), (figures, _) in rows.items():
                seconds, steps = least[network, programs]
                table.add(
                    network=network, programs=programs, arena_bytes=figures["arena_bytes"],
                    compile_seconds=figures["seconds"], steps_per_epoch=steps, seconds_per_epoch=seconds,
                )  # fmt: skip


main()
