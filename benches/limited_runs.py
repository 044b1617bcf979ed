#!/usr/bin/env python3
"""Prints what steps take that train under byte limits, beside PyTorch with and without recomputation.

    benches/limited_runs.py --arenic target/release/arenic [--rounds N] [--threads N] [NETWORK ...]

Networks: gpt2 (6 layers, 2 x 128 tokens), resnet50 (batch 8), deep (a transformer of 24 layers, 32 x 64 tokens);
stochastic gradient descent with momentum. PyTorch runs eagerly, with `torch.utils.checkpoint` for each block, and
compiled, with an `activation_memory_budget` of 0.5 as well. Limits are parts of what the arena holds beside states;
where one cannot be kept, the least that can be is taken. Every configuration is a process of its own in each
round; figures are medians over the rounds. `MiB` is the peak of resident memory above what the process had before it
made the model (PyTorch: after its import; arenic: what `arenic run` takes for a step of one addition).
"""

import argparse
import io
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import records

LIMITS = [0.7, 0.5, 0.35]
MODES = ["eager", "checkpoint", "compile", "compile 0.5"]
STEPS = 5
COLUMNS = {
    "network": "network",
    "trained_by": "trained by",
    "arena_mib": ("arena, MiB", ".0f"),
    "peak_mib": ("MiB", ".0f"),
    "ms_per_step": ("ms a step", ".0f"),
    "predicted_overhead": ("predicted", "+.1%"),
    "losses_differ_by": ("losses differ by", ".1e"),
}


def transformer_of(layers, width, heads, vocabulary, times):
    """A transformer whose blocks are PyTorch's own."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            block = {"activation": "gelu", "batch_first": True, "norm_first": True}
            layer = lambda: nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, **block)  # noqa: E731
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(times, width))
            self.blocks = nn.ModuleList(layer() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.places
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Transformer()


def networks():
    """Names to makers of a network, its blocks, an example of its input, the number of classes and their axis."""
    import torch
    import torchvision

    def transformer(batch, *sizes):
        network = transformer_of(*sizes)
        return network, list(network.blocks), torch.zeros(batch, sizes[4], dtype=torch.int64), sizes[3], 2

    def resnet():
        network = torchvision.models.resnet50()
        blocks = [b for part in (network.layer1, network.layer2, network.layer3, network.layer4) for b in part]
        return network, blocks, torch.zeros(8, 3, 224, 224), 1000, 1

    return {
        "gpt2": lambda: transformer(2, 6, 768, 12, 50257, 128),
        "resnet50": resnet,
        "deep": lambda: transformer(32, 24, 64, 4, 128, 64),
    }


def batch(example, classes, axis):
    import torch

    torch.manual_seed(0)
    x = torch.randint(classes, example.shape) if example.dtype == torch.int64 else torch.randn(example.shape)
    return x, torch.randint(classes, example.shape if axis == 2 else example.shape[:1])


def peak():
    """Peak resident MiB of this process alone: `ru_maxrss` begins with that of its parent."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def pytorch(name, mode, threads):
    """Runs in a process of its own."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(threads)
    base = peak()
    torch.manual_seed(0)
    network, blocks, example, classes, axis = networks()[name]()
    network.train()
    if mode == "checkpoint":
        for block in blocks:
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    if mode.startswith("compile"):
        if mode != "compile":
            torch._functorch.config.activation_memory_budget = float(mode.split()[1])
        network = torch.compile(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x, target = batch(example, classes, axis)
    times, losses = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        logits = network(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2) if axis == 2 else logits, target.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    print(json.dumps({"mib": peak() - base, "seconds": statistics.median(times), "losses": losses}))


def export(name, folder):
    """Writes a network with its data; runs in a process of its own."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    network, _, example, classes, axis = networks()[name]()
    file = io.BytesIO()
    training = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(
        network.train(), (example,), file, input_names=["x"], output_names=["logits"], opset_version=17,
        training=training, do_constant_folding=False, dynamo=False,
    )  # fmt: skip
    folder = pathlib.Path(folder)
    (folder / f"{name}.onnx").write_bytes(file.getvalue())
    x, target = batch(example, classes, axis)
    np.savez(folder / f"{name}.npz", x=x.numpy(), target=target.numpy())
    (folder / f"{name}.axis").write_text(str(axis))


