#!/usr/bin/env python3
"""Prints what levels of sharding need of a rank, and how far large networks scale: all of it simulated.

    benches/ranks_tables.py --arenic target/release/arenic [--cluster C] [--device D] [--compiled N] [--rows B] [--length T] [NETWORK...]

Networks are made from transformers' configs without weights (PyTorch's device `meta`) and planned without them (`--plan-only`), with
AdamW in f32. Each level is compiled for N ranks with B sequences of T tokens each, and simulated on other numbers of ranks.
Formulae are those of Rajbhandari et al., "ZeRO" (SC 2020), table 1, for states of f32: Ψ parameters take 4Ψ bytes, their gradients
4Ψ, AdamW's moments 8Ψ.

Needs the packages of requirements.txt and PyTorch with transformers.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import time

import onnx_ir as ir
import torch
import transformers as hf

import records

# What makes each, and options of `compile`: positions are no parameters.
NETWORKS = {
    "GPT-2 XL": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25)), []),
    "Llama 7B": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig()), ["--freeze", "*inv_freq"]),
}
# `gradients` is the program of `optimizer` in a step without micro-batches.
LEVELS = {"none": ["none"], "optimizer": ["optimizer", "gradients"], "parameters": ["parameters"]}
RANKS = [8, 64, 512, 1024]
MEMORIES = [24, 40, 80]


def fits(row):
    return ", ".join(str(gb) for gb in MEMORIES if row["gb_per_rank"] <= gb) or "–"


def zero(row):
    return " / ".join(f"{row[f'zero_{level}_gb']:.2f}" for level in row["level"].split(", "))


COLUMNS = {
    "network": ("network, level", lambda row: f"{row['network']}, {row['level']}"),
    "ranks": ("ranks", "d"),
    "gb_per_rank": ("GB of a rank", ".2f"),
    "states_gb": ("states", ".2f"),
    "zero_gb": ("ZeRO, with gradients", zero),
    "fits": ("fits", fits),
    "ms_per_step": ("step, ms", ".1f"),
    "exchange_ms": ("exchanges", ".1f"),
    "exposed_ms": ("exposed", ".1f"),
    "efficiency": ("efficiency", ".1%"),
}


class Text(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def export(make, length, path):
    """Writes a network's forward pass, with weights in a file that does not exist; gives how many parameters it has."""
    with torch.device("meta"):
        module = Text(make()).train()
        ids = torch.zeros(2, length, dtype=torch.int64)
        batch = {"input_ids": {0: torch.export.Dim("batch")}}
        program = torch.export.export(module, (), {"input_ids": ids}, dynamic_shapes=batch)
        program._guards_code = []
        options = {"dynamo": True, "optimize": False, "opset_version": 18, "verbose": False}
        model = torch.onnx.export(program, (), **options).model
    model.graph.inputs[0].shape = ir.Shape(["batch", length])
    offset = 0
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor.raw.device.type == "meta":
            value.const_value = ir.ExternalTensor(
                "weights.bin", offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name, base_dir=path.parent
            )
            offset += tensor.nbytes
    path.write_bytes(ir.to_proto(model).SerializeToString())
    return sum(p.numel() for p in module.parameters())


def arenic(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def device_without_limit(name, path):
    """A named device's description with more memory than any plan wants, so that bytes decide nothing."""
    text = (pathlib.Path(__file__).parent.parent / "passes/devices" / f"{name}.yaml").read_text()
    path.write_text(re.sub(r"(?m)^memory_bytes: .*$", "memory_bytes: 4398046511104", text))
    return path


def formula(level, parameters, ranks):
    """Bytes of states and gradients of a rank, by the formulae of ZeRO."""
    weights, gradients, moments = 4 * parameters, 4 * parameters, 8 * parameters
    parts = {"none": 0, "optimizer": moments, "gradients": moments + gradients, "parameters": weights + gradients + moments}
    return weights + gradients + moments - parts[level] * (1 - 1 / ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--cluster", default="dgx_h100")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--compiled", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--effort", default="0")
    records.add_options(parser)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    arguments = parser.parse_args()
    record = records.Record(__file__, arguments.record, arenic=arguments.arenic, packages=["torch", "transformers"])
    with record:
        scale(arguments, record.table(COLUMNS))


def scale(arguments, table):
    """Adds a row for each network, level and number of ranks."""
    planning = []
    for network in arguments.networks:
        with tempfile.TemporaryDirectory() as folder:
            model, artifact = pathlib.Path(folder, "model.onnx"), pathlib.Path(folder, "step.arenic")
            described = device_without_limit(arguments.device, pathlib.Path(folder, "device.yaml"))
            make, options = NETWORKS[network]
            parameters = export(make, arguments.length, model)
            for level, names in LEVELS.items():
                step = ["--loss", "cross_entropy", "--optimizer", "adamw", "--class-axis=-1", "--no-eval", *options]
                plan = ["--device", described, "--plan-only", "--effort", arguments.effort, "--ranks", arguments.compiled, "--shard", level]
                dims = ["--dim", f"batch={arguments.rows}"]
                start = time.monotonic()
                made = arenic(arguments.arenic, "compile", model, *step, *plan, *dims, "--json", "-o", artifact)
                seconds = time.monotonic() - start
                planning.append(f"{network} ({parameters:,} parameters), {level}: {seconds:.0f} s")
                ranks = ",".join(map(str, RANKS))
                simulate = ["--ranks", ranks, "--cluster", arguments.cluster, "--device", arguments.device]
                for row in arenic(arguments.arenic, "simulate", artifact, *simulate, "--json"):
                    states = made[0]["state_bytes"] / 1e9 if row["ranks"] == arguments.compiled else None
                    table.add(
                        network=network, level=", ".join(names), ranks=row["ranks"],
                        gb_per_rank=row["bytes_per_rank"] / 1e9, states_gb=states,
                        **{f"zero_{name}_gb": formula(name, parameters, row["ranks"]) / 1e9 for name in names},
                        ms_per_step=row["step_seconds"] * 1e3, exchange_ms=row["exchange_seconds"] * 1e3,
                        exposed_ms=row["exposed_seconds"] * 1e3, efficiency=row["efficiency"],
                    )  # fmt: skip
    print(f"\nPlanning: {'; '.join(planning)}")


main()
