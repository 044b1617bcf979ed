#!/usr/bin/env python3
"""Prints how many micro-batches `--accumulate auto` takes under byte limits, and what that costs.

    benches/micro_batches.py --arenic target/release/arenic [--threads N] [NETWORK ...]

Networks, with random weights: deep (a transformer of 24 layers, 32 x 64 tokens), gpt2 (6 layers, 8 x 128 tokens),
bert (4 layers of width 768, 16 x 128 tokens, one class each); stochastic gradient descent with momentum. Limits are
parts of what the arena holds beside states. `predicted` and `measured` are steps relative to the whole batch's without a limit, medians
of 5 steps; `loss` is the largest relative difference to its losses.
"""

import argparse
import io
import json
import pathlib
import subprocess
import tempfile

import records

LIMITS = [70, 50, 35, 25, 15]
STEPS = 5
COLUMNS = {
    "network": "step",
    "limit_percent": ("limit", lambda row: f"{row['limit_percent']} %" if row["limit_percent"] else "none"),
    "micro_batches": ("micro-batches", lambda row: row["micro_batches"] or "refused"),
    "arena_mib": ("arena MiB", ".0f"),
    "resident_mib": ("resident MiB", ".0f"),
    "predicted_overhead": ("predicted", "+.1%"),
    "ms_per_step": ("ms", ".0f"),
    "overhead": ("measured", "+.1%"),
    "losses_differ_by": ("loss", ".0e"),
    "planning_seconds": ("planned s", ".1f"),
}


def networks():
    """Names to makers of a network, an example of its input, the number of classes and their axis."""
    import torch
    from torch import nn

    def layer(width, heads):
        return nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)

    class Transformer(nn.Module):
        def __init__(self, layers, width, heads, vocabulary, times, classes):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(times, width))
            self.blocks = nn.ModuleList(layer(width, heads) for _ in range(layers))
            self.pools = classes != vocabulary
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.places
            for block in self.blocks:
                x = block(x)
            x = self.norm(x)
            return self.head(x[:, 0] if self.pools else x)

    def transformer(batch, *sizes):
        ids = torch.randint(sizes[3], (batch, sizes[4]))
        classes, pools = sizes[5], sizes[3] != sizes[5]
        return Transformer(*sizes), ids, classes, 1 if pools else 2

    return {
        "deep": lambda: transformer(32, 24, 64, 4, 128, 64, 128),
        "gpt2": lambda: transformer(8, 6, 768, 12, 50257, 128, 50257),
        "bert": lambda: transformer(16, 4, 768, 12, 30522, 128, 2),
    }


def export(name, folder):
    """Writes a network with its data and gives the axis of its classes."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    network, x, classes, axis = networks()[name]()
    file = io.BytesIO()
    training = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(
        network.train(), (x,), file, input_names=["x"], output_names=["logits"], opset_version=17,
        training=training, do_constant_folding=False, dynamo=False,
    )  # fmt: skip
    (folder / f"{name}.onnx").write_bytes(file.getvalue())
    target = torch.randint(classes, x.shape if axis == 2 else x.shape[:1])
    np.savez(folder / f"{name}.npz", x=x.numpy(), target=target.numpy())
    return axis


def objects(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return found if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["deep", "gpt2", "bert"], metavar="NETWORK")
    parser.add_argument("--arenic", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    records.add_options(parser)
    options = parser.parse_args()
    record = records.Record(__file__, options.record, arenic=options.arenic, packages=["torch"])
    with tempfile.TemporaryDirectory() as folder, record:
        table = record.table(COLUMNS, threads=options.threads)
        folder = pathlib.Path(folder)

        def add(name, percent, plan, run, **found):
            table.add(
                network=name, limit_percent=percent, micro_batches=plan.get("micro_batches", 1),
                arena_mib=plan["arena_bytes"] / 2**20, resident_mib=run["peak_rss_bytes"] / 2**20,
                ms_per_step=run["median_step_seconds"] * 1e3, planning_seconds=plan["seconds"], **found,
            )  # fmt: skip

        for name in options.networks:
            axis = export(name, folder)

            def row(limit, name=name, axis=axis):
                artifact, model = folder / "step.arenic", folder / f"{name}.onnx"
                how = ["--loss", "cross_entropy", "--class-axis", axis, "--optimizer", "momentum", "--no-eval"]
                under = ["--accumulate", "auto", "--memory", limit] if limit else []
                plan = objects(options.arenic, "compile", model, *how, *under, "-o", artifact, "--json")
                if plan is None:
                    return None
                data = ["--data", folder / f"{name}.npz", "--set", "lr=0.01", "--steps", STEPS]
                run = objects(options.arenic, "run", artifact, *data, "--threads", options.threads, "--json")
                losses = [o["loss"] for o in run if "loss" in o]
                return plan[-1], next(o for o in run if "median_step_seconds" in o), losses

            whole, took, theirs = row(None)
            add(name, None, whole, took)
            for percent in LIMITS:
                found = row(whole["state_bytes"] + (whole["arena_bytes"] - whole["state_bytes"]) * percent // 100)
                if found is None:
                    table.add(network=name, limit_percent=percent, micro_batches=None)
                    continue
                plan, run, losses = found
                add(
                    name, percent, plan, run,
                    predicted_overhead=plan["predicted_step_seconds"] / plan["unlimited_step_seconds"] - 1,
                    overhead=run["median_step_seconds"] / took["median_step_seconds"] - 1,
                    losses_differ_by=max(abs(a / b - 1) for a, b in zip(losses, theirs)),
                )  # fmt: skip


if __name__ == "__main__":
    main()