def objects(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def base_of(program, folder, threads):
    """Peak resident MiB of a run that does nearly nothing."""
    import onnx
    from onnx import helper

    value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "one", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "one.onnx")
    objects(program, "compile", folder / "one.onnx", "-o", folder / "one.arenic", "--json")
    run = objects(program, "run", folder / "one.arenic", "--set", "x=1", "--steps", 1, "--threads", threads, "--json")
    return run[-1]["peak_rss_bytes"] / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    records.add_options(parser)
    parser.add_argument("networks", nargs="*", default=["gpt2", "resnet50", "deep"])
    arguments = parser.parse_args()
    program, threads = arguments.arenic, arguments.threads
    again = [sys.executable, __file__]
    record = records.Record(__file__, arguments.record, arenic=program, packages=["torch", "torchvision"])
    with tempfile.TemporaryDirectory() as name, record:
        table = record.table(COLUMNS, threads=threads)
        folder = pathlib.Path(name)
        base = base_of(program, folder, threads)
        for network in arguments.networks:
            objects(*again, "--export", network, folder)
            axis = (folder / f"{network}.axis").read_text()
            loss = ["--loss", "cross_entropy", "--class-axis", axis, "--optimizer", "momentum", "--momentum", "0.9"]
            ours, plans = {}, {}

            def plan(name, *at):
                artifact = folder / f"{network} {name}.arenic"
                command = [program, "compile", folder / f"{network}.onnx", *loss, *at, "-o", artifact, "--json"]
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
                figures = json.loads(done.stdout.splitlines()[-1])
                if done.returncode == 0:
                    ours[name], plans[name] = artifact, figures
                return figures

            whole = plan("no limit")
            arena, states = whole["arena_bytes"], whole["state_bytes"]
            for part in LIMITS:
                name = f"{part:.0%}"
                figures = plan(name, "--memory", states + int(part * (arena - states)))
                if name not in plans:
                    least = figures["minimum_device_bytes"]
                    plan(f"{(least - states) / (arena - states):.0%}, the least", "--memory", least)
                    break
            data = ["--data", folder / f"{network}.npz", "--set", "lr=0.01", "--steps", STEPS, "--json"]
            rows = {}
            for _ in range(arguments.rounds):
                for mode in MODES:
                    rows.setdefault(mode, []).append(objects(*again, "--pytorch", network, mode, threads)[-1])
                for limit in ours:
                    lines = objects(program, "run", ours[limit], *data, "--threads", threads)
                    mib = lines[-1]["peak_rss_bytes"] / 2**20 - base
                    losses = [line["loss"] for line in lines if "loss" in line]
                    row = {"mib": mib, "seconds": lines[-1]["median_step_seconds"], "losses": losses}
                    rows.setdefault(limit, []).append(row)
            reference = rows["eager"][0]["losses"]
            for who, runs in rows.items():
                mib, ms = (statistics.median(run[key] for run in runs) for key in ("mib", "seconds"))
                off = max(abs(a - b) for run in runs for a, b in zip(run["losses"], reference))
                arena = predicted = None
                if who not in MODES:
                    arena = plans[who]["arena_bytes"] / 2**20
                    predicted = plans[who]["predicted_step_seconds"] / plans[who]["unlimited_step_seconds"] - 1
                label = f"PyTorch, {who}" if who in MODES else f"arenic, {who}"
                table.add(
                    network=network, trained_by=label, arena_mib=arena, peak_mib=mib, ms_per_step=ms * 1e3,
                    predicted_overhead=predicted, losses_differ_by=off,
                )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pytorch"]:
        pytorch(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["--export"]:
        export(sys.argv[2], sys.argv[3])
    else:
        main()
